"""Strategies that learn from each answer: they hold no state, stay legal, and find what is fast with few trials."""

from __future__ import annotations

import contextlib
import functools
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate, Param
from agentcompile.ir.trial import Trial
from agentcompile.search import STRATEGIES, Budget, RegionStrategy, SearchTask, strategy_of
from agentcompile.search.course import Explorer, Ground
from agentcompile.search.mcts import Mcts
from agentcompile.search.points import Points, points_of
from agentcompile.space import OutsideError, Space
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG
from tests.unit.fakes import RecordedEvaluator, linear_region, rows_template, target

NONE = Advice(label="none")
COURSES = [name for name, method in STRATEGIES.items() if isinstance(method.regions, Explorer)]


@functools.cache
def space() -> tuple[Candidate, ...]:
    """A space of two templates with four parameters, 2 x 1,296 points."""
    params = tuple(Param(name=name, domain=tuple(range(6)), default=0, about="which") for name in "ABCD")
    made = [rows_template(id=f"linear/t{i}", params=params, requires=()) for i in range(2)]
    return tuple(Space(linear_region(), made, target()))


def truth() -> dict[str, float]:
    """True log ratios: two parameters that depend on one another, two that do not, and a template that is slower."""
    found = {}
    for candidate in space():
        a, b, c, d = (int(value) for _, value in candidate.params)
        found[candidate.label] = (
            -0.2 * abs(a - b - 2) - 0.1 * abs(c - 4) - 0.05 * d - 0.3 * ("t1" in candidate.template)
        )
    return found


def run(
    strategy: RegionStrategy, budget: Budget, *, advice: Advice = NONE, candidates: Sequence[Candidate] = ()
) -> list[Trial]:
    evaluator, trials = RecordedEvaluator(truth()), list[Trial]()
    task = SearchTask(candidates=tuple(candidates) or space(), advice=advice)
    while (proposal := strategy.propose(task, trials, budget)).candidates:
        trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
        assert len(trials) < 10_000, "the strategy does not end"
    return trials


def evaluations(name: str, seed: int) -> int:
    """How many candidates were evaluated until one within 5 % of the best."""
    table = truth()
    made = run(strategy_of(name).regions, Budget(trials=600, seed=seed, finalists=1, batch=1))
    order = list(dict.fromkeys(trial.candidate.label for trial in made))
    return next((at for at, label in enumerate(order, 1) if table[label] >= -0.05), 10_000)


@pytest.mark.parametrize("name", COURSES)
def test_a_kept_course_proposes_what_one_replayed_from_the_trials_does(name: str) -> None:
    kept, trials, evaluator = strategy_of(name).regions, list[Trial](), RecordedEvaluator(truth())
    budget = Budget(trials=70, seed=5, batch=3)
    task = SearchTask(candidates=space(), advice=NONE)
    while (proposal := kept.propose(task, trials, budget)).candidates:
        course = kept.course if isinstance(kept, Explorer) else None
        assert course is not None
        assert Explorer(course).propose(task, trials, budget) == proposal
        trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
    assert len({trial.candidate.id for trial in trials}) == 70


@pytest.mark.parametrize("name", COURSES)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    def ids(seed: int) -> list[str]:
        return [trial.candidate.id for trial in run(strategy_of(name).regions, Budget(trials=40, seed=seed))]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


@pytest.mark.parametrize("name", COURSES)
def test_advice_and_every_template_come_first(name: str) -> None:
    wanted = tuple(candidate.id for candidate in space() if candidate.template == "linear/t1")[100:107]
    advice = Advice(label="some", order=wanted)
    made = [trial.candidate for trial in run(strategy_of(name).regions, Budget(trials=8), advice=advice)]
    assert {candidate.template for candidate in made} == {"linear/t0", "linear/t1"}
    assert set(wanted) & {candidate.id for candidate in made}
    assert made[0].id in {wanted[0], space()[0].id}


