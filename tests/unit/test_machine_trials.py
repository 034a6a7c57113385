"""The measurement database: what is kept, what is found again, and what a damaged file does."""

from __future__ import annotations

import multiprocessing
import sqlite3
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Crashed, Measured, Measurement, NumericReport, Trial
from agentcompile.tuning.machine_trials import MachineTrials
from tests.unit import outcomes


def candidate(rows: int = 1) -> Candidate:
    regime = Regime(phase="decode", context=(1, 128))
    return Candidate(
        region="r", regime=regime, template="linear/rows", template_digest="d", params=(("ROWS", rows),), target="t"
    )


def trial(rows: int = 1, fidelity: str = "search") -> Trial:
    report = NumericReport(checks=(), error_ratio=1.0, cases=3, repeats=16)
    measured = Measurement(
        median_ns=1000, p95_ns=1100, baseline_ns=3000, baseline="pytorch", log_ratio=1.1, half_width=0.01,
        comparison="FASTER", rounds=10, dropped=0, processes=1, batch=100, residency="dram", bytes_per_s=2e10,
    )  # fmt: skip
    verdict = Measured(report=report, measurement=measured)
    return Trial(candidate=candidate(rows), source="s", verdict=verdict, fidelity=fidelity)  # type: ignore[arg-type]


def test_a_trial_is_found_again_and_says_so(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "deep" / "h.sqlite") as history:
        history.put(trial(), "p")
    with MachineTrials(tmp_path / "deep" / "h.sqlite") as history:
        assert history.get(candidate().id, "s", "p") == replace(trial(), reused=True)
        assert history.warning == ""


@pytest.mark.parametrize("key", [("x", "s", "p"), ("", "x", "p"), ("", "s", "x")])
def test_another_candidate_source_or_policy_finds_nothing(tmp_path: Path, key: tuple[str, str, str]) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(trial(), "p")
        assert history.get(key[0] or candidate().id, key[1], key[2]) is None


def test_all_that_is_known_of_some_candidates_is_found_at_once(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        for rows in range(1, 1200):
            history.put(trial(rows), "p")
        history.put(trial(7, fidelity="confirm"), "p")
        history.put(replace(trial(7), source="of another version"), "p")
        history.put(replace(trial(8), source="under another policy"), "q")
        wanted = [candidate(rows).id for rows in (7, 8, *range(2000, 3000), 1100)]
        found = history.about(wanted, "p")
        assert {t.candidate.id for t in found} == {candidate(rows).id for rows in (7, 8, 1100)}
        assert [t.fidelity for t in found if t.candidate == candidate(7)] == ["search", "search", "confirm"]
        assert all(t.reused for t in found)
        assert {t.source for t in found} == {"s", "of another version"}
        assert history.about([], "p") == ()


def test_a_confirmed_trial_is_preferred_and_each_fidelity_can_be_asked_for(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(trial(), "p")
        assert history.get(candidate().id, "s", "p", "confirm") is None
        history.put(trial(fidelity="confirm"), "p")
        found = history.get(candidate().id, "s", "p")
        assert found is not None
        assert found.fidelity == "confirm"
        searched = history.get(candidate().id, "s", "p", "search")
        assert searched is not None
        assert searched.fidelity == "search"
        assert len(history) == 2


def test_every_length_is_kept_and_the_shortest_that_suffices_is_found(tmp_path: Path) -> None:
    def lasting(rounds: int) -> Trial:
        measured = trial().verdict
        assert isinstance(measured, Measured)
        return replace(trial(), verdict=replace(measured, measurement=replace(measured.measurement, rounds=rounds)))

    with MachineTrials(tmp_path / "h.sqlite") as history:
        for rounds in (20, 5, 10):
            history.put(lasting(rounds), "p")
        found = [history.get(candidate().id, "s", "p", "search", rounds) for rounds in (0, 5, 6, 20, 21)]
        assert [one and one.rounds for one in found] == [5, 5, 10, 20, None]
        history.put(replace(trial(), verdict=BuildFailed(log="no")), "p")
        last = history.get(candidate().id, "s", "p", "search", 21)
        assert last is not None, "a failure stands for any number of rounds"


def test_an_error_without_bounds_is_kept_with_its_check(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(replace(trial(), verdict=outcomes.FAILURES["incorrect"]), "p")
        found = history.get(candidate().id, "s", "p")
        assert found is not None
        assert found.verdict == outcomes.FAILURES["incorrect"]


def test_a_later_verdict_replaces_an_earlier_one(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(replace(trial(), verdict=Crashed(stage="validate", signal=11)), "p")
        history.put(replace(trial(), verdict=BuildFailed(log="no")), "p")
        found = history.get(candidate().id, "s", "p")
        assert found is not None
        assert found.verdict == BuildFailed(log="no")


@pytest.mark.parametrize("damage", [b"this is no database, and it is long enough" * 40, b"SQLite format 3\0rest"])
def test_a_damaged_file_is_put_aside_with_a_warning(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(damage)
    with MachineTrials(path) as history:
        assert "damaged" in history.warning
        history.put(trial(), "p")
    assert (tmp_path / "h.sqlite.damaged").read_bytes() == damage
    with MachineTrials(path) as history:
        assert len(history) == 1
        assert history.warning == ""


def test_a_file_cut_in_half_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with MachineTrials(path) as history:
        for rows in range(300):
            history.put(trial(rows), "p")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with MachineTrials(path) as history:
        assert "damaged" in history.warning
        assert history.get(candidate().id, "s", "p") is None


def test_a_database_of_a_newer_program_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    with MachineTrials(path) as history:
        assert "version is 99" in history.warning


def test_a_row_that_no_longer_decodes_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with MachineTrials(path) as history:
        history.put(trial(), "p")
        with sqlite3.connect(path) as db:
            db.execute("update trial set trial = '{\"candidate\": 1}'")
        db.close()
        assert history.get(candidate().id, "s", "p") is None


def test_a_place_that_cannot_be_written_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path in (tmp_path / "file" / "h.sqlite", tmp_path):
        with pytest.raises(AgentCompileError) as caught:
            MachineTrials(path)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
        assert caught.value.hint


def _put_many(path: Path, first: int, together: Barrier) -> None:
    together.wait(60)
    with MachineTrials(path) as history:
        for rows in range(first, first + 40):
            history.put(trial(rows), "p")


def test_several_processes_write_one_database_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "h.sqlite"
    together = context.Barrier(4)  # a new database is the hardest: each wants to be the one that sets it up
    writers = [context.Process(target=_put_many, args=(path, 40 * i, together)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    with MachineTrials(path) as history:
        assert len(history) == 160
        assert history.warning == ""
