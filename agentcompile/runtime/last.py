"""The end of a prefill chunk, run only for the one token whose logits are wanted.

Behind the last attention every token is computed by itself, and the head reads only one: so the rest of the last layer
runs for that token alone. Its index is an input on the device, since a chunk may be padded behind that token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from agentcompile.ir.graph import Graph, Node, Use, Value, View, concrete
from agentcompile.ir.program import Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.region import Cost, Port, Regime, Region
from agentcompile.runtime.lower import rearranged, renamed
from agentcompile.runtime.pieces import tokens_of, waiting
from agentcompile.runtime.rowwise import ROWWISE

ROW = Buffer(name="row", role="row", dtype="int64", shape=(1,))
"""The buffer with the index, within the chunk, of the token whose logits are wanted."""


def for_one(whole: Program, single: Program, regions: Mapping[str, Region]) -> Program:
    """Return `whole` with the calls behind its last attention taken from `single`, on the row of one token.

    Both programs are one plan, lowered for the chunk's tokens and for one token; `regions` are those of `whole` by id.
    Returns `whole` unchanged where the two differ, or where no call can be saved.
    """
    tokens = tokens_of(whole)
    wide = {buffer.name: buffer for buffer in whole.buffers}
    narrow = {buffer.name: buffer for buffer in single.buffers}
    if tokens == 1 or len(whole.calls) != len(single.calls):
        return whole
    start = len(whole.calls)
    while start and _may_be_one(whole, single, start - 1, regions, wide, narrow, tokens):
        start -= 1
    rest = single.calls[start:]
    made = {name for call in whole.calls[:start] for name in call.uses if name}
    used = dict.fromkeys(name for call in rest for name in call.uses if name and narrow[name].role == "activation")
    read = [name for name in used if name in made]
    if len(rest) < 2 or whole.logits in made or any(_rows(wide[name]) != tokens for name in read):
        return whole
    alone = {name: f"{name}[row]" for name in read}
    buffers = {name: buffer for name, buffer in wide.items() if name in made}
    buffers |= {name: narrow[name] for call in rest for name in call.uses if name and name not in made}
    buffers |= {alone[name]: replace(narrow[name], name=alone[name], whole="", start=0) for name in read}
    buffers = {
        name: replace(buffer, whole="", start=0) if buffer.whole and buffer.whole not in buffers else buffer
        for name, buffer in buffers.items()
    }
    buffers[ROW.name] = ROW
    gathers = {name: _gather(wide[name]) for name in read}
    calls = [
        *whole.calls[:start],
        *(
            TorchCall(region=gather.id, bindings=(("row", ROW.name), ("x", name), ("y", alone[name])))
            for name, gather in gathers.items()
        ),
        *(waiting(renamed(call, alone)) for call in rest),
    ]
    for name in (whole.token, whole.position):
        buffers.setdefault(name, wide[name])
    return rearranged(whole, calls, buffers, (*whole.regions, *single.regions, *gathers.values()))


def _may_be_one(
    whole: Program,
    single: Program,
    at: int,
    regions: Mapping[str, Region],
    wide: Mapping[str, Buffer],
    narrow: Mapping[str, Buffer],
    tokens: int,
) -> bool:
    whole_or_last = ((), (View(op="slice", args=(1, -1, tokens)),))  # a value unchanged, or only its last token
    one, other = whole.calls[at], single.calls[at]
    region = regions.get(one.region)
    if region is None or _kept(one, wide) != _kept(other, narrow):
        return False
    return (
        all(node.op in ROWWISE for node in region.body.nodes)
        and all(use.views in whole_or_last for node in region.body.nodes for use in node.inputs)
        and not any(use.views for _, use in region.body.outputs)
        and all(_rows(wide[name]) in (1, tokens) for name in _activations(one, wide))
        and all(_rows(narrow[name]) == 1 for name in _activations(other, narrow))
    )


def _kept(call: NativeCall | TorchCall, buffers: Mapping[str, Buffer]) -> set[str]:
    return {name for name in call.uses if name and buffers[name].role != "workspace"}


def _activations(call: NativeCall | TorchCall, buffers: Mapping[str, Buffer]) -> list[str]:
    return [name for name in call.uses if name and buffers[name].role not in ("weight", "constant", "workspace")]


def _rows(buffer: Buffer) -> int:
    """Return the tokens T of an activation [1, T, width]; 0 for any other shape, and for what is no activation."""
    shape = concrete(buffer.shape)
    return shape[1] if buffer.role == "activation" and len(shape) == 3 and shape[0] == 1 else 0


def _gather(wide: Buffer) -> Region:
    """Make a region that copies one row of an activation: [1, T, width] -> [1, 1, width]."""
    width = concrete(wide.shape)[2]
    template = json.dumps({"args": [{"$": 0}, 1, {"$": 1}], "kwargs": {}})
    inputs, attrs = (Use(value="x"), Use(value="row")), (("template", template),)
    node = Node(id="y", op="aten.index_select.default", inputs=inputs, outputs=("y",), attrs=attrs)
    body = Graph(
        phase="prefill",
        values=(
            Value(id="x", shape=wide.shape, dtype=wide.dtype, role="activation"),
            Value(id="row", shape=(1,), dtype="int64", role="activation"),
            Value(id="y", shape=(1, 1, width), dtype=wide.dtype, role="activation"),
        ),
        nodes=(node,),
        inputs=("row", "x"),
        outputs=(("y", Use(value="y")),),
    )
    ports = (
        Port(name="row", role="activation", access="read", shape=(1,), dtype="int64"),
        Port(name="x", role="activation", access="read", shape=wide.shape, dtype=wide.dtype),
        Port(name="y", role="output", access="write", shape=(1, 1, width), dtype=wide.dtype),
    )
    cost = Cost(flops=0, weight_bytes=0, state_bytes=0, activation_bytes=0)
    return Region(kind="row", regime=Regime(phase="prefill"), body=body, ports=ports, dims=(), cost=cost)
