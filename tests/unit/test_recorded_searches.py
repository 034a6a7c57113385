"""Recorded searches of a study: which curves a region gets of them, and which files are refused and why."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from agentcompile.bench.ablation import study

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.runs.recorded_searches import KIND, NEWEST, RecordedSearch, RecordedSearches, read_recorded

COMMITTED = Path(__file__).parents[2] / "bench/results/searches/recorded-spaces.json"


def searched(space: str, strategy: str = "random", *steps: tuple[int, float], evaluations: int = 4) -> RecordedSearch:
    return RecordedSearch(space=space, strategy=strategy, evaluations=evaluations, optimum_ns=100.0, steps=steps)


def curve(**changed: object) -> dict[str, object]:
    """A search as a study writes it, with fields that are not read here."""
    known: dict[str, object] = {
        "space": "linear-abc", "strategy": "random", "seed": 0, "budget": 4, "evaluations": 4, "failed": 0,
        "optimum_ns": 100.0, "steps": [[1, 200.0], [3, 100]], "ended": "budget", "seconds": 0.1,
    }  # fmt: skip
    return known | changed


def written(folder: Path, **changed: object) -> Path:
    path = folder / "study.json"
    path.write_text(json.dumps({"kind": KIND, "format": NEWEST, "curves": [curve()], "arms": ["random"]} | changed))
    return path


def test_a_search_is_the_share_of_the_optimums_speed_after_each_evaluation() -> None:
    assert searched("a", "random", (2, 400.0), (4, 100.0)).speeds(5) == [0, 0.25, 0.25, 1, 1]
    assert searched("a", "random", (2, 400.0), (4, 100.0)).speeds(1) == [0]
    assert searched("a").speeds(2) == [0, 0]


def test_a_strategy_has_the_geometric_mean_over_spaces_of_the_median_over_seeds() -> None:
    recorded = RecordedSearches(
        searches=(
            searched("a", "random", (1, 100.0)),
            searched("a", "random", (1, 400.0)),
            searched("a", "random", (1, 200.0)),
            searched("b", "random", (2, 800.0), evaluations=3),
            searched("b", "greedy", (1, 100.0), evaluations=1),
        )
    )
    random, greedy = recorded.curves(("a", "b"))
    assert (random.name, greedy.name) == ("random", "greedy")
    assert random.best == pytest.approx([0, 0.25, 0.25, 0.25])
    assert greedy.best == (1.0,)
    assert recorded.curves(("a",))[0].best == (0.5,) * 4
    assert len(recorded.curves(("a",))) == 1, "a strategy that did not search a space has no curve of it"


@pytest.mark.parametrize(
    ("region", "spaces"),
    [
        ("linear@abc", ("linear-abc",)),
        ("linear@ffffff", ("linear-abc", "linear-def")),
        ("mlp/gate@123", ("mlp-gate",)),
        ("attention@abc", ("linear-abc", "linear-def", "mlp-gate")),
    ],
)
def test_a_region_gets_its_own_space_else_those_of_its_kind_else_all(region: str, spaces: tuple[str, ...]) -> None:
    recorded = RecordedSearches(searches=tuple(map(searched, ("linear-abc", "linear-def", "mlp-gate"))))
    assert recorded.spaces_for(region) == spaces


def test_the_name_of_a_recorded_space_ends_with_its_kind_and_its_machine() -> None:
    names = ("llama-3.2-1b-linear-residual-h200", "sample-rmsnorm-linear-here", "sample-linear-here")
    recorded = RecordedSearches(searches=tuple(map(searched, names)))
    assert recorded.spaces_for("linear-residual@123") == names[:1]
    assert recorded.spaces_for("rmsnorm-linear@123") == names[1:2]
    assert recorded.spaces_for("silu-mul@123") == names


def test_what_a_study_writes_is_read(tmp_path: Path) -> None:
    assert (KIND, NEWEST) == (study.KIND, study.FORMAT)
    assert read_recorded(written(tmp_path)).searches == (searched("linear-abc", "random", (1, 200.0), (3, 100.0)),)
    committed = read_recorded(COMMITTED)
    assert len(committed.spaces) == 3
    for one in committed.curves(committed.spaces):
        assert list(one.best) == sorted(one.best)
        assert 0 <= one.best[0] <= one.best[-1] <= 1 + 1e-9


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": "agentcompile compiles"}, "kind: 'agentcompile compiles' is not 'recorded-spaces'"),
        ({"kind": None}, "kind: None is not"),
        ({"curves": []}, r"curves: \[\] holds no search"),
        ({"curves": None}, "curves: expected a list, got NoneType"),
        ({"curves": [curve(), 7]}, r"curves\[1\]: expected a table"),
        ({"curves": [{"space": "a"}]}, r"curves\[0\]"),
        ({"curves": [curve(evaluations=0, steps=[])]}, r"curves\[0\].evaluations: 0 is below 1"),
        ({"curves": [curve(optimum_ns=math.nan)]}, r"curves\[0\].optimum_ns: nan is not a time"),
        ({"curves": [curve(optimum_ns="Infinity")]}, r"curves\[0\].optimum_ns: inf is not a time"),
        ({"curves": [curve(optimum_ns=None)]}, r"curves\[0\].optimum_ns: expected float, got None"),
        ({"curves": [curve(steps=[[1, math.nan]])]}, r"curves\[0\].steps\[0\]\[1\]: nan is no time"),
        ({"curves": [curve(steps=[[1, 99.0]])]}, r"steps\[0\]\[1\]: 99.0 is no time from the optimum's, 100.0"),
        ({"curves": [curve(steps=[[1, 200.0], [2, 300.0]])]}, r"steps\[1\]\[1\]: 300.0 is no time"),
        ({"curves": [curve(steps=[[2, 200.0], [2, 100.0]])]}, r"steps\[1\]\[0\]: 2 is not between 3 and 4"),
        ({"curves": [curve(steps=[[5, 200.0]])]}, r"steps\[0\]\[0\]: 5 is not between 1 and 4"),
    ],
)
def test_a_file_that_is_no_study_is_refused_with_its_place(
    tmp_path: Path, changed: dict[str, object], why: str
) -> None:
    path = written(tmp_path, **changed)
    with pytest.raises(AgentCompileError, match=why) as refused:
        read_recorded(path)
    assert refused.value.message.startswith(f"{path}: no result of a study: ")
    assert "agentcompile ablate --space" in refused.value.hint
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("content", [b"", COMMITTED.read_bytes()[:50_000], b"[]", b"\xff", b"[" * 100_000])
def test_a_file_that_is_cut_short_or_foreign_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study.json"
    path.write_bytes(content)
    with pytest.raises(AgentCompileError, match="no result of a study"):
        read_recorded(path)


def test_a_file_that_is_missing_or_newer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="cannot be read: No such file"):
        read_recorded(tmp_path / "absent.json")
    with pytest.raises(AgentCompileError, match="cannot be read: not a file but a"):
        read_recorded(tmp_path)
    with pytest.raises(AgentCompileError, match=f"format: {NEWEST + 1} is newer than {NEWEST}"):
        read_recorded(written(tmp_path, format=NEWEST + 1))
