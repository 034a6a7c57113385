"""Rules of choice from the command line to a lock: what each looks at, what runs share, and what a lock says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentcompile.events import Event, PlanAdmitted, TrialFinished
from agentcompile.ir.trial import Measured
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.runs.session import RunDirectory
from agentcompile.tuning.trial_database import disturbed
from tests.cpu import flows
from tests.cpu.conftest import BUDGET, CONTEXT, SECONDS
from tests.cpu.courses import Course

SETTINGS: tuple[object, ...] = (
    *("--context", CONTEXT, "--threads", flows.THREADS),
    *("--budget", BUDGET, "--seconds", SECONDS),
)


def compiled_by(rule: str, home: Path, model: Path, folder: Path) -> tuple[Lock, list[Event]]:
    lock, run = folder / f"{rule}.lock.toml", folder / rule
    done = flows.verb(home, "compile", model, *SETTINGS, "--choose", rule, "--out", lock, "--run-dir", run)
    assert done.code == 0, done.err
    return read_lock(lock), list(RunDirectory.open(run).events())


def trials(events: list[Event]) -> list[TrialFinished]:
    return [event for event in events if isinstance(event, TrialFinished)]


def test_times_alone_are_those_of_the_normal_compile_and_no_step_is_timed(compiled: Course, tmp_path: Path) -> None:
    lock, events = compiled_by("isolated", compiled.home, compiled.model, tmp_path)
    assert lock.policy.choose == "isolated"
    assert not lock.evidence.steps
    assert all(event.plan.step_ns == 0 for event in events if isinstance(event, PlanAdmitted))
    kernels = {choice.region for plan in lock.plan for choice in plan.choices if choice.use == "kernel"}
    assert kernels == {row.region for row in lock.evidence.regions}
    # What the normal compile measured is not measured again, unless others disturbed it or time cut it short.
    before = [event.trial for event in trials(list(RunDirectory.open(compiled.run).events()))]
    known = {(trial.candidate.id, trial.fidelity) for trial in before if not (disturbed(trial) or trial.cut)}
    fresh = [event.trial for event in trials(events) if not event.trial.reused]
    assert {(trial.candidate.id, trial.fidelity) for trial in fresh} & known == set()


def test_the_advisers_first_are_locked_without_a_measurement_and_replay(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    lock, events = compiled_by("first", warm, model, tmp_path)
    decode = next(plan for plan in lock.plan if plan.phase == "decode")
    assert lock.policy.choose == "first"
    assert {choice.decided_by for choice in decode.choices} == {"adviser"}
    assert all("not timed" in choice.reason for choice in decode.choices)
    assert not lock.evidence.regions
    assert not any(isinstance(event.trial.verdict, Measured) for event in trials(events))
    path = tmp_path / "first.lock.toml"
    before = path.read_bytes()
    # The same run gives the same bytes, and another rule is another run.
    run = tmp_path / "first"
    assert flows.verb(warm, "compile", "--resume", "--run-dir", run).code == 0
    assert path.read_bytes() == before
    other = flows.verb(warm, "compile", "--resume", "--run-dir", run, "--choose", "isolated")
    other.refuses(2, "--choose: 'isolated', but the run to resume has 'first'")
    replayed = flows.verb(warm, "replay", path, "--model", model, "--threads", flows.THREADS, "--locked")
    assert replayed.code == 0, replayed.err
    assert "untimed (choose = first)" in replayed.err


def test_no_kernel_at_all_is_a_lock_of_single_operators(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    lock, events = compiled_by("pytorch", warm, checkpoint("tiny-qwen3", "fp32"), tmp_path)
    assert not trials(events)
    decode = next(plan for plan in lock.plan if plan.phase == "decode")
    assert {choice.use for choice in decode.choices} == {"fallback"}
    kinds = {choice.name.partition("@")[0] for choice in decode.choices}
    assert {"linear", "attention", "rmsnorm", "silu", "mul"} <= kinds
    assert any("choose = pytorch" in choice.reason for choice in decode.choices)


@pytest.mark.parametrize("rule", ["", "fastest"])
def test_a_rule_that_there_is_not_is_refused_with_those_that_there_are(warm: Path, rule: str) -> None:
    refused = flows.verb(warm, "compile", flows.SAMPLE, "--choose", rule)
    refused.refuses(2, "--choose", "pytorch or first or isolated or admitted")
