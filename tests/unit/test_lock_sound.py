"""What no compiler writes into a lock is refused when it is read, however well it was sealed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_lockfile import TARGET, a_lock

from agentcompile.checkpoint.names import misplaced
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.lockfile.drift import drift
from agentcompile.lockfile.files import read_lock, render_lock, write_lock
from agentcompile.lockfile.schema import Lock, PromptEvidence


def refusal(path: Path) -> AgentCompileError:
    with pytest.raises(AgentCompileError) as caught:
        read_lock(path)
    assert caught.value.hint
    return caught.value


def choice(lock: Lock, number: int, **fields: object) -> Lock:
    plan = lock.plan[0]
    choices = [replace(one, **fields) if i == number else one for i, one in enumerate(plan.choices)]  # type: ignore[arg-type]
    return replace(lock, plan=(replace(plan, choices=tuple(choices)),))


TIMED = PromptEvidence(tokens=2, chunk=0, median_ns=2, baseline_ns=4, log_ratio="0.6931", half_width="0.0100")


def prompts(lock: Lock, **fields: object) -> Lock:
    """A lock for a CPU whose plan is of prompts, with other lengths."""
    plan = replace(lock.plan[0], **{"phase": "prefill", **fields})  # type: ignore[arg-type]
    return replace(lock, target=replace(lock.target, kind="cpu", arch="x86_64"), plan=(plan,))


def test_lengths_of_prompts_on_a_gpu_are_refused(tmp_path: Path) -> None:
    path, lock = tmp_path / "a.lock.toml", prompts(a_lock(), chunk=128)
    assert lock.target.kind == "cpu"
    write_lock(path, lock)
    assert read_lock(path).plan[0].chunk == 128
    write_lock(path, replace(lock, target=replace(lock.target, kind="cuda", arch="sm_90a")))
    assert "plan[0].chunk: 128, where 0 is: it is for prompts on a CPU" in refusal(path).message


SEALED: dict[str, Callable[[Lock], Lock]] = {
    "target.threads": lambda lock: replace(lock, target=replace(lock.target, threads=100_000)),
    "target.arch": lambda lock: replace(lock, target=replace(lock.target, arch="/bin/sh")),
    "model.context": lambda lock: replace(lock, model=replace(lock.model, context=1 << 30)),
    "model.dtype": lambda lock: replace(lock, model=replace(lock.model, dtype="fp8")),
    "model.location": lambda lock: replace(lock, model=replace(lock.model, location="/etc")),
    "model.config": lambda lock: replace(lock, model=replace(lock.model, config="x")),
    "policy.digest": lambda lock: replace(lock, policy=replace(lock.policy, digest="")),
    "plan[0].batch": lambda lock: replace(lock, plan=(replace(lock.plan[0], batch=0),)),
    "plan[0].context[1]": lambda lock: replace(lock, plan=(replace(lock.plan[0], context=(1, 4096)),)),
    "plan[0].choices[0].at": lambda lock: choice(lock, 0, at=(1, 1)),
    "plan[0].choices[0].source": lambda lock: choice(lock, 0, source="0"),
    "plan[0].choices[1]": lambda lock: choice(lock, 1, params={"ROWS": 4}),
    "plan[0].chunk: 9000 is not in 1 … 2048": lambda lock: prompts(lock, chunk=9000),
    "plan[0].chunk: -1": lambda lock: prompts(lock, chunk=-1),
    "plan[0].steps-up-to: 256 is not in 0 … 64": lambda lock: prompts(lock, steps_up_to=256),
    "plan[0].steps-up-to: 16 is not in 0 … 15": lambda lock: prompts(lock, chunk=16, steps_up_to=16),
    "plan[0].steps-up-to: -1": lambda lock: prompts(lock, steps_up_to=-1),
    "plan[0].steps-up-to: 2, where 0 is": lambda lock: prompts(lock, phase="decode", steps_up_to=2),
    "evidence[1].log-ratio": lambda lock: replace(
        lock, evidence=replace(lock.evidence, prompts=(replace(TIMED, log_ratio="fast"),))
    ),
    "evidence": lambda lock: replace(
        lock, evidence=replace(lock.evidence, regions=(replace(lock.evidence.regions[0], median_ns=-1),))
    ),
    "bits": lambda lock: replace(lock, target=replace(lock.target, cache_bytes=(1 << 70,))),
}


@pytest.mark.parametrize("key", SEALED)
def test_a_sealed_lock_with_a_value_that_no_compiler_writes_is_refused_by_its_key(key: str, tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    write_lock(path, SEALED[key](a_lock()))
    error = refusal(path)
    assert error.exit_code is ExitCode.USAGE
    assert key in error.message


@pytest.mark.parametrize(
    "location",
    [
        "/x",
        "~",
        "~root/x",
        "../../../../x",
        "a/../b",
        "./a",
        "a//b",
        "a/",
        "\0",
        "preset:",
        "preset:../x",
        "a\\b",
        "a\n",
    ],
)
def test_a_location_that_is_not_near_the_lock_is_refused(location: str) -> None:
    assert misplaced(location)


@pytest.mark.parametrize("location", ["", "preset:tiny-qwen3", "model", "../models/sample", "../../../a b/c"])
def test_a_location_near_the_lock_is_taken(location: str) -> None:
    assert not misplaced(location)


HOSTILE = {
    "deep lists": b"a = " + b"[" * 100_000,
    "deep tables": b"a = " + b"{b=" * 50_000,
    "a key of many parts": b"a." * 500_000 + b"a = 1",
    "a header of many parts": b"[" + b"a." * 500_000 + b"a]",
    "many headers of many parts": b"\n".join(b"[" + b"a." * 1000 + b"a%d]" % i for i in range(1000)),
    "a number of many digits": b"lock-version = " + b"9" * 60_000,
    "a hexadecimal number of many digits": b"lock-version = 0x" + b"f" * 60_000,
    "long keys in a string that looks closed": b"a = ['''x'\n\"''', {" + b"a." * 30_000 + b'a = 1}] # "',
    "long keys beside strings": b'"x".' * 10_000 + b"a = 1",
    "too many bytes": b"#" * (9 << 20),
    "many bytes": b"#\n" * (3 << 20),
    "no text": b"\xff\xfe\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_texts_are_refused_in_seconds(what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    path.write_bytes(HOSTILE[what])
    begin = time.process_time()
    assert refusal(path).exit_code is ExitCode.USAGE
    assert time.process_time() - begin < 5.0, "far above what it takes: it must not grow with the square"


def test_evidence_that_was_edited_is_drift_and_names_its_own_hash(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    text = render_lock(a_lock()).decode()
    median = f"median-ns = {a_lock().evidence.regions[0].median_ns}"
    assert median in text
    path.write_text(text.replace(median, "median-ns = 1"))
    error = refusal(path)
    assert (error.exit_code, "evidence-hash" in error.message) == (ExitCode.DRIFT, True)


def test_only_a_lock_from_before_evidence_had_a_hash_may_lack_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"

    def without_hash(lock: Lock) -> bytes:
        return b"\n".join(line for line in render_lock(lock).split(b"\n") if not line.startswith(b"evidence-hash"))

    path.write_bytes(without_hash(a_lock()))
    assert refusal(path).exit_code is ExitCode.DRIFT
    path.write_bytes(without_hash(replace(a_lock(), revision=0)))
    assert read_lock(path).evidence == a_lock().evidence


def test_another_policy_is_drift_that_validating_again_repairs() -> None:
    (found,) = drift(a_lock(), TARGET, policy="0" * 64)
    assert (found.field, found.grade) == ("policy.digest", "rebuild")
    assert not drift(a_lock(), TARGET, policy=a_lock().policy.digest)
