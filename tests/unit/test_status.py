"""How a run stands: one word, the same from the fold of all events and from the end of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from reviewed import EVENTS
from runs import STARTED, WHOLE

from agentcompile.events import Event, RunFailed, RunFinished, Steered
from agentcompile.runs.progress import fold
from agentcompile.runs.session import Journal, RunDirectory
from agentcompile.runs.status import STOPPED, Status, glance, status_of

FAILED = RunFailed(exit_code=6, message="no space")
SIGNALLED = RunFailed(exit_code=143, message="stopped by a signal")


@pytest.mark.parametrize(
    ("events", "alive", "status"),
    [
        ((), True, "running"),
        ((), False, "interrupted"),
        (WHOLE[:9], True, "running"),
        (WHOLE[:9], False, "interrupted"),
        ((*WHOLE[:9], Steered(what="pause")), True, "paused"),
        ((*WHOLE[:9], Steered(what="pause"), Steered(what="resume")), True, "running"),
        (WHOLE, False, "done"),
        (EVENTS, False, "waiting for review"),
        (EVENTS, True, "waiting for review"),
        ((*EVENTS, STARTED), True, "running"),
        ((*WHOLE[:4], FAILED), False, "failed"),
        ((*WHOLE[:4], SIGNALLED), False, "stopped"),
        ((*WHOLE[:4], FAILED, STARTED), False, "interrupted"),
        ((STARTED, RunFinished(detail=STOPPED)), False, "stopped"),
    ],
)
def test_a_run_has_one_word_from_its_state_and_from_the_end_of_its_file(
    tmp_path: Path, events: tuple[Event, ...], alive: bool, status: Status
) -> None:
    assert status_of(fold(events), alive=alive) == status
    run = RunDirectory.create(tmp_path / "run", {})
    with Journal(run) as journal:
        for event in events:
            journal.append(event)
        if alive:
            assert glance(run) == status
    if not alive:
        assert glance(run) == status


def test_a_run_whose_last_line_is_incomplete_is_read_without_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    with Journal(run) as journal:
        for event in WHOLE[:-1]:
            journal.append(event)
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(b'{"seq":99,"at_ms":1,"event":{"kind":"run-finished"')
    assert glance(run) == "interrupted"
