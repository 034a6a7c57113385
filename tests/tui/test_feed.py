"""Runs read from outside: as they grow, again at a speed, damaged, or of a newer version."""

from __future__ import annotations

import json
from pathlib import Path

from agentcompile.tui.feed import STDERR, Feed
from agentcompile.tui.logs import KEPT
from recorded import fed, lines, run_directory, session

from agentcompile.runs.progress import fold
from agentcompile.runs.session import EVENTS, OPTIONS, Journal, RunDirectory


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_state_is_the_fold_of_the_events(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    assert fed(run).state == fold(RunDirectory(run).events())


def test_what_is_written_bit_by_bit_is_read_once_and_a_half_line_waits(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=0)
    feed = Feed(run)
    data = b"".join(lines("finished")[:60])
    for start in range(0, len(data), 777):
        with (run / EVENTS).open("ab") as file:
            file.write(data[start : start + 777])
        feed.poll(1.0)
    assert feed.state == fold(RunDirectory(run).events())
    assert len(feed.log) == len({line.number for line in feed.log})


def test_a_writer_that_cuts_off_a_half_line_and_goes_on_is_followed(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=30)
    with (run / EVENTS).open("ab") as file:
        file.write(b'{"seq": 30, "at_ms"')
    feed = fed(run)
    assert not feed.fault
    with Journal(RunDirectory(run)) as journal:
        from agentcompile.events import Warned

        journal.append(Warned(text="it goes on"))
    feed.poll(1.0)
    assert feed.state.warnings[-1] == "it goes on"


def test_a_poll_ends_in_time_however_much_there_is(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    (run / EVENTS).write_bytes(b"".join(lines("finished")) * 20)
    clock = Clock()

    def later() -> float:
        clock.now += 0.02  # each look at the clock takes its while
        return clock.now

    feed = Feed(run, clock=later)
    polls = 1
    while feed.poll(0.03) and not feed.caught_up:
        polls += 1
    assert polls > 5
    assert feed.state == fold(RunDirectory(run).events())


def test_progress_behind_which_more_comes_is_skipped_and_the_last_is_not(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    known = fold(RunDirectory(run).events())
    region = known.rows[0].region
    ticks = [{"kind": "rounds-progress", "region": region, "done": done, "total": 9} for done in range(9)]
    with (run / EVENTS).open("ab") as file:
        for seq, tick in enumerate(ticks, 5000):
            record = {"at_ms": 1, "event": dict(sorted(tick.items())), "seq": seq}
            file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    row = fed(run).state.row(region)
    assert row is not None
    assert row.rounds == (8, 9)


def test_a_run_of_a_newer_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    (run / OPTIONS).write_text('{"version": 99, "options": {}}')
    feed = fed(run)
    assert "99 is newer" in feed.fault
    assert "install the agentcompile that wrote it" in feed.fault
    assert not feed.state.rows
    assert not feed.poll()


def test_a_damaged_line_stops_the_reading_and_says_where(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=10)
    with (run / EVENTS).open("ab") as file:
        file.write(b"not json\n")
    feed = fed(run)
    assert EVENTS in feed.fault
    assert feed.state.status == "running"


def test_the_compilers_own_words_are_in_the_log_and_clean(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    (run / STDERR).write_bytes(b"g++: \x1b[31merror\x1b[0m\xff\n\nhalf a li")
    feed = fed(run)
    assert [line.text for line in feed.log if line.source == "stderr"] == ["g++: error\ufffd"]
    with (run / STDERR).open("ab") as file:
        file.write(b"ne\n")
    feed.poll(1.0)
    assert feed.log[-1].text == "half a line"


def test_a_log_keeps_its_newest_lines(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    feed = fed(run)  # all events, so that what is said afterwards is the newest
    (run / STDERR).write_bytes(b"".join(b"line %d\n" % number for number in range(KEPT + 500)))
    while feed.poll(1.0):
        pass
    assert len(feed.log) == KEPT
    assert feed.log[-1].text == f"line {KEPT + 499}"


def test_a_past_run_is_shown_again_at_its_own_pace_times_the_speed(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    clock = Clock()
    feed = Feed(run, speed=10.0, clock=clock)
    feed.poll()
    early = feed.state
    records = [record for record, _ in RunDirectory(run).records()]
    trials = [record.at_ms for record in records if record.event.kind == "trial-finished"]
    clock.now += (trials[len(trials) // 2] - records[0].at_ms) / 1000 / 10
    feed.poll()
    half = len(feed.state.trials)
    clock.now += 1e6
    feed.poll()
    assert early.status == "running"
    assert not early.trials
    assert 0 < half < len(feed.state.trials)
    assert feed.state == fold(RunDirectory(run).events())
    assert feed.life() == "ended"


def test_a_past_run_that_is_shown_at_once_comes_in_slices(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    clock = Clock()

    def later() -> float:
        clock.now += 0.02
        return clock.now

    feed = Feed(run, speed=1e9, clock=later)
    feed.poll(0.03)
    polls = 0
    while feed.poll(0.03):
        polls += 1
    assert polls > 5
    assert feed.state == fold(RunDirectory(run).events())


def test_a_compiler_that_is_gone_without_a_word_is_lost(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=100)
    feed = fed(run)
    assert feed.life() == "lost"
    assert feed.life(starting=True) == "live"
    one = session(run)
    one.poll(1.0)
    assert one.scene.life == "lost"
