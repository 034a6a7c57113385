"""The lock on disk: same content, same bytes; every way it can be broken is named with a remedy."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.target import Target
from agentcompile.lockfile.drift import ModelFacts, drift
from agentcompile.lockfile.files import content_hash, read_lock, render_lock, reserve_lock, write_file, write_lock
from agentcompile.lockfile.schema import (
    Evidence,
    Lock,
    LockChoice,
    LockModel,
    LockPlan,
    LockPolicy,
    LockTarget,
    RegionEvidence,
)

TARGET = Target(
    kind="cpu",
    device="A CPU",
    arch="x86_64",
    isa=("avx2", "avx512f", "fma"),
    threads=2,
    cache_bytes=(48 << 10, 1 << 20, 32 << 20),
    toolchain="g++ 12.2.0",
    libraries=(("torch", "2.13.0"),),
)
FACTS = ModelFacts(config="c" * 64, graphs={"decode": "d" * 64}, weights="e" * 64)


def a_lock() -> Lock:
    """A small lock with one kernel and one fallback."""
    kernel = LockChoice(
        region="a" * 64,
        name="rmsnorm-linear@aaaaaa",
        sites=6,
        use="kernel",
        template="rmsnorm-linear/rows",
        template_digest="b" * 64,
        params={"ROWS": 4, "AHEAD": 4096},
        source="f" * 64,
        decided_by="measured",
    )
    fallback = LockChoice(
        region="9" * 64,
        name="add@999999",
        sites=1,
        use="fallback",
        params={},
        decided_by="fallback",
        reason="no template",
    )
    evidence = RegionEvidence(
        region="a" * 64,
        median_ns=1200,
        baseline_ns=9000,
        baseline="pytorch",
        log_ratio="2.0149",
        half_width="0.0100",
        error_ratio="0.71",
        samples="7" * 64,
    )
    return Lock(
        target=LockTarget.of(TARGET),
        model=LockModel(
            name="sample",
            architecture="Qwen3ForCausalLM",
            dtype="bf16",
            context=2048,
            config=FACTS.config,
            graphs=dict(FACTS.graphs),
            weights=FACTS.weights,
        ),
        policy=LockPolicy(digest="5" * 64, settings={"error-ratio": "1.25"}),
        layouts={"model.layers.0.mlp.down_proj.weight": "rows16-k2"},
        plan=(LockPlan(phase="decode", batch=1, context=(1, 2048), exact=True, choices=(kernel, fallback)),),
        evidence=Evidence(regions=(evidence,)),
    )


def test_a_lock_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    write_lock(path, a_lock())
    assert replace(read_lock(path), content_hash="", evidence_hash="") == a_lock()


def test_the_same_lock_gives_the_same_bytes_whatever_order_its_tables_were_made_in() -> None:
    lock = a_lock()
    shuffled = replace(lock, target=replace(lock.target, libraries=dict(reversed(lock.target.libraries.items()))))
    assert render_lock(lock) == render_lock(shuffled)


def test_evidence_does_not_enter_the_content_hash() -> None:
    lock = a_lock()
    assert content_hash(lock) == content_hash(replace(lock, evidence=Evidence()))
    assert content_hash(lock) != content_hash(replace(lock, layouts={}))


def test_the_target_survives_the_lock_with_its_digest() -> None:
    assert LockTarget.of(TARGET).target().digest == TARGET.digest


def test_an_edited_lock_is_drift_and_names_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    write_lock(path, a_lock())
    path.write_text(path.read_text().replace("ROWS = 4", "ROWS = 8"))
    with pytest.raises(AgentCompileError, match="content-hash") as caught:
        read_lock(path)
    assert caught.value.exit_code is ExitCode.DRIFT


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("lock-version = 1", "lock-version = 2", "lock-version: 2 is not 1"),
        ("lock-version = 1", "other = 1", "lock-version: missing"),
        ('use = "kernel"', 'use = "magic"', r"plan\[0\].choices\[0\].use: 'magic'"),
        ("sites = 6", 'sites = "six"', r"plan\[0\].choices\[0\].sites: expected int"),
        ('dtype = "bf16"', 'dtype = "bf16"\nsurprise = 1', "model.surprise: unknown key"),
        ("exact = true\n", "", r"plan\[0\].exact: missing"),
    ],
)
def test_a_broken_lock_is_refused_with_the_key_and_the_value(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "a.lock.toml"
    text = render_lock(a_lock()).decode()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(AgentCompileError, match=says) as caught:
        read_lock(path)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint


def test_a_lock_cut_at_any_byte_is_refused_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    data = render_lock(a_lock())
    for end in range(0, len(data) - 1, 97):
        path.write_bytes(data[:end])
        with pytest.raises(AgentCompileError):
            read_lock(path)


def test_a_greater_revision_is_read_without_its_new_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    text = render_lock(a_lock()).decode().replace("revision = 1", "revision = 2")
    path.write_text(text + "\n[later]\nkey = 1\n")
    with pytest.raises(AgentCompileError, match="content-hash"):  # the revision is part of the content
        read_lock(path)
    sealed = replace(a_lock(), revision=2)
    path.write_text(render_lock(sealed).decode() + "\n[later]\nkey = 1\n")
    assert read_lock(path).revision == 2


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="no such lock") as caught:
        read_lock(tmp_path / "none.lock.toml")
    assert "agentcompile compile" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentCompileError) as caught:
        write_lock(tmp_path / "file" / "a.lock.toml", a_lock())
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_the_same_machine_and_model_have_no_drift() -> None:
    assert drift(a_lock(), TARGET, FACTS) == ()


@pytest.mark.parametrize(
    ("target", "field", "grade"),
    [
        (replace(TARGET, device="Another CPU"), "target.device", "remeasure"),
        (replace(TARGET, isa=("avx2", "fma")), "target.isa", "refuse"),
        (replace(TARGET, isa=("avx2", "avx512_bf16", "avx512f", "fma")), "target.isa", "remeasure"),
        (replace(TARGET, arch="aarch64"), "target.arch", "refuse"),
        (replace(TARGET, toolchain="g++ 13.1.0"), "target.toolchain", "rebuild"),
        (replace(TARGET, libraries=(("torch", "2.12.0"),)), "target.libraries.torch", "rebuild"),
        (replace(TARGET, libraries=()), "target.libraries.torch", "rebuild"),
        (replace(TARGET, threads=8), "target.threads", "remeasure"),
    ],
)
def test_each_field_of_the_machine_has_its_grade(target: Target, field: str, grade: str) -> None:
    (found,) = drift(a_lock(), target, FACTS)
    assert (found.field, found.grade) == (field, grade)
    assert found.remedy
    assert found.locked != found.here


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, config="0" * 64),
        replace(FACTS, graphs={"decode": "0" * 64}),
        replace(FACTS, weights="0" * 64),
        replace(FACTS, graphs={**FACTS.graphs, "prefill": "0" * 64}),
    ],
)
def test_another_model_is_refused(facts: ModelFacts) -> None:
    (found,) = drift(a_lock(), TARGET, facts)
    assert found.grade == "refuse"
    assert "--model" in found.remedy


def test_a_lock_says_by_which_rule_it_chose_and_one_from_before_there_were_rules_keeps_its_hash(tmp_path: Path) -> None:
    usual = a_lock()
    other = replace(usual, policy=replace(usual.policy, choose="isolated"))
    assert content_hash(other) != content_hash(usual)
    for lock in (usual, other):
        write_lock(tmp_path / "a.lock.toml", lock)
        assert read_lock(tmp_path / "a.lock.toml").policy.choose == lock.policy.choose
    text = render_lock(usual).decode()
    assert 'choose = "admitted"' in text
    (tmp_path / "old.lock.toml").write_text(text.replace('choose = "admitted"\n', ""))
    assert read_lock(tmp_path / "old.lock.toml").policy.choose == "admitted"
    (tmp_path / "edited.lock.toml").write_text(render_lock(other).decode().replace('"isolated"', '"admitted"'))
    with pytest.raises(AgentCompileError, match="content-hash"):
        read_lock(tmp_path / "edited.lock.toml")


def test_how_prompts_run_is_in_the_hash_and_a_lock_from_before_runs_as_usual(tmp_path: Path) -> None:
    path, before = tmp_path / "a.lock.toml", a_lock()
    plan = replace(before.plan[0], phase="prefill")
    lock = replace(before, target=replace(before.target, kind="cpu", arch="x86_64"), plan=(plan,))
    own = replace(lock, plan=(replace(plan, chunk=128, steps_up_to=3),))
    assert len({content_hash(one) for one in (lock, own, replace(lock, plan=(replace(plan, chunk=128),)))}) == 3
    write_lock(path, own)
    assert (read_lock(path).plan[0].chunk, read_lock(path).plan[0].steps_up_to) == (128, 3)
    write_lock(path, lock)
    assert not re.search("^(chunk|steps-up-to) =", path.read_text(), re.MULTILINE)  # versions from before read it too
    assert (read_lock(path).plan[0].chunk, read_lock(path).plan[0].steps_up_to) == (0, 0)
    path.write_text(path.read_text().replace("exact =", "chunk = 0\nsteps-up-to = 0\nexact =", 1))  # once written so
    assert read_lock(path).plan[0].chunk == 0


def test_a_link_is_followed_a_pipe_is_written_to_and_a_directory_is_named(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_file(link, b"new")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    reserve_lock(pipe)
    write_file(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    for act in (reserve_lock, lambda path: write_file(path, b"")):
        with pytest.raises(AgentCompileError, match="a directory, not a file") as caught:
            act(tmp_path)
        assert caught.value.exit_code is ExitCode.USAGE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]
