"""Right kernels without a compiler: a region's body in PyTorch, float32 inside, rounded once where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from agentcompile.ir.graph import Graph, Node, Use
from agentcompile.ir.region import Region
from agentcompile.ops import reference

Run = Callable[[Mapping[str, Tensor]], None]


def float32(region: Region, rounds: Sequence[tuple[str, str]] = (), flip: bool = False) -> Run:
    """A kernel that keeps float32 between operators; `rounds` are held narrower, `flip` sums in the other order."""
    held = dict(rounds)
    singles = [(node, _alone(region.body, node)) for node in region.body.nodes]

    def run(buffers: Mapping[str, Tensor]) -> None:
        values: dict[str, Tensor] = {}
        for name in region.body.inputs:
            tensor = buffers[name]
            state = region.port(name).role == "state"
            values[name] = tensor.float() if tensor.is_floating_point() and not state else tensor
        for node, graph in singles:
            result = _result(node, graph, values, flip)
            name = node.outputs[0]
            values[name] = result.to(reference.DTYPES[held[name]]).float() if name in held else result
        for name, use in region.body.outputs:
            buffers[name].copy_(values[use.value].reshape(buffers[name].shape))

    return run


def _alone(body: Graph, node: Node) -> Graph:
    names = tuple(dict.fromkeys(use.value for use in node.inputs))
    outputs = tuple((name, Use(value=name)) for name in node.outputs)
    return replace(body, nodes=(node,), inputs=names, outputs=outputs)


def _result(node: Node, graph: Graph, values: Mapping[str, Tensor], flip: bool) -> Tensor:
    operands = [reference.apply_views(values[use.value], use.views, 1) for use in node.inputs]
    if node.op == "cache_append":
        cache, new, positions = operands
        return reference.cache_append(cache, new.to(cache.dtype), positions)
    if node.op == "attention":
        q, keys, found, positions = operands
        used = int(positions.max()) + 1
        return reference.attention(
            q, keys[:, :, :used].float(), found[:, :, :used].float(), positions, **dict(node.attrs)
        )  # type: ignore[arg-type]
    if node.op == "linear" and flip:
        operands[0], operands[1] = operands[0].flip(-1), operands[1].flip(-1)
        return reference.linear(*operands)
    return reference.run(graph, values)[node.outputs[0]]


def sums(region: Region) -> bool:
    """Whether `flip` makes another kernel."""
    return any(node.op == "linear" for node in region.body.nodes)


def eager(region: Region) -> Run:
    """The model's own arithmetic, as the fallback runs it."""
    interpreter = reference.Interpreter(region.body)

    def run(buffers: Mapping[str, Tensor]) -> None:
        for name, tensor in interpreter(buffers).items():
            buffers[name].copy_(tensor)

    return run


__all__ = ["Run", "eager", "float32", "sums"]
