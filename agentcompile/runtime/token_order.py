"""Attention's results token by token, where PyTorch reads them: the product behind them then copies nothing.

A kernel writes [1, heads, T, D]; a product wants [T, heads · D], and turning one into the other is a pass over memory.
Where a launch can write either order, the tensor keeps its shape and gets the strides of the other one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping

import torch

from agentcompile.ir.program import NativeCall, Program


def put_tokens_first(program: Program, env: MutableMapping[str, torch.Tensor]) -> None:
    """Lay out by token what launches can write so, where every reader is PyTorch; `env` holds tensors by buffer name.

    Launches that share the workspace which tells them the order change it together, or not at all.
    """
    fixed = {name for buffer in program.buffers if buffer.whole for name in (buffer.name, buffer.whole)}
    calls = [call for call in program.calls if isinstance(call, NativeCall)]
    passed = Counter(name for call in calls for name in call.pointers)
    made: dict[str, list[str]] = {}
    for call in calls:
        of = dict(zip(call.launch.arguments, call.pointers, strict=True))
        for name, space in call.launch.token_major:
            made.setdefault(of[space], []).append(of[name])
    for space, names in made.items():
        # A launch writes each of them and none reads it; no other launch reads the workspace.
        alone = all(passed[name] == 1 and name not in fixed for name in names)
        if alone and passed[space] == len(names) and all(env[name].dim() == 4 for name in names):
            for name in names:
                env[name] = _by_token(env[name])
            env[space].fill_(1)


def _by_token(dense: torch.Tensor) -> torch.Tensor:
    _, heads, tokens, width = dense.shape
    return dense.view(-1).view(1, tokens, heads, width).transpose(1, 2)
