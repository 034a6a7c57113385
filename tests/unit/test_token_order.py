"""Attention's results token by token: where only PyTorch reads them, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import torch

from agentcompile.ir.program import Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.template import Launch
from agentcompile.runtime.token_order import put_tokens_first

HEADS, TOKENS, WIDTH = 3, 5, 4
SHAPE = (1, HEADS, TOKENS, WIDTH)
ATTEND = Launch(entry="attend", arguments=("q", "y", "order"), token_major=(("y", "order"),))


def attend(layer: int) -> NativeCall:
    return NativeCall(region="", source="s", launch=ATTEND, pointers=("q", f"y{layer}", "order"))


def project(layer: int) -> TorchCall:
    return TorchCall(region="", bindings=(("x", f"y{layer}"), ("y", f"o{layer}")))


def read(layer: int) -> NativeCall:
    """A kernel that reads a layer's results, head by head."""
    launch = Launch(entry="read", arguments=("x",))
    return NativeCall(region="", source="r", launch=launch, pointers=(f"y{layer}",))


def program(*calls: NativeCall | TorchCall, logits: str = "l") -> Program:
    names = dict.fromkeys(name for call in calls for name in call.uses)
    buffers = tuple(Buffer(name=name, role="activation", dtype="fp32", shape=SHAPE) for name in names)
    return Program(
        phase="prefill",
        buffers=buffers,
        calls=calls,
        regions=(),
        arena_bytes=0,
        token="t",
        position="p",
        logits=logits,
    )


def placed(of: Program) -> dict[str, torch.Tensor]:
    env = {buffer.name: torch.zeros(SHAPE) for buffer in of.buffers}
    env["order"] = torch.zeros(1, dtype=torch.int64)
    put_tokens_first(of, env)
    return env


def by_token(tensor: torch.Tensor) -> bool:
    """Whether the product behind attention, which reads [T, heads · width], needs no copy."""
    turned = tensor.transpose(1, 2)
    assert tensor.shape == SHAPE
    return turned.is_contiguous() and turned.reshape(TOKENS, -1).data_ptr() == tensor.data_ptr()


def test_what_pytorch_reads_lies_by_token_in_the_same_memory() -> None:
    of = program(attend(0), project(0), attend(1), project(1))
    env = placed(of)
    assert by_token(env["y0"])
    assert by_token(env["y1"])
    assert int(env["order"]) == 1
    env["y1"].copy_(torch.arange(env["y1"].numel()).view(SHAPE))
    assert env["y1"][0, 2, 3, 1] == (2 * TOKENS + 3) * WIDTH + 1


def test_a_kernel_that_reads_one_keeps_all_that_are_told_together_head_by_head() -> None:
    env = placed(program(attend(0), project(0), attend(1), read(1)))
    assert not any(by_token(env[name]) for name in ("y0", "y1"))
    assert int(env["order"]) == 0


def test_what_is_only_a_part_of_another_buffer_stays_as_it_is() -> None:
    of = program(attend(0), project(0))
    parts = tuple(replace(buffer, whole="all") if buffer.name == "y0" else buffer for buffer in of.buffers)
    env = placed(replace(of, buffers=parts))
    assert not by_token(env["y0"])
    assert int(env["order"]) == 0


def test_launches_that_cannot_are_left_alone() -> None:
    plain = replace(ATTEND, token_major=())
    env = placed(program(replace(attend(0), launch=plain), project(0)))
    assert not by_token(env["y0"])
