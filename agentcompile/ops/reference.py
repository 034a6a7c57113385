"""The meaning of each normalised operator in PyTorch: the reference (float64) and the fallback (the model's dtype).

In: a graph and its inputs by value id. Out: its outputs by name. States are written in place: in ``float64`` the caller
passes its own float64 states (or copies), in ``model`` the live cache.

Activations are [B, T, …] with B sequences or T tokens of one sequence, never both above 1. The leading extent tells
them apart: in a batch every sequence has its own cache and its own position, so `positions` has B entries instead of T.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F

from agentcompile.ir.graph import Graph, Node, Use, View
from agentcompile.ops.attention import attention

Precision = Literal["model", "float64"]
Observe = Callable[[str, torch.Tensor], None]
Operator = Callable[..., Any]

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""The PyTorch dtype of each dtype name that graphs use."""


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Gather rows of table [vocab, hidden] at ids int64 [B, T] -> [B, T, hidden]."""
    return F.embedding(ids, table)


def position_table(positions: torch.Tensor, table: torch.Tensor, *, batch: int = 1) -> torch.Tensor:
    """Gather rows of table [context, width] at positions int64 [T] -> [1, T, width], batched [B] -> [B, 1, width]."""
    return table.index_select(0, positions).view(batch, -1, table.shape[1])


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, offset: float = 0.0) -> torch.Tensor:
    """Compute x · rsqrt(mean(x²) + eps) over the last axis in float32 or wider, round to x's dtype, times the weight.

    With an offset the weight is (offset + weight) and is applied before the one rounding, as Gemma does.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if offset:
        return (scaled * (offset + weight.to(wide.dtype))).to(x.dtype)
    return weight * scaled.to(x.dtype)


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply x [B, T, in] by w [out, in] transposed and add b [out] -> [B, T, out]."""
    return F.linear(x, w, b)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, style: str) -> torch.Tensor:
    """Rotate the halves of x [B, heads, T, D] by cos, sin [B, T, D] in the wider dtype, then round to x's dtype."""
    assert style == "half", style
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)).to(x.dtype)


