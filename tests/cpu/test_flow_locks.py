"""What a lock promises: the same bytes, every difference named with its grade, nothing half-read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.events import LockWritten, PlanAdmitted
from agentcompile.ir.trial import Kernel
from agentcompile.lockfile.files import read_lock, render_lock
from agentcompile.lockfile.schema import Lock, LockChoice
from agentcompile.runs.session import RunDirectory
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.courses import Course

Make = Callable[[str, str], Path]


@pytest.fixture
def lock(planted: Make, tmp_path: Path) -> Path:
    """A copy of the tiny Qwen3's all-kernel lock, to spoil."""
    copy = tmp_path / "agentcompile.lock.toml"
    copy.write_bytes(planted("tiny-qwen3", "fp32").read_bytes())
    return copy


@pytest.fixture
def replay(warm: Path, checkpoint: Make) -> Callable[..., flows.Ended]:
    """`agentcompile replay` of a lock of the tiny Qwen3."""

    def run(lock: Path, *more: object) -> flows.Ended:
        model = checkpoint("tiny-qwen3", "fp32")
        threads = () if "--threads" in more else ("--threads", flows.THREADS)
        return flows.verb(warm, "replay", lock, "--model", model, *threads, *more)

    return run


def test_sealing_the_same_trials_twice_gives_the_same_bytes(warm: Path, checkpoint: Make, tmp_path: Path) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    made = [flows.plant(warm, model, CONTEXT, tmp_path / "a.lock.toml") for _ in range(2)]
    first, second = (render_lock(one.seal()) for one in made)
    assert first == second
    assert str(tmp_path).encode() not in first


def test_a_lock_holds_what_the_runs_events_say(compiled: Course) -> None:
    events = list(RunDirectory.open(compiled.run).events())
    plans = [event.plan for event in events if isinstance(event, PlanAdmitted)]
    admitted = [plan for plan in plans if plan.phase == "decode"][-1]
    written = [event for event in events if isinstance(event, LockWritten)][-1]
    lock = read_lock(compiled.lock)
    assert written.digest == lock.content_hash
    (decode,) = (plan for plan in lock.plan if plan.phase == "decode")
    expected = {
        (part.region, part.choice.source if isinstance(part.choice, Kernel) else "", part.choice.kind)
        for part in admitted.parts
    }
    assert {(choice.region, choice.source, choice.use) for choice in decode.choices} == expected


def test_a_check_builds_nothing_and_says_that_the_lock_holds(replay: Any, lock: Path) -> None:
    done = replay(lock, "--check", "--events", "jsonl")
    assert done.code == 0, done.err
    stages = [event["stage"] for event in done.events if event["kind"] == "stage-started"]
    assert "rebuild" not in stages


def test_a_lock_edited_by_hand_is_refused(replay: Any, lock: Path) -> None:
    text = lock.read_text()
    assert f"context = {CONTEXT}\n" in text
    lock.write_text(text.replace(f"context = {CONTEXT}\n", f"context = {CONTEXT + 1}\n", 1))
    replay(lock).refuses(3, str(lock), "content-hash")


def test_a_lock_of_a_newer_version_is_refused(replay: Any, lock: Path) -> None:
    lock.write_text(lock.read_text().replace("lock-version = 1\n", "lock-version = 2\n"))
    replay(lock).refuses(2, str(lock), "lock-version: 2", "newer agentcompile")


@pytest.mark.parametrize("part", [0.02, 0.5, 0.97])
def test_a_lock_that_was_cut_off_is_refused(part: float, replay: Any, lock: Path) -> None:
    data = lock.read_bytes()
    lock.write_bytes(data[: int(len(data) * part)])
    replay(lock).refuses(2, str(lock))


def test_a_lock_that_is_not_there_is_refused(replay: Any, tmp_path: Path) -> None:
    replay(tmp_path / "gone.lock.toml").refuses(2, "gone.lock.toml", "agentcompile compile")


DRIFT: list[tuple[str, dict[str, Any], str, str]] = [
    ("device", {"device": "another processor"}, "target.device", "remeasure"),
    ("toolchain", {"toolchain": "g++ 1.2.3"}, "target.toolchain", "rebuild"),
    ("library", {"libraries": {"torch": "1.2.3"}}, "target.libraries.torch", "rebuild"),
    ("arch", {"arch": "riscv64"}, "target.arch", "refuse"),
    ("isa", {"isa": ("avx10", "avx2")}, "target.isa", "refuse"),
]


@pytest.mark.parametrize(("field", "grade", "change"), [(f, g, c) for _, c, f, g in DRIFT], ids=[n for n, *_ in DRIFT])
def test_a_lock_of_another_machine_says_what_differs_and_how_gravely(
    field: str, grade: str, change: dict[str, Any], replay: Any, lock: Path
) -> None:
    flows.rewrite(read_lock(lock), lock, target=change)
    done = replay(lock, "--check", "--json")
    if grade == "refuse":
        done.refuses(3, field, "agentcompile compile")
        return
    assert done.code == 0, done.err
    rows = {row["field"]: row for row in json.loads(done.out)["drift"]}
    assert rows[field]["grade"] == grade
    assert rows[field]["remedy"]
    assert field in done.err


