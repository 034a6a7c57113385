"""Exports a decoder that follows the protocol, and turns the exported program into the two graphs.

One program with a symbolic number of tokens serves both phases: decode is the same program at T = 1. A model that
cannot be exported with a symbolic T is exported for one token, and its prefill then takes one token at a time.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from agentcompile.capture.attention import written
from agentcompile.capture.emit import Emitter
from agentcompile.capture.importing import Binding, Importer
from agentcompile.capture.layout import Inexpressible, dense
from agentcompile.capture.positional import Positional
from agentcompile.capture.terms import Edge, Pool
from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import Graph
from agentcompile.ir.model import StateBuffer

EXAMPLE_TOKENS = 5
ROWWISE = frozenset(
    {"linear", "rms_norm", "cast", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "mul_scalar", "add_scalar"}
)
"""Operators that compute each row of the result from the same row of the first operand; they read other operands
whole.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedDecoder:
    """An exported decoder; `fixed` says that it takes exactly one token."""

    exported: Any
    bindings: Mapping[str, Binding]
    positional: Positional
    fixed: bool
    prefix: str


class _ExportedStep(nn.Module):
    """The protocol's call with flat arguments, under a name that can be dropped from module paths."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Any) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(tokens, positions, caches)
        return logits


def export(
    decoder: nn.Module,
    states: Sequence[StateBuffer],
    dtype: torch.dtype,
    context: int,
    names: Mapping[str, str],
    *,
    fake: Any = None,
    prefix: str = "decoder",
) -> ExportedDecoder:
    """Trace `decoder(tokens, positions, caches)`; `names` gives checkpoint names by parameter path.

    `fake` is the FakeTensorMode of the parameters, if they are fake.

    Raises:
        AgentCompileError: the decoder can be traced neither for a symbolic number of tokens nor for one token.
    """
    step = _ExportedStep(decoder).eval()
    mode = fake if fake is not None else contextlib.nullcontext()
    first: Exception | None = None
    for fixed in (False, True):
        count = 1 if fixed else min(EXAMPLE_TOKENS, context)
        with mode:
            shapes = [state.shape for state in states]
            flat = [torch.zeros(shape, dtype=dtype) for shape in shapes]
            caches = list(zip(flat[::2], flat[1::2], strict=True))
            example = (torch.zeros(1, count, dtype=torch.int64), torch.arange(count), caches)
        tokens = torch.export.Dim("T", min=2, max=context)
        dynamic = None if fixed else ({1: tokens}, {0: tokens}, [(None, None) for _ in caches])
        try:
            with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")  # stderr too: PyTorch prints a graph that it could not finish
                exported = torch.export.export(step, example, strict=False, dynamic_shapes=dynamic)
        except AgentCompileError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model's own code raises while it is traced
            first = first or error
            continue
        bindings = _bindings(exported, states, names)
        positional = _evaluator(exported, bindings, context, fixed)
        return ExportedDecoder(exported=exported, bindings=bindings, positional=positional, fixed=fixed, prefix=prefix)
    name = type(getattr(decoder, "model", decoder)).__name__
    raise AgentCompileError(
        f"{name}: {because(first, 'cannot be traced')}",
        hint="see agentcompile/capture/protocol.py for what a decoder may do",
    ) from first


def by_content(error: Exception | None) -> bool:
    """Return whether an error says that a model's code branches on the content of tensors."""
    return type(error).__name__ in ("GuardOnDataDependentSymNode", "DataDependentOutputException")


def because(error: Exception | None, what: str) -> str:
    """Return in one sentence why a model's code cannot be captured.

    It says `what` happened and the first line of the error, unless there is a plainer sentence for the error.
    """
    if by_content(error):
        return "its code decides by the content of tensors, which is not supported"
    said = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{what}: {type(error).__name__}: {said}"


def _bindings(exported: Any, states: Sequence[StateBuffer], names: Mapping[str, str]) -> dict[str, Binding]:
    """Return the meaning of each placeholder: inputs by order, weights by checkpoint name, other tensors by content."""
    kinds = torch.export.graph_signature.InputKind
    inputs = iter([("token", "tokens"), ("position", "positions"), *(("state", state.name) for state in states)])
    out: dict[str, Binding] = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == kinds.USER_INPUT:
            role, name = next(inputs)
            out[spec.arg.name] = Binding(role=role, name=name)
        elif spec.kind == kinds.PARAMETER or spec.target.removeprefix("decoder.") in names:
            path = spec.target.removeprefix("decoder.")
            out[spec.arg.name] = Binding(role="weight", name=names.get(path, path))
        else:
            value = (
                exported.constants[spec.target]
                if spec.target in exported.constants
                else exported.state_dict[spec.target]
            )
            out[spec.arg.name] = Binding(role="constant", name=spec.target, value=value.detach())
    return out


def _evaluator(exported: Any, bindings: Mapping[str, Binding], context: int, fixed: bool) -> Positional:
    graph = exported.graph
    holders = {node.name: node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    positions = next(holders[name] for name, b in bindings.items() if b.role == "position")
    values = {holders[name]: b.value for name, b in bindings.items() if b.value is not None}
    for node in holders.values():
        if node.op == "get_attr":
            values[node] = getattr(exported.graph_module, str(node.target))
    positional = Positional(positions, context, values, fixed)
    positional.number(graph)
    return positional


def last_token(pool: Pool, logits: Edge) -> Edge:
    """Turn logits [1, T or 1, vocab] into those of the last token, [1, 1, vocab], computed for that token only."""
    tokens, vocab = logits.shape[-2], logits.shape[-1]
    if tokens != 1:
        logits = logits.reshape((1, tokens, vocab)).slice(1, tokens - 1, tokens)
    return _rise(pool, logits.reshape((1, 1, vocab)))


def _rise(pool: Pool, edge: Edge) -> Edge:
    """Recompute an edge that reads one row of a row-wise operator from the same row of its operand."""
    term, base = edge.term, edge.base
    if term.op not in ROWWISE or pool.tokens == 1 or len(base) != 3 or base[0] != 1:
        return edge
    x, rows = term.args[0], base[1]
    if len(x.shape) != 3 or x.shape[1] != rows or edge.layout.numel != base[2]:
        return edge
    if rows > 1:
        if edge.layout.reshape((1, 1, base[2])) != dense(base).slice(1, rows - 1, rows):
            return edge
        try:
            x = x.slice(1, rows - 1, rows)
        except Inexpressible:
            return edge
    x = _rise(pool, x)
    pool.module, pool.source = term.module, term.source
    return pool.op(term.op, [x, *term.args[1:]], (1, 1, base[2]), term.outs[0][1], term.attrs).reshape(edge.shape)


def normalise(program: ExportedDecoder, tokens: int, constants: dict[str, torch.Tensor]) -> Graph:
    """Return one phase's graph and add its position tables to `constants`.

    `tokens` is 1 (decode) or `TOKENS` (prefill).
    """
    importer = Importer(Pool(tokens), program.positional, program.bindings, program.prefix)
    outputs, states = importer.run(program.exported.graph)
    logits = last_token(importer.pool, outputs[0])
    made: list[tuple[str, Edge]] = [("logits", logits)]
    if tokens == 1:
        made.append(("token", importer.pool.op("argmax", [logits], logits.shape[:-1], "int64")))
    final = [written(importer.pool, name, edge) for name, edge in states.items()]
    return Emitter(importer, constants).graph("decode" if tokens == 1 else "prefill", made, final)