@pytest.mark.parametrize("name", COURSES)
def test_where_all_fail_or_there_is_one_point_the_search_ends(name: str) -> None:
    evaluator, trials = RecordedEvaluator({}), list[Trial]()
    task = SearchTask(candidates=space()[:50], advice=NONE)
    while (proposal := strategy_of(name).regions.propose(task, trials, Budget(trials=200))).candidates:
        trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
    assert len(trials) == 50
    assert {
        trial.candidate.id for trial in run(strategy_of(name).regions, Budget(trials=9), candidates=space()[:1])
    } == {space()[0].id}


def test_evolution_needs_a_fraction_of_what_chance_does() -> None:
    chance = statistics.median(evaluations("random", seed) for seed in range(9))
    found = [evaluations("evolutionary", seed) for seed in range(9)]
    assert statistics.median(found) < chance / 2
    assert max(found) < 600, "a seed did not get there"


def one_parameter_away(space: Space, candidate: Candidate) -> Iterator[Candidate]:
    """Every candidate of the space with another value of one parameter, as the manifest and its constraints have it."""
    for param in space.template(candidate.template).params:
        for value in param.domain:
            with contextlib.suppress(OutsideError):
                changed = space.candidate(candidate.template, {**dict(candidate.params), param.name: value})
                if changed != candidate:
                    yield changed


@pytest.mark.parametrize("kind", ["linear", "rmsnorm-gateup-silu-mul", "rope-attention-decode"])
def test_changes_are_the_legal_transformations_of_shipped_spaces(kind: str) -> None:
    templates = [one for one in CATALOG.templates if one.region == kind and one.language == "cpp"]
    own = Space(region(kind, Extents()), templates, target())
    candidates = tuple(own)
    points = Points(candidates)
    for at in random.Random(0).sample(range(len(points)), 20):
        candidate = candidates[at]
        changed = {candidates[one] for one in points.changes(at)}
        legal = set(one_parameter_away(own, candidate))
        assert {one for one in changed if one.template == candidate.template} == legal
        assert all(one in own for one in changed)


def test_a_tree_has_every_point_once_and_no_node_more_children_than_it_may() -> None:
    points = points_of(space()[:200])
    ground = Ground(points=points, first=(), advised=(), rng=random.Random(0), batch=4, trials=len(points))
    walk = Mcts(branching=3).walk(ground)
    wanted, seen = next(walk), list[int]()
    while wanted:
        seen += [ask.point for ask in wanted]
        try:
            wanted = walk.send([-float(ask.point % 7) for ask in wanted])
        except StopIteration:
            break
    assert sorted(seen) == list(range(200))


def test_settings_follow_the_name() -> None:
    method = strategy_of("mcts:branching=4,exploration=0.5")
    assert isinstance(method.regions, Explorer)
    assert method.regions.course == Mcts(branching=4, exploration=0.5)
    assert method.step is STRATEGIES["mcts"].step


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mtcs", "did you mean mcts?"),
        ("mcts:branches=2", "settings of mcts: branching, exploration"),
        ("mcts:branching=2.5", "its default: branching=2"),
        ("mcts:branching=0", "its default: branching=2"),
        ("mcts:exploration=nan", "its default: exploration="),
        ("mcts:exploration=-1", "its default: exploration="),
        ("mcts:branching", "its default: branching=2"),
        ("halving:rungs=3", "--strategy halving"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_it_may_be(text: str, says: str) -> None:
    with pytest.raises(AgentCompileError) as caught:
        strategy_of(text)
    assert says in (caught.value.hint or "")


def test_the_help_names_every_strategy() -> None:
    about = subprocess.run(
        [sys.executable, "-m", "agentcompile", "compile", "--help"], capture_output=True, text=True, check=True
    ).stdout
    words = " ".join(about.replace("│", " ").split()).replace("- ", "-")  # a line may end at a name's hyphen
    assert all(name in words for name in STRATEGIES)
