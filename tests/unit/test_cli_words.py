"""The words of tables and progress lines: the field's, and the same everywhere."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from runs import FOUND, STARTED, candidate, measured, trial

from agentcompile.cli.looking import trial_row
from agentcompile.cli.render import Reporter, Screen
from agentcompile.events import SearchProgress, SpaceBounded, StageFinished, StageStarted, TrialStarted
from agentcompile.ir.trial import Comparison, Measured
from agentcompile.runs.outlook import outlook
from agentcompile.runs.progress import fold


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        ("FASTER", "faster than PyTorch, n=20"),
        ("SLOWER", "slower than PyTorch, n=20"),
        ("SAME", "no faster and no slower than PyTorch, n=20"),
        ("INCONCLUSIVE", "inconclusive vs PyTorch, n=20"),
    ],
)
def test_a_comparison_reads_as_words(comparison: Comparison, said: str) -> None:
    found = measured()
    verdict = Measured(report=found.report, measurement=replace(found.measurement, comparison=comparison))
    assert trial_row(trial(verdict=verdict))[-1] == said


def test_too_few_rounds_have_no_interval() -> None:
    found = measured()
    wide = Measured(report=found.report, measurement=replace(found.measurement, half_width=math.inf))
    assert trial_row(trial(verdict=wide))[3:5] == ("~2×", "no interval")


def test_a_contended_ratio_has_no_digits_that_say_nothing() -> None:
    found = measured()
    assert trial_row(trial(verdict=found))[3] == "1.649×"
    busy = Measured(report=found.report, measurement=replace(found.measurement, disturbed=0.61))
    row = trial_row(trial(verdict=busy))
    assert row[3] == "~1.6×"
    assert row[-1].endswith(", contended: 61% of the rounds disturbed")


def test_stages_have_the_same_name_in_lines_and_in_watch() -> None:
    err = io.StringIO()
    with Reporter(Screen(out=io.StringIO(), err=err)) as reporter:
        reporter(StageFinished(stage="cover", detail="8 regions", seconds=1.9))
        reporter(StageFinished(stage="admit", detail="0.150 ms a step", seconds=4.2))
    assert [line.split("  ")[0] for line in err.getvalue().splitlines()] == ["plan", "step check"]
    state = fold((STARTED, StageStarted(stage="admit")))
    assert outlook(state, alive=True).line.startswith("running, step check; ")


def test_a_terminal_shows_the_time_left_the_best_step_and_what_is_evaluated_now() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Terminal()
    pace = SearchProgress(elapsed_s=20.0, budget_s=60.0, candidates=7, step_ns=752_000, rounds=9)
    with Reporter(Screen(out=io.StringIO(), err=err, redraws=True)) as reporter:
        for event in (
            STARTED, FOUND, SpaceBounded(region=FOUND.region, templates=1, points=2, rejected=0),
            StageStarted(stage="search"),
            TrialStarted(region=FOUND.region, candidate=candidate().id, label="linear/rows(ROWS=4)"), pace,
        ):  # fmt: skip
            reporter(event)
    for words in ("40 s left", "7 candidates", "step about 752 µs", "linear/rows(ROWS=4)"):
        assert words in err.getvalue()