def cache_append(cache: torch.Tensor, new: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Write new [B, kv_heads, T, D] into cache [B, kv_heads, context, D] at slots `positions`; return the cache.

    In a batch, sequence b writes slot positions[b] of its own cache and nothing else.
    """
    if new.shape[0] == 1:
        return cache.index_copy_(2, positions, new)
    # Not scatter_: on a CPU it rewrites the whole cache when that is in 16 bits.
    cache.transpose(1, 2)[torch.arange(len(positions), device=cache.device), positions] = new[:, :, 0]
    return cache


def cast(x: torch.Tensor, *, to: str) -> torch.Tensor:
    """Convert `x` to the dtype that graphs call `to`."""
    return x.to(DTYPES[to])


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Return the int64 index of the greatest element of the last axis; the first when several are equal."""
    return x.argmax(-1)


OPERATORS: dict[str, Operator] = {
    "embedding": embedding,
    "position_table": position_table,
    "rms_norm": rms_norm,
    "linear": linear,
    "rope": rope,
    "cache_append": cache_append,
    "attention": attention,
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "argmax": argmax,
    "cast": cast,
}
"""Every normalised operator. Tensors are passed by position in order, the values of `keywords` by keyword."""


def keywords(graph: Graph, node: Node) -> dict[str, Any]:
    """Return the keyword arguments of an operator: its attributes, and what only the declared shapes tell."""
    told: dict[str, Any] = dict(node.attrs)
    if node.op == "position_table":
        told["batch"] = graph.table()[node.outputs[0]].shape[0]
    return told


class Interpreter:
    """A graph compiled once into a list of closures over one slot array.

    `precision` ``model`` computes what PyTorch eager does at the graph's dtypes. ``float64`` computes every
    floating-point value in float64, casts included, and expects states in float64. Entries of `operators` replace those
    of `OPERATORS`. Not thread-safe.
    """

    def __init__(
        self,
        graph: Graph,
        precision: Precision = "model",
        observe: Observe | None = None,
        operators: Mapping[str, Operator] | None = None,
    ) -> None:
        self._graph = graph
        self._operators = {**OPERATORS, **(operators or {})}
        self._slots = {value.id: i for i, value in enumerate(graph.values)}
        self._wide = precision == "float64"
        self._observe = observe
        self._inputs = [(name, self._slots[name]) for name in graph.inputs]
        self._unbound = next(
            (
                (i, axis)
                for i in graph.inputs
                for axis, extent in enumerate(graph.table()[i].shape)
                if isinstance(extent, str)
            ),
            None,
        )
        last: dict[str, int] = {use.value: i for i, node in enumerate(graph.nodes) for use in node.inputs}
        for _, use in graph.outputs:
            last[use.value] = len(graph.nodes)
        kept = set(graph.inputs)
        self._steps = [
            (self._step(node), tuple(self._slots[v] for v in _dying(node, i, last, kept)))
            for i, node in enumerate(graph.nodes)
        ]
        self._outputs = [(name, self._reader(use)) for name, use in graph.outputs]

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the graph on inputs by value id and return its outputs by name.

        Raises:
            KeyError: an input is missing.
        """
        env: list[Any] = [None] * (len(self._slots) + 1)
        env[-1] = self._tokens(inputs)
        for name, slot in self._inputs:
            value = inputs[name]
            env[slot] = value.double() if self._wide and value.is_floating_point() else value
        for step, dead in self._steps:
            step(env)
            for slot in dead:
                env[slot] = None
        return {name: read(env) for name, read in self._outputs}

    def _tokens(self, inputs: Mapping[str, torch.Tensor]) -> int:
        if self._unbound is None:
            return 1
        name, axis = self._unbound
        return inputs[name].shape[axis]

    def _reader(self, use: Use) -> Callable[[list[Any]], Any]:
        slot = self._slots[use.value]
        if not use.views:
            return lambda env: env[slot]
        symbolic = any(isinstance(arg, str) for view in use.views for arg in view.args)
        if not symbolic and len(use.views) == 1 and use.views[0].op == "reshape":
            shape = tuple(int(arg) for arg in use.views[0].args)
            return lambda env: env[slot].reshape(shape)
        views = use.views
        return lambda env: apply_views(env[slot], views, env[-1])

    def _step(self, node: Node) -> Callable[[list[Any]], None]:
        readers = [self._reader(use) for use in node.inputs]
        outs = [self._slots[out] for out in node.outputs]
        function = self._function(node)
        observe, names = self._observe, node.outputs

        def run_one(env: list[Any]) -> None:
            env[outs[0]] = function(env, [read(env) for read in readers])
            if observe is not None:
                observe(names[0], env[outs[0]])

        def run_many(env: list[Any]) -> None:
            for slot, name, value in zip(outs, names, function(env, [read(env) for read in readers]), strict=True):
                env[slot] = value
                if observe is not None:
                    observe(name, value)

        return run_one if len(outs) == 1 else run_many

    def _function(self, node: Node) -> Callable[[list[Any], list[Any]], Any]:
        attrs = keywords(self._graph, node)
        if node.op == "cast" and self._wide and attrs["to"] in ("bf16", "fp16", "fp32", "fp64"):
            return lambda env, args: args[0].double()
        if (operator := self._operators.get(node.op)) is not None:
            if not attrs:
                return lambda env, args: operator(*args)
            return lambda env, args: operator(*args, **attrs)
        overload, template = aten(node.op), json.loads(attrs["template"])
        wide = self._wide

        def call(env: list[Any], args: list[Any]) -> Any:
            fill = functools.partial(_fill, tensors=args, tokens=env[-1], wide=wide)
            return overload(*[fill(a) for a in template["args"]], **{k: fill(v) for k, v in template["kwargs"].items()})

        return call


def _dying(node: Node, index: int, last: Mapping[str, int], kept: set[str]) -> list[str]:
    seen = dict.fromkeys([use.value for use in node.inputs] + list(node.outputs))
    return [v for v in seen if last.get(v, -1) <= index and v not in kept]


def aten(name: str) -> Any:
    """Return the PyTorch operator that an unknown node's name (`aten.cumsum.default`) stands for.

    Raises:
        KeyError: PyTorch has no operator of that name.
    """
    namespace, packet, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError:
        raise KeyError(name) from None


def _fill(value: Any, *, tensors: Sequence[torch.Tensor], tokens: int, wide: bool) -> Any:
    if isinstance(value, list):
        return [_fill(item, tensors=tensors, tokens=tokens, wide=wide) for item in value]
    if isinstance(value, dict):
        if "$" in value:
            return tensors[value["$"]]
        if "$t" in value:
            return tokens * value["$t"]
        dtype = DTYPES[value["$dtype"]]
        return torch.float64 if wide and dtype.is_floating_point else dtype
    return value


def apply_views(x: torch.Tensor, views: Sequence[View], tokens: int) -> torch.Tensor:
    """Apply an edge's chain of views to `x`, with T bound to `tokens`."""
    for view in views:
        args = [tokens if arg == "T" else int(arg) for arg in view.args]
        if view.op == "reshape":
            x = x.reshape(args)
        elif view.op == "permute":
            x = x.permute(args)
        elif view.op == "expand":
            x = x.expand(args)
        else:
            axis, start, stop = args
            x = x[(slice(None),) * axis + (slice(start, stop),)]
    return x


def run(
    graph: Graph, inputs: Mapping[str, torch.Tensor], *, precision: Precision = "model", observe: Observe | None = None
) -> dict[str, torch.Tensor]:
    """Run a graph once on inputs by value id; `observe` sees every value that a node defines. See `Interpreter`."""
    return Interpreter(graph, precision, observe)(inputs)