def test_any_drift_is_refused_when_the_lock_must_hold_exactly(replay: Any, lock: Path) -> None:
    flows.rewrite(read_lock(lock), lock, target={"toolchain": "g++ 1.2.3"})
    replay(lock, "--locked").refuses(3, "target.toolchain", "g++ 1.2.3")


def test_on_a_machine_of_more_threads_kernels_run_on_as_many_as_they_were_made_for(replay: Any, lock: Path) -> None:
    done = replay(lock, "--threads", flows.THREADS + 1)
    assert done.code == 0, done.err
    assert f"--threads {flows.THREADS}" in done.err


def test_another_number_of_threads_is_drift_with_the_flag_that_repairs_it(replay: Any, lock: Path) -> None:
    done = replay(lock, "--check", "--threads", flows.THREADS + 1)
    assert done.code == 0, done.err
    assert f"--threads {flows.THREADS}" in done.err


def test_a_lock_of_another_toolchain_is_rebuilt_and_runs(replay: Any, lock: Path) -> None:
    flows.rewrite(read_lock(lock), lock, target={"toolchain": "g++ 1.2.3"})
    done = replay(lock)
    assert done.code == 0, done.err
    assert "1 drifted fields" in done.out


def test_a_kernel_that_does_not_build_here_is_named_with_the_compilers_words(
    lock: Path, checkpoint: Make, tmp_path: Path
) -> None:
    """A compiler without its linker, and a store that has nothing built."""
    import shutil

    alone = {"PATH": "", "AGENTCOMPILE_COMPILER": str(shutil.which("g++"))}
    model = checkpoint("tiny-qwen3", "fp32")
    done = flows.verb(tmp_path / "home", "replay", lock, "--model", model, "--threads", flows.THREADS, env=alone)
    done.refuses(6, "build-failed", "ld")


def test_other_weights_of_the_same_shape_are_refused(warm: Path, lock: Path, tmp_path: Path) -> None:
    from bench.models.presets import materialise

    other = materialise("tiny-qwen3", tmp_path / "other", dtype="fp32", seed=1)
    done = flows.verb(warm, "replay", lock, "--model", other, "--threads", flows.THREADS)
    done.refuses(3, "model.weights", "--model")


def test_another_architecture_is_refused(warm: Path, lock: Path, checkpoint: Make) -> None:
    done = flows.verb(warm, "replay", lock, "--model", checkpoint("tiny-llama", "fp32"), "--threads", flows.THREADS)
    done.refuses(3, "model.config")


def test_a_lock_whose_checkpoint_has_moved_asks_for_it(warm: Path, lock: Path) -> None:
    found = read_lock(lock)
    flows.rewrite(found, lock, model=replace(found.model, location="gone/checkpoint"))
    flows.verb(warm, "replay", lock).refuses(2, found.model.config[:12], "--model")


def _choice(lock: Lock, **fields: Any) -> Lock:
    """The lock with its first kernel of the decode plan changed."""
    decode = next(plan for plan in lock.plan if plan.phase == "decode")
    at = next(i for i, choice in enumerate(decode.choices) if choice.use == "kernel")
    choices = list(decode.choices)
    choices[at] = replace(choices[at], **fields)
    return _with(lock, choices)


def _with(lock: Lock, choices: list[LockChoice]) -> Lock:
    return replace(
        lock,
        plan=tuple(replace(plan, choices=tuple(choices)) if plan.phase == "decode" else plan for plan in lock.plan),
    )


DECISIONS: dict[str, tuple[dict[str, Any], str]] = {
    "template": ({"template": "linear/gone"}, "linear/gone"),
    "source": ({"source": "0" * 64}, "000000000000"),
    "region": ({"region": "f" * 64}, "no region"),
}


@pytest.mark.parametrize("what", DECISIONS)
def test_a_decision_that_no_longer_exists_is_drift(what: str, replay: Any, lock: Path) -> None:
    fields, word = DECISIONS[what]
    flows.rewrite(_choice(read_lock(lock), **fields), lock)
    replay(lock).refuses(3, str(lock), word)


def test_a_plan_with_a_hole_is_drift(replay: Any, lock: Path) -> None:
    found = read_lock(lock)
    decode = next(plan for plan in found.plan if plan.phase == "decode")
    flows.rewrite(_with(found, list(decode.choices[1:])), lock)
    replay(lock).refuses(3, str(lock), "plan")


def test_parameters_outside_the_template_are_drift(replay: Any, lock: Path) -> None:
    found = read_lock(lock)
    decode = next(plan for plan in found.plan if plan.phase == "decode")
    choice = next(choice for choice in decode.choices if choice.params)
    params = {name: 3_000_001 if isinstance(value, int) else "x" for name, value in choice.params.items()}
    flows.rewrite(_with(found, [replace(c, params=params) if c is choice else c for c in decode.choices]), lock)
    replay(lock).refuses(3, str(lock))
