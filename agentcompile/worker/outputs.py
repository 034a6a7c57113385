"""Comparison of the outputs of timed launches with PyTorch's: a kernel that is fast by skipping work is wrong.

The bound is wide, because the correctness suite has checked the arithmetic; results for other inputs, or for none, are
far outside it. The comparison takes a small share of the time, between samples, and no kernel knows after which.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentcompile.ir.graph import Graph
from agentcompile.ir.trial import Check
from agentcompile.ops.reference import Interpreter
from agentcompile.worker.activations import HeldLaunch
from agentcompile.worker.inputs import Inputs
from agentcompile.worker.protocol import WrongOutput

CHECK = "timed-output"
_ROW, _OWN, _TINY = 0.4, 0.1, 1e-30
"""An element may be off by `_ROW` of its row's root mean square plus `_OWN` of itself.

Among millions of elements a few of attention's are off by 0.17 of it, as queries and keys are rounded to bf16.
"""
_OFF, _LONG = 0.15, 64
"""The error of a row of `_LONG` elements or more may have this share of the row's root mean square; 0.07 was seen."""
_LOGITS = "logits of "
_SHARE, _ALWAYS = 0.04, 3
"""The share of an arm's time that comparing may take, and how many samples are always compared."""


class Witness:
    """A checker of samples of one arm, which reads its weights in `layouts`."""

    def __init__(self, inputs: Inputs, layouts: Mapping[str, str], index: int) -> None:
        self._inputs, self._index = inputs, index
        self._body = _with_logits(inputs.region.body)
        self._reference = Interpreter(self._body)
        self._layouts, self._weights = layouts, dict[str, Tensor]()
        self._states = [port.name for port in inputs.region.ports if port.access == "append"]
        self._begun, self._spent, self._done = time.monotonic(), 0.0, 0

    @property
    def due(self) -> bool:
        """Whether the sample that just ended should be compared."""
        return self._done < _ALWAYS or self._spent < _SHARE * (time.monotonic() - self._begun)

    def examine(self, seen: Sequence[HeldLaunch], first: int, batch: int) -> None:
        """Compare the launches of a sample whose outputs still exist, last first; `first` is its first slot.

        Raises:
            WrongOutput: a launch is wrong.
        """
        begin, count = time.monotonic(), self._inputs.slots.count
        for one in reversed(seen if self._done < _ALWAYS else seen[-2:]):
            slot = (first + one.launch) % count
            where = f"launch {one.launch + 1} of {batch} in a timed sample"
            self.compare(self._inputs.outputs.at(one.output), one.window, slot, where, last=one.launch + count >= batch)
        self._spent += time.monotonic() - begin
        self._done += 1

    def compare(self, found: Mapping[str, Tensor], window: int, slot: int, where: str, *, last: bool) -> None:
        """Compare outputs `found`, by port, with PyTorch's; `last`: no later launch wrote the slot's states.

        Raises:
            WrongOutput: an output or a cache entry is outside the bound.
        """
        inputs = {**self._inputs.windows.at(window), **self._inputs.read(slot)}
        if not self._weights:
            self._weights = self._inputs.dense(self._layouts)
        written = {name: self._newest(inputs, name).clone() for name in self._states} if last else {}
        made = self._reference({**inputs, **self._weights})
        for name, y in found.items():
            if name in dict(self._inputs.region.body.outputs):
                self._hold(name, y, made, where)
        for name, entry in written.items():
            self._bounded(name, entry, self._newest(inputs, name), where)

    def _newest(self, inputs: Mapping[str, Tensor], name: str) -> Tensor:
        """Return the slots of a cache [B, heads, context, D] that the launch appended to."""
        state, nodes = inputs[name], self._inputs.region.body.nodes
        (append, *_) = (node for node in nodes if node.op == "cache_append" and node.inputs[0].value == name)
        at = inputs[append.inputs[-1].value].view(-1)
        if state.shape[0] == 1:
            return state[:, :, at]
        return state[torch.arange(state.shape[0], device=state.device), :, at]

    def _hold(self, name: str, y: Tensor, made: Mapping[str, Tensor], where: str) -> None:
        if y.is_floating_point():
            self._bounded(name, y, made[name].reshape(y.shape), where)
        elif (logits := made.get(_LOGITS + name)) is not None:
            self._chosen(name, y, logits, where)
        elif not torch.equal(y, made[name].reshape(y.shape)):
            self._fail(1.0, 0.0, f"{where}: {name} is not the index expected")

    def _bounded(self, name: str, y: Tensor, r: Tensor, where: str) -> None:
        y, r = y.double(), r.double()
        same = torch.equal(y.isfinite(), r.isfinite())
        y, r = y.nan_to_num(0.0, 0.0, 0.0), r.nan_to_num(0.0, 0.0, 0.0)
        off, rms = (y - r).abs(), r.square().mean(-1, keepdim=True).sqrt()
        share = off / (_OWN * r.abs() + _ROW * rms + _TINY)
        if y.shape[-1] >= _LONG:
            rows = off.square().mean(-1, keepdim=True).sqrt() / (_OFF * rms + _TINY)
            share = torch.maximum(share, torch.where(off == off.amax(-1, keepdim=True), rows, 0.0))
        at = int(share.argmax())
        measured = float(share.reshape(-1)[at]) if same else 1e9
        if measured > 1.0:
            text = f"{name}[{at}] is {float(y.reshape(-1)[at]):.6g}, expected {float(r.reshape(-1)[at]):.6g}"
            self._fail(measured, 1.0, f"{where}: {text}")

    def _chosen(self, name: str, y: Tensor, logits: Tensor, where: str) -> None:
        rows = logits.double().reshape(y.numel(), -1)
        chosen = y.reshape(-1, 1)
        if not bool(((chosen >= 0) & (chosen < rows.shape[1])).all()):
            self._fail(1e9, 1.0, f"{where}: {name} chose {y.view(-1).tolist()} of {rows.shape[1]}")
        best = rows.max(-1, keepdim=True).values
        allowed = _OWN * best.abs() + _ROW * rows.square().mean(-1, keepdim=True).sqrt() + _TINY
        share = float(((best - rows.gather(1, chosen)) / allowed).max())
        if share > 1.0:
            self._fail(share, 1.0, f"{where}: {name} chose {y.view(-1).tolist()}, which is not the greatest")

    def _fail(self, measured: float, allowed: float, detail: str) -> None:
        raise WrongOutput(self._index, Check(name=CHECK, ok=False, measured=measured, allowed=allowed, detail=detail))


def _with_logits(body: Graph) -> Graph:
    producers = body.producers()
    more = tuple(
        (_LOGITS + name, producers[use.value].inputs[0])
        for name, use in body.outputs
        if use.value in producers and producers[use.value].op == "argmax"
    )
    return replace(body, outputs=(*body.outputs, *more))
