"""Recipes for GPU locks, as far as a host can show them: their sums, their refusals, and the one that runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.ir.target import Ceiling
from bench.figures import firsts, long
from bench.harness.serving import ArmFailed
from tests.cpu import flows
from tests.cpu.conftest import SAMPLE_CONTEXT

Make = Callable[[str, str], Path]


def test_logits_at_checkpoints_are_as_near_fp32_as_pytorchs(
    warm: Path, planted: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    out = tmp_path / "long.json"
    lock = planted("sample", "bf16")
    asked = [str(lock), "--model", str(flows.SAMPLE), "--target", "cpu", "--out", str(out)]
    assert long.run([*asked, "--checkpoints", "0,40,95"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"next: agentcompile verify {lock} --model {flows.SAMPLE} --prompts FILE"
    found = json.loads(out.read_text())
    assert [row["position"] for row in found["checkpoints"]] == [0, 40, 95]
    for row in found["checkpoints"]:
        assert 0 < row["error"] < 3 * row["eager_error"] < 0.1
        assert 0 <= row["kl"] < 0.01
    assert str(tmp_path) not in out.read_text()
    with pytest.raises(AgentCompileError, match=f"past the cache of {SAMPLE_CONTEXT}") as refused:
        long.run([*asked, "--checkpoints", "0,96"])
    assert "--context 97" in refused.value.hint


class Arm:
    """Answers in a time of its own, and dies at the prompt length `dies`."""

    def __init__(self, name: str, seconds: float, dies: int = 0) -> None:
        self.name, self.seconds, self.dies, self.asked = name, seconds, dies, 0

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        self.asked += 1
        if len(request["ids"]) == self.dies:
            raise ArmFailed("killed by signal 9")
        return {"first_s": [self.seconds * len(request["ids"])] * 3, "tokens": [7, 8]}


def rounds_of(arms: Sequence[Any], reasons: dict[str, str]) -> dict[int, firsts.Rounds]:
    return {length: firsts._rounds(list(arms), length, [1] * length, 5, 0, reasons) for length in (4, 8)}


def test_first_tokens_are_compared_round_by_round() -> None:
    arms, reasons = [Arm("agentcompile", 0.001), Arm("static-max-autotune", 0.002)], dict[str, str]()
    found = rounds_of(arms, reasons)
    assert not reasons
    row = firsts._summary(found[8])["static-max-autotune"]
    assert row["median_ms"] == pytest.approx(16.0)
    assert row["time_over_ours"].startswith("2.000")
    assert row["tokens"] == [7]
    assert len(row["first_ms"]) == 10
    assert firsts._summary(found[8])["agentcompile"]["time_over_ours"] == ""


def test_an_arm_that_dies_is_a_reason_and_the_others_go_on() -> None:
    arms, reasons = [Arm("agentcompile", 0.001), Arm("hf-eager", 0.003, dies=8)], dict[str, str]()
    found = rounds_of(arms, reasons)
    assert reasons == {"hf-eager": "a prompt of 8 tokens: killed by signal 9"}
    assert "hf-eager" in firsts._summary(found[4])
    assert list(firsts._summary(found[8])) == ["agentcompile"]


class Stopped(Arm):
    """Is interrupted at the prompt length `dies`, as by Ctrl-C; it has nothing to close."""

    facts: Mapping[str, Any] = {}

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if len(request["ids"]) == self.dies:
            raise KeyboardInterrupt
        return super().ask(request, limit_s)

    def close(self) -> None:
        pass


def test_a_run_that_is_stopped_keeps_the_lengths_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 256}', encoding="utf-8")
    monkeypatch.setattr(firsts, "checkpoint", lambda name, cache: tmp_path)
    monkeypatch.setattr(firsts, "work_of", lambda model: None)
    ceiling = Ceiling(cache_bytes_per_s=1, dram_bytes_per_s=1, flops_per_s=1)
    monkeypatch.setattr(firsts, "_ceiling", lambda machine, seed: ceiling)
    monkeypatch.setattr(firsts, "_loaded", lambda name, *rest: (Stopped(name, 0.001, dies=16), 1.0))
    lock, out = flows.ROOT / "bench" / "results" / "sample.lock.toml", tmp_path / "firsts.json"
    words = [str(lock), "--model", str(tmp_path), "--target", "cpu", "--prompts", "8,16", "--out", str(out)]
    with pytest.raises(KeyboardInterrupt):
        firsts.run([*words, "--arms", "hf-eager,agentcompile"])
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["prompts"]) == ["8"]
    assert found["prompts"]["8"]["agentcompile"]["median_ms"] == pytest.approx(8.0)


def test_the_arms_of_first_tokens_are_those_of_the_device(tmp_path: Path) -> None:
    words = ["x.toml", "--model", str(tmp_path), "--target", "cpu", "--out", str(tmp_path / "o.json")]
    with pytest.raises(AgentCompileError, match=r"static-reduce-overhead: on cpu: hf-eager, .*llama.cpp"):
        firsts.run([*words, "--arms", "hf-eager,static-reduce-overhead"])
    with pytest.raises(SystemExit):
        firsts.run(["x.toml", "--model", str(tmp_path), "--arms", "vllm", "--out", str(tmp_path / "o.json")])
