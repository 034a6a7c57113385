"""What a study says beside its curves: speed-up per evaluation, the cost model's rank correlation, legal answers."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice.exchange import Cassette
from agentcompile.advice.prompt import prompt_of
from agentcompile.ir.advice import SequenceCounts
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import canonical
from bench.ablation.advising import ModelAnswers, advised
from bench.ablation.recorded import Request, read_study, study_of
from bench.ablation.simulate import simulate
from bench.ablation.spaces import RecordedSpace, read_space
from bench.ablation.study import Study, together
from bench.ablation.tables import as_csv, as_markdown, report
from tests.unit.answers import answer
from tests.unit.fakes import measured
from tests.unit.recorded import TIMES, cache, small, write
from tests.unit.test_advised_spaces import ASKED, exchange, recorded

RESULTS = Path(__file__).parents[2] / "bench/results/searches"
STUDIES = ("own-cpu-spaces", "own-cpu-spaces-second", "own-spaces", "recorded-spaces")


def smooth(folder: Path) -> RecordedSpace:
    """90 points in two numbers whose times follow them."""
    times = {(a, b): 1.0 + abs(a - 6) + 0.5 * abs(b - 3) for a in range(10) for b in range(9)}
    document = {
        "device_name": "a device", "kernel_name": "copy", "tune_params_keys": ["A", "B"],
        "tune_params": {"A": list(range(10)), "B": list(range(9))},
        "cache": {f"{a},{b}": {"A": a, "B": b, "time": time} for (a, b), time in times.items()},
    }  # fmt: skip
    return read_space(write(folder / "smooth.json", document))


def study_with(space: Path, *arms: str, budget: int = 8) -> Study:
    return study_of(Request(spaces=(space,), strategies=arms, seeds=3, budget=budget, within=5.0, jobs=1))


def rows_of(study: Study) -> list[dict[str, str]]:
    return list(csv.DictReader(as_csv(study).splitlines()))


def test_the_cost_model_of_a_search_says_how_it_ranks_what_it_did_not_see(tmp_path: Path) -> None:
    space = smooth(tmp_path)
    known = simulate(space, "mcts", 30, 0).correlation
    assert known is not None
    assert 0.5 < known <= 1
    assert simulate(space, "mcts", 30, 0).correlation == known
    assert simulate(space, "mcts", 23, 0).correlation is None, "too few trials for a first fit"
    assert simulate(space, "evolutionary", 30, 0).correlation is None, "it has no cost model"


def test_the_rank_correlation_is_in_every_output_beside_arms_without_one(tmp_path: Path) -> None:
    smooth(tmp_path)
    study = study_with(tmp_path / "smooth.json", "mcts;random", budget=26)
    mcts, plain = study.standing("smooth", "mcts"), study.standing("smooth", "random")
    middle = sorted(curve.correlation or 0.0 for curve in study.of("smooth", "mcts"))[1]
    assert mcts.correlation == middle
    assert plain.correlation is None
    assert [row["rank_correlation"] for row in rows_of(study)] == [str(middle), ""]
    for text in ("\n".join(report(study)), as_markdown(study, "")):
        assert f"{middle:.2g}" in text
        assert "rank: Spearman's rank correlation of the cost model" in text
    assert decode(Study, json.loads(canonical(encode(study)))) == study


def test_speed_up_per_evaluation_is_that_of_the_first_point_that_is_near(tmp_path: Path) -> None:
    study = study_with(write(tmp_path / "small.json", cache(TIMES)), "exhaustive;random")
    assert study.spaces[0].compared_ns == 2.5e6, "the median of 4, 2, 3, 1, 1.04 and 5 ms: nobody timed PyTorch"
    assert study.standing("small", "exhaustive").efficiency == pytest.approx(2.5 / 5), "1 ms, the fifth point"
    assert study.overall[0].efficiency == pytest.approx(0.5)
    assert rows_of(study)[0]["speedup_per_evaluation"] == "0.5"
    assert "×/eval.: the speed-up, over PyTorch or over the median" in "\n".join(report(study))
    never = study_with(tmp_path / "small.json", "exhaustive", budget=4)
    assert never.standing("small", "exhaustive").efficiency == 0
    assert never.overall[0].efficiency == 0


def consulted(folder: Path, *sequences: dict[str, Any]) -> tuple[Path, Path]:
    """A space, and recorded answers: one to the first question, one to that about the node that it leads to first."""
    path, minds = recorded(folder), folder / "minds"
    prompt = prompt_of([ASKED])
    Cassette(minds).keep(exchange(prompt.asked[0], answer(prompt)))
    for node in ASKED.candidates:
        about = prompt_of([replace(ASKED, focus=(node.id,))])
        made = answer(about)
        made["regions"][0]["sequences"] = list(sequences)
        Cassette(minds).keep(exchange(about.asked[0], made))
    return path, minds


def change(name: str, value: object) -> dict[str, Any]:
    return {"change": "parameter", "name": name, "value": value}


LEGAL = {"start": "c3", "steps": [change("TILES", 2)], "rationale": "r"}
PARTIAL = {"start": "t2", "steps": [change("AHEAD", 0), change("TILES", 5)], "rationale": "r"}
WRONG = {"start": "t2", "steps": [change("TILES", 5)], "rationale": "r"}


def test_sequences_that_are_legal_in_part_and_answers_without_a_legal_one_are_counted_by_model(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "none").mkdir()
    path, minds = consulted(tmp_path / "some", LEGAL, PARTIAL, WRONG)
    found = simulate(read_space(path), f"mcts+advice:history=1@replay:{minds}", 10, 0).answers
    assert found is not None
    assert found.model == "mind"
    asked = found.consulted
    assert asked > 0
    assert found.fallbacks == 0
    assert found.sequences == SequenceCounts(full=2 + asked, partial=asked, dropped=asked), "two of the first answer"
    path, minds = consulted(tmp_path / "none", WRONG)
    arm = f"mcts+advice:history=1@replay:{minds}"
    study = study_with(path, f"{arm};halving@heuristic", budget=10)
    given = study.standing("ours", arm).answers
    assert given is not None
    assert given.fallbacks == given.consulted > 0, "the search went on as without a model"
    text = "\n".join(report(study))
    assert "100.0%" in text
    assert "full fallback: answers in the middle of a search without a legal sequence" in text
    assert "## Answers of models" in as_markdown(study, "")
    told, plain = rows_of(study)
    assert told["model"] == "mind"
    assert int(told["full_fallbacks"]) == int(told["answers"]) == given.consulted
    assert int(told["sequences"]) == given.sequences.total
    assert (plain["model"], plain["answers"], plain["full_fallbacks"]) == ("", "", "")


def test_answers_of_several_searches_are_added() -> None:
    one = ModelAnswers(model="a", consulted=2, fallbacks=1, sequences=SequenceCounts(full=3, partial=1))
    assert together([None]) is None
    assert together([one, None, one]) == ModelAnswers(
        model="a", consulted=4, fallbacks=2, sequences=SequenceCounts(full=6, partial=2)
    )


def test_the_worst_adviser_leads_into_failures_and_slow_points_first_and_when_asked(tmp_path: Path) -> None:
    space = small(tmp_path)
    curve = simulate(space, "exhaustive@worst", 8, 0)
    assert curve.steps == ((3, 5e6), (4, 4e6), (5, 3e6), (6, 2e6), (7, 1.04e6), (8, 1e6))
    assert curve.answers is None
    many = small(tmp_path, [float(at) for at in range(1, 101)], "many")
    advising = advised(many, "worst", 0, "")
    tried = [measured(many.candidates[at], 0.0) for at in (99, 97)]
    assert advising.consult is not None
    proposed = advising.consult(tried, (many.candidates[0].id,), 0)
    assert proposed == tuple((many.candidates[at].id,) for at in (98, 96, 95, 94))
    for arm in ("halving@worst", "llm-rounds@worst", "mcts+advice@worst"):
        assert simulate(many, arm, 100, 0).evaluations_to(0.0) is not None, "no advice takes a point out of a space"


@pytest.mark.parametrize("name", STUDIES)
def test_a_result_from_before_these_columns_is_still_shown(name: str) -> None:
    study = read_study(RESULTS / f"{name}.json")
    shown = "\n".join(_known(study))
    assert shown
    assert (RESULTS / f"{name}.md").read_text(encoding="utf-8").count("\n## ") >= len(study.spaces)


def _known(study: Study) -> Iterator[str]:
    yield from report(study)
    yield as_csv(study)
    yield as_markdown(study, "")


def test_the_figure_of_the_strategies_without_a_model_holds() -> None:
    """On three spaces of others: geometric mean of medians to 5 % at most 125, and 14 of 15 seeds on each."""
    study = read_study(RESULTS / "recorded-spaces.json")
    assert (study.seeds, study.budget, len(study.spaces)) == (15, 1000, 3)
    (best,) = (one for one in study.overall if one.arm == "evolutionary")
    assert best.evaluations[0][0] == 5.0
    assert round(best.evaluations[0][1]) == 73 <= 125
    medians = []
    for facts in study.spaces:
        found = sorted(one.evaluations_to(5.0) or math.inf for one in study.of(facts.name, "evolutionary"))
        assert sum(math.isfinite(one) for one in found) == 15
        assert study.standing(facts.name, "evolutionary").reaches[0].seeds == 15
        medians.append(found[7])
    assert math.prod(medians) ** (1 / 3) == pytest.approx(best.evaluations[0][1])
