"""A model's memory: what a step finds in the cache when it is timed."""

from __future__ import annotations

import pytest
import torch

from agentcompile.ir.graph import DType
from agentcompile.ir.program import Buffer, Program
from agentcompile.runtime import memory
from agentcompile.runtime.memory import Memory


def state(name: str, dtype: DType) -> Buffer:
    return Buffer(name=name, role="state", dtype=dtype, shape=(1, 2, 50, 32), tensor=name)


def test_a_furnished_cache_holds_normal_numbers_everywhere_and_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_FURNISHED", 1000)  # so that they repeat, and do not come out even
    program = Program(
        phase="decode",
        buffers=(
            Buffer(name="t", role="token", dtype="int64", shape=(1,)),
            state("k", "bf16"),
            state("v", "fp32"),
        ),
        calls=(),
        regions=(),
        arena_bytes=0,
        logits="t",
        position="t",
        token="t",
    )
    made = Memory([program], lambda name: torch.empty(0), {})
    made.furnish(seed=3)
    first = [tensor.clone() for tensor in made.states()]
    for tensor in first:
        assert tensor.float().mean().abs() < 0.1
        assert 0.9 < float(tensor.float().std()) < 1.1
        assert (tensor == 0).float().mean() < 0.01
    assert not torch.equal(first[0].float(), first[1].to(torch.bfloat16).float())
    for tensor in made.states():
        tensor.zero_()
    made.furnish(seed=3)
    assert all(torch.equal(one, other) for one, other in zip(first, made.states(), strict=True))
