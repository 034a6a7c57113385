"""Other ways to launch a candidate, each of which must leave the same bits as the plain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from agentcompile.validate.rig import Run

Serial = Callable[[Mapping[str, Tensor], bool], None]
"""A function that launches with one rank after another; True starts with the last rank."""


def serially(serial: Serial, backwards: bool, buffers: Mapping[str, Tensor]) -> None:
    """Launch with one rank after another."""
    serial(buffers, backwards)


def in_place(run: Run, output: str, source: str, buffers: Mapping[str, Tensor]) -> None:
    """Launch with one buffer as output and input, then put the result and the input into their own buffers."""
    before = buffers[source].clone()
    run({**buffers, output: buffers[source].view(buffers[output].shape)})
    buffers[output].copy_(buffers[source].view(buffers[output].shape))
    buffers[source].copy_(before)


def side_by_side(run: Run, pitched: Sequence[tuple[str, str]], tokens: int, buffers: Mapping[str, Tensor]) -> None:
    """Launch with the inputs of each pitch as columns of one matrix, with NaN columns between them."""
    views, spaces = dict(buffers), {space for _, space in pitched}
    for space in spaces:
        dense = {name: buffers[name].view(tokens, -1) for name, told in pitched if told == space}
        gap = min(tensor.shape[1] for tensor in dense.values())
        width = sum(tensor.shape[1] + gap for tensor in dense.values())
        first = next(iter(dense.values()))
        wide = torch.full((tokens, width), torch.nan, dtype=first.dtype, device=first.device)
        begin = 0
        for name, tensor in dense.items():
            views[name] = wide[:, begin : begin + tensor.shape[1]].copy_(tensor)
            begin += tensor.shape[1] + gap
        buffers[space].fill_(width)
    run(views)
    for space in spaces:
        buffers[space].zero_()
