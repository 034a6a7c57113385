"""One site of a program run by PyTorch: its captured body, or a library call, on the program's buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from agentcompile.ir.graph import Graph, concrete
from agentcompile.ir.program import Buffer, Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.ops.attention import attention_at
from agentcompile.ops.reference import DTYPES, OPERATORS, Interpreter, Operator, apply_views, keywords
from agentcompile.runtime import library
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.packed import Packed

Action = Callable[[], None]
Span = tuple[int, int]
"""The first and last position of a chunk."""
Seen = tuple[str, tuple[int, ...] | None]
"""A buffer by name, and the shape in which a port sees it, or None where that is its own."""
Single = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""A function of one operator, on its tensors in the order of a body's inputs."""


def torch_site(
    call: TorchCall,
    region: Region,
    buffers: Mapping[str, Buffer],
    env: dict[str, torch.Tensor],
    memory: Memory,
    tokens: int = 1,
    *,
    span: Span | None = None,
    dying: Sequence[str] = (),
    kept: Packed | None = None,
    direct: bool = False,
) -> Action:
    """Return the action that runs one site on the tensors of `env`, by buffer name, at `tokens` tokens.

    An output that now has a tensor in `env` is copied there, since others know its address, or, if `direct`, written
    there by a matrix product itself; any other is put into `env`. Those named `dying` are removed from it. A port may
    see its buffer in another shape. With a `span` the positions are known, and the device is not asked for them.
    Operators that `kept` can run on a packed weight do not unpack it.
    """
    operators = {} if span is None else {"attention": attention_at(*span)}
    names = dict(call.bindings)
    shapes = {port: concrete(buffers[name].shape, tokens) for port, name in names.items()}
    seen = {port.name: concrete(port.shape, tokens) for port in region.ports if port.role != "output"}
    inputs = [(port, names[port], None if shape == shapes[port] else shape) for port, shape in seen.items()]
    outputs = [(port.name, names[port.name], shapes[port.name]) for port in region.ports if port.role == "output"]
    places = {name for _, name, _ in outputs if name in env}
    packed = {name for _, name, _ in inputs if buffers[name].layout != "row-major"}

    def read(name: str, shape: tuple[int, ...] | None) -> torch.Tensor:
        tensor = memory.dense(buffers[name]) if name in packed else env[name]
        return tensor if shape is None else tensor.reshape(shape)  # PyTorch's results may have other strides

    def store(name: str, made: torch.Tensor, shape: tuple[int, ...]) -> None:
        if name in places:
            env[name].copy_(made.reshape(shape))
        else:
            env[name] = made.reshape(shape)

    single = None if call.call else one_operator(region.body, tokens, operators)
    of = {port: (name, shape) for port, name, shape in inputs}
    found = None if single is None or kept is None else _kept(region, of, buffers, tokens, kept)
    if found is not None:
        packed.discard(found[0])
        single = found[1]
    if single is not None:
        order = [of[port] for port in region.body.inputs]
        ends = [(name, shape) for _, name, shape in outputs]
        into = product_into(region.body, tokens) if direct and [name in places for name, _ in ends] == [True] else None

        def act_once() -> None:
            with torch.no_grad():
                tensors = [read(name, shape) for name, shape in order]
                if into is not None:
                    into(tensors, env[ends[0][0]])
                else:
                    made = single(tensors)
                    for name, shape in ends:
                        store(name, made, shape)
            for name in dying:
                env.pop(name, None)

        return act_once

    body = (
        library.bind(call.call, region, call.settings) if call.call else Interpreter(region.body, operators=operators)
    )

    def act() -> None:
        made = body({port: read(name, shape) for port, name, shape in inputs})
        for port, name, shape in outputs:
            store(name, made[port], shape)
        for name in dying:
            env.pop(name, None)

    return act


def _kept(
    region: Region, seen: Mapping[str, Seen], buffers: Mapping[str, Buffer], tokens: int, kept: Packed
) -> tuple[str, Single] | None:
    """Return the packed weight of a region of one operator, and a function that runs it; None where `kept` cannot."""
    (node,) = region.body.nodes
    if node.attrs or len(node.inputs) < 2 or any(use.views for use in node.inputs[1:]):
        return None
    of = [buffers[seen[use.value][0]] for use in node.inputs]
    weight, viewed = of[1], seen[node.inputs[1].value][1] is not None
    typed = of if node.op == "linear" else of[1:]
    packed_too = any(one.layout != "row-major" for one in (of[0], *of[2:]))
    if viewed or packed_too or {one.dtype for one in typed} != {weight.dtype}:
        return None
    run = kept.operator(node.op, weight.layout, concrete(weight.shape), DTYPES[weight.dtype])
    if run is None:
        return None
    operands = _operands(region.body, tokens)
    return weight.name, lambda tensors: run(operands(tensors))


def one_operator(graph: Graph, tokens: int, operators: Mapping[str, Operator] | None = None) -> Single | None:
    """Return a function for a graph of one operator, with less overhead than `Interpreter`.

    It maps the tensors in the order of ``graph.inputs`` to the operator's result, with T bound to `tokens`. None for
    any other graph, for several or viewed results, and for an operator that is not in the table.
    """
    if len(graph.nodes) != 1 or len(graph.nodes[0].outputs) != 1:
        return None
    (node,), made = graph.nodes, graph.nodes[0].outputs[0]
    operator = {**OPERATORS, **(operators or {})}.get(node.op)
    if operator is None or any(use.value != made or use.views for _, use in graph.outputs):
        return None
    if any(use.value not in graph.inputs for use in node.inputs):
        return None
    attrs, operands = keywords(graph, node), _operands(graph, tokens)
    return lambda tensors: operator(*operands(tensors), **attrs)


def _operands(graph: Graph, tokens: int) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Return a function from the tensors in the order of ``graph.inputs`` to the single operator's operands."""
    reads = [(graph.inputs.index(use.value), use.views) for use in graph.nodes[0].inputs]
    if not any(views for _, views in reads):
        places = [place for place, _ in reads]
        return lambda tensors: [tensors[place] for place in places]
    return lambda tensors: [apply_views(tensors[place], views, tokens) for place, views in reads]


def product_into(graph: Graph, tokens: int) -> Callable[[Sequence[torch.Tensor], torch.Tensor], None] | None:
    """Return a function that writes the result of a graph of one `linear` into a dense tensor; None for others."""
    if [node.op for node in graph.nodes] != ["linear"] or graph.nodes[0].attrs:
        return None
    operands = _operands(graph, tokens)

    def write(tensors: Sequence[torch.Tensor], into: torch.Tensor) -> None:
        x, w, *bias = operands(tensors)
        rows, place = x.reshape(-1, x.shape[-1]), into.view(-1, w.shape[0])
        if bias:
            torch.addmm(bias[0], rows, w.t(), out=place)
        else:
            torch.mm(rows, w.t(), out=place)

    return write


def dying_after(program: Program, keep: set[str]) -> list[tuple[str, ...]]:
    """Return for every call, in order, the activations that no later call reads, except those to `keep`."""
    kept = keep | {buffer.name for buffer in program.buffers if buffer.role != "activation"}
    last: dict[str, int] = {}
    for at, call in enumerate(program.calls):
        last.update(dict.fromkeys(call.uses, at))
    return [
        tuple(name for name, end in last.items() if end == at and name not in kept) for at in range(len(program.calls))
    ]
