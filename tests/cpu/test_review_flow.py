"""A review from end to end: a run that waits for a person is decided on, resumed, and its lock says who chose what.

The run is written down and not searched, so that nothing depends on the clock; what a person changes is proved for
real: confirmed, validated, measured in the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile import catalog
from agentcompile.control.review import items
from agentcompile.events import (
    ChoiceMade,
    Event,
    PlanAdmitted,
    ReviewOpened,
    RunStarted,
    StageFinished,
    StageStarted,
    TrialFinished,
)
from agentcompile.ir.codec import encode
from agentcompile.ir.evaluate import evaluate
from agentcompile.ir.expr import parse
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Kernel, Part, Plan, Trial
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import LockChoice
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.planning.overrides import layouts_of
from agentcompile.regions.kinds import facts as kinds
from agentcompile.runs.progress import State
from agentcompile.runs.session import Journal, RunDirectory
from agentcompile.tuning.partitions import bound, cut
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.unit import runs

NOT_FASTER = 0.1
"""What the made-up search said of the candidate that a person takes instead."""


class Reviewed:
    """A run that waits for review: a plan of kernels, and for one region another candidate that was searched."""

    def __init__(self, home: Path, model: Path, folder: Path) -> None:
        self.home, self.lock = home, folder / "reviewed.lock.toml"
        self.made = flows.plant(home, model, CONTEXT, self.lock)
        asked = flows.options(home, model, CONTEXT, out=str(self.lock), review=True)
        self.run = RunDirectory.create(folder / "run", encode(asked))
        told: list[Event] = [
            RunStarted(model=str(model), target=self.made.facts.target, options=asked.digest, version="0")
        ]
        decode, _ = cut(self.made.model.captured, self.made.facts.target, flows.CEILING, told.append, asked.batch)
        templates = catalog.load([catalog.default_root()], kinds=kinds(), layouts=LAYOUTS)
        spaces = {one.region.id: one for one in bound(decode, templates, self.made.facts.target, told.append)}
        kernels = {part.region: part.choice for part in self.made.planned.decode[0] if isinstance(part.choice, Kernel)}
        # The one with the largest share of parameters to choose from.
        self.other = next(
            point
            for region, kernel in kernels.items()
            for point in spaces[region]
            if point.template == kernel.candidate.template and point != kernel.candidate
        )
        space = spaces[self.other.region]
        template = next(one for one in space.templates if one.id == self.other.template)
        source = specialise(template, space.region, self.other.params, space.target).digest
        searched = Trial(candidate=self.other, source=source, verdict=runs.measured(NOT_FASTER))
        confirmed = [trial for region in kernels for trial in self.made.trials[region]]
        told += [StageStarted(stage="search"), *(TrialFinished(trial=trial) for trial in (*confirmed, searched))]
        told += [ChoiceMade(region=region, choice=kernel) for region, kernel in kernels.items()]
        planned = self.made.planned
        for one, parts in zip(self.made.cuts, (*planned.decode, planned.prefill), strict=True):
            plan = Plan(regime=one.partition.regime, parts=parts, exact=planned.exact)
            told.append(PlanAdmitted(plan=plan, layouts=planned.layouts))
        told += [StageFinished(stage="admit"), ReviewOpened(regions=tuple(kernels))]
        with Journal(self.run) as journal:
            for event in told:
                journal.append(event)

    @property
    def state(self) -> State:
        return self.run.state()

    def decide(self, *arguments: object) -> str:
        done = flows.verb(self.home, "decide", self.run.path, *arguments)
        assert done.code == 0, done.err
        return done.out

    def resume(self) -> flows.Ended:
        return flows.verb(self.home, "compile", "--resume", "--run-dir", self.run.path)

    def choice(self, region: str) -> LockChoice:
        plan = next(plan for plan in read_lock(self.lock).plan if plan.phase == "decode")
        return next(choice for choice in plan.choices if choice.region == region)


@pytest.fixture(scope="module")
def reviewed(warm: Path, checkpoint: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    return Reviewed(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path_factory.mktemp("reviewed"))


class Templates:
    """What the layouts of a plan are worked out from."""

    def __init__(self) -> None:
        known = catalog.load([catalog.default_root()], kinds=kinds(), layouts=LAYOUTS)
        self._known = {template.digest: template for template in known.templates}

    def layouts(self, candidate: Candidate) -> tuple[tuple[str, str], ...]:
        return self._known[candidate.template_digest].layouts


def test_layouts_worked_out_of_a_plan_are_those_of_its_cover(reviewed: Reviewed) -> None:
    made = reviewed.made
    covers: list[tuple[Part, ...]] = [*made.planned.decode, made.planned.prefill]
    assert layouts_of(made.cuts, covers, Templates().layouts) == made.planned.layouts
    assert made.planned.layouts


def test_what_constraints_name_is_known_of_every_region(reviewed: Reviewed) -> None:
    """The events alone tell what the checker found: every constraint of a kernel of the plan holds."""
    looked = 0
    for kernel in (kernel for item in items(reviewed.state) for kernel in item.kernels):
        row = reviewed.state.row(kernel.candidate.region)
        assert row is not None
        (offer,) = [one for one in row.offers if one.template == kernel.candidate.template]
        names = defaultdict(int, dict(row.dims))
        names |= {name: value for name, value in kernel.candidate.params if isinstance(value, int)}
        for text in offer.requires:
            looked += 1
            assert evaluate(parse(text), names), text
        assert row.operators
        assert len(row.ports) > 1
    assert looked


def _waits(reviewed: Reviewed) -> None:
    """A lock waits until everything is decided."""
    reviewed.resume().refuses(7, "wait for review", str(reviewed.run.path), label="review")
    assert not reviewed.lock.exists()


def _is_locked(reviewed: Reviewed) -> None:
    """What a person decided is proved and locked, with who and why."""
    region = reviewed.other.region
    rejected = next(item for item in items(reviewed.state) if item.region != region)
    reviewed.decide("--region", region, "--use", reviewed.other.id, "--reason", "to see it run")
    reviewed.decide("--region", rejected.region, "--reject", "--reason", "not this one")
    reviewed.decide("--approve-safe")
    done = reviewed.resume()
    assert done.code == 0, done.err

    own, other = reviewed.choice(region), reviewed.choice(rejected.region)
    assert (own.decided_by, own.reason, own.params) == ("human", "to see it run", dict(reviewed.other.params))
    assert (other.use, other.decided_by, other.reason) == ("fallback", "human", "rejected by user: not this one")
    for id, decision in reviewed.state.decisions.items():
        assert reviewed.choice(id).approval == decision.approval != ""
    state = reviewed.state
    assert any(t.fidelity == "confirm" and t.candidate == reviewed.other for t in state.trials), "it was confirmed"
    (plan,) = [plan for plan in state.ruled if plan.phase == "decode"]
    assert plan.step_ns > 0, "the plan was measured in the step"
    assert "a step, baseline" in done.out


def _is_locked_again(reviewed: Reviewed) -> None:
    """The same decisions give the same lock, and a replay takes it."""
    before = read_lock(reviewed.lock).content_hash
    timed = reviewed.state.ruled
    again = reviewed.resume()
    assert again.code == 0, again.err
    if not any(plan.contended for plan in timed):
        assert read_lock(reviewed.lock).content_hash == before
        assert reviewed.state.ruled == timed, "what was measured is not measured again"
    replayed = flows.verb(reviewed.home, "replay", reviewed.lock, "--threads", flows.THREADS)
    assert replayed.code == 0, replayed.err


def _is_taken_back(reviewed: Reviewed) -> None:
    """A decision that is taken back leaves the lock as it was."""
    before = reviewed.lock.read_bytes()
    reviewed.decide("--undo")
    reviewed.resume().refuses(7, "wait for review", label="review")
    assert reviewed.lock.read_bytes() == before
    assert replace(reviewed.state, ruled=()).final == reviewed.state.plans


def test_a_review_waits_is_decided_on_locked_and_taken_back(reviewed: Reviewed) -> None:
    for step in (_waits, _is_locked, _is_locked_again, _is_taken_back):
        step(reviewed)
