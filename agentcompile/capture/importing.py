"""Turns an exported ATen program into terms: follows storages, makes in-place writes functional, resolves names.

Every FX value becomes a handle (a storage and a layout over it), a position-only node, a number, or a tuple of these.
In-place operators rebind their storage, so later readers of any view see the new content.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from agentcompile.capture import attention, operators
from agentcompile.capture.layout import TOKENS, Inexpressible, Shape, dense
from agentcompile.capture.positional import Handle, Pos, Positional, extent, packet, shape_only
from agentcompile.capture.terms import Edge, Pool, inverse, of
from agentcompile.capture.views import ALIASES, VIEWS
from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import DType

DTYPES: dict[torch.dtype, DType] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.bool: "bool",
}

LINE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The role and the name of a placeholder of the exported program."""

    role: str
    name: str
    value: torch.Tensor | None = None
    """The real content of a buffer or constant; None for weights and inputs."""


@dataclass(slots=True)
class Importer:
    """One pass over an exported graph, with a token axis of `tokens` (1, or `TOKENS` for a symbolic number)."""

    pool: Pool
    positional: Positional
    bindings: Mapping[str, Binding]
    prefix: str = ""
    """The module path that is dropped from every operator's path."""
    tables: dict[str, tuple[fx.Node, int | None]] = field(default_factory=dict)
    """The node and the token axis of each position-only leaf."""
    _env: dict[fx.Node, Any] = field(default_factory=dict)
    _store: list[Edge] = field(default_factory=list)
    _states: dict[str, int] = field(default_factory=dict)

    def run(self, graph: fx.Graph) -> tuple[list[Edge], dict[str, Edge]]:
        """Import every node; return the outputs and the final content of each state."""
        outputs: list[Edge] = []
        for node in graph.nodes:
            if node.op == "placeholder":
                self._env[node] = self._placeholder(node)
            elif node.op == "output":
                results: Any = node.args[0]
                outputs = [self.edge(self._env[arg]) for arg in results]
            elif node.op == "get_attr":
                self._env[node] = Pos(node, False)
            else:
                self.pool.module, self.pool.source = _where(node, self.prefix)
                self._env[node] = self._call(node)
        return outputs, {name: self._store[storage] for name, storage in self._states.items()}

    def _placeholder(self, node: fx.Node) -> Any:
        binding = self.bindings[node.name]
        if binding.role == "constant":
            return Pos(node, False)
        if binding.role == "position":
            return Pos(node, True)
        value = node.meta["val"]
        leaf = self.pool.leaf(binding.role, binding.name, self.shape(value), self.dtype(value))
        handle = self._new(leaf)
        if binding.role == "state":
            self._states[binding.name] = handle.storage
        return handle

    def _new(self, edge: Edge) -> Handle:
        self._store.append(edge)
        return Handle(len(self._store) - 1, dense(edge.shape))

    def read(self, handle: Handle) -> Edge:
        """Return the present content of a handle."""
        content = self._store[handle.storage]
        return content.through(handle.layout, content.shape)

    def edge(self, value: Any) -> Edge:
        """Return the operand that an operator sees for an environment value."""
        if isinstance(value, Handle):
            return self.read(value)
        if isinstance(value, Edge):
            return value
        assert isinstance(value, Pos), f"{value!r} is not a tensor"
        return self.table(value)

    def table(self, value: Pos) -> Edge:
        """Return a position-only value as a leaf [1, T, width] (or a constant), viewed in the node's shape."""
        fake = value.node.meta["val"]
        shape, dtype = self.shape(fake), self.dtype(fake)
        if not value.moves and self._token_axes(fake) == []:
            self.tables[value.node.name] = (value.node, None)
            return self.pool.leaf("constant", value.node.name, shape, dtype)
        axes = self._token_axes(fake)
        if len(axes) != 1 and not self.positional.fixed:
            self.tables[value.node.name] = (value.node, None)
            return self.pool.leaf("loose", value.node.name, shape, dtype)
        axis = axes[0] if axes else None
        if dtype == "int64" and math.prod(shape) == self.pool.tokens and self.positional.is_positions(value.node):
            return attention.positions(self.pool).reshape(shape)
        self.tables[value.node.name] = (value.node, axis)
        tokens = self.pool.tokens
        width = 1
        for i, size in enumerate(shape):
            width *= 1 if i == axis else size
        leaf = self.pool.leaf("table", value.node.name, (1, tokens, width), dtype)
        if axis is None:
            return leaf.reshape(shape)
        rest = [size for i, size in enumerate(shape) if i != axis]
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
        return leaf.reshape([tokens, *rest]).permute(order)

    def _token_axes(self, fake: Any) -> list[int]:
        sizes = enumerate(fake.shape)
        return [i for i, size in sizes if not isinstance(size, int) and self.size(size, TOKENS) == TOKENS]

    def size(self, value: Any, tokens: int = 0) -> int:
        """Return an extent for this importer's token count, or for `tokens`."""
        return extent(value, tokens or self.pool.tokens)

    def shape(self, fake: Any) -> Shape:
        """Return the extents of an example value."""
        return tuple(self.size(extent) for extent in fake.shape)

    def dtype(self, fake: Any) -> DType:
        """Return the dtype of an example value.

        Raises:
            AgentCompileError: graphs have no name for the dtype.
        """
        if fake.dtype not in DTYPES:
            raise AgentCompileError(
                f"the captured program holds a {fake.dtype} value, which is not supported",
                hint=f"use one of {', '.join(DTYPES.values())}",
            )
        return DTYPES[fake.dtype]

    def _call(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            return self.size(value)
        if value is None or isinstance(value, (bool, float, torch.SymBool, torch.SymFloat)):
            return value
        name = packet(node)
        args: Any = map_arg(node.args, self._env.__getitem__)
        kwargs: Any = map_arg(node.kwargs, self._env.__getitem__)
        ignored = shape_only(node)
        used = [self._env[arg] for arg in node.all_input_nodes if arg is not ignored]
        flat = [arg for arg in used if not isinstance(arg, (int, float, bool))]
        self._follow(node, name)
        if name == "getitem":
            return Pos(node, args[0].moves) if isinstance(args[0], Pos) else args[0][args[1]]
        if all(isinstance(arg, Pos) for arg in flat):
            return Pos(node, any(arg.moves for arg in flat))
        if name in VIEWS and isinstance(args[0], Handle):
            return self._view(node, name, args, kwargs)
        if name.endswith("_") and not name.startswith("_") and isinstance(args[0], Handle):
            return self._in_place(node, name[:-1], args, kwargs)
        return self._wrap(self._compute(node, name, args, kwargs))

    def _follow(self, node: fx.Node, name: str) -> None:
        """Record aliases and writes, which evaluating position-only nodes must respect."""
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if first is None:
            return
        root = self.positional.roots.get(first, first)
        if name in VIEWS:
            self.positional.roots[node] = root
        elif name.endswith("_") and not name.startswith("_"):
            self.positional.roots[node] = root
            writers = self.positional.mutators.setdefault(root, [])
            if node not in writers:
                writers.append(node)

    def _view(self, node: fx.Node, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        handle: Handle = args[0]
        fakes = node.meta["val"]
        try:
            made = VIEWS[name](
                handle.layout, fakes if isinstance(fakes, (list, tuple)) else self.shape(fakes), *args[1:], **kwargs
            )
        except Inexpressible:
            return self._wrap(self.generic(node, args, kwargs))
        if isinstance(made, list):
            return tuple(Handle(handle.storage, layout) for layout in made)
        if made.numel != handle.layout.numel or name in ALIASES or _aliases(node):
            return Handle(handle.storage, made)
        return self._new(self.read(Handle(handle.storage, made)))

    def _in_place(self, node: fx.Node, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        handle: Handle = args[0]
        old = self._store[handle.storage]
        new = self._compute(node, name, args, kwargs)
        if isinstance(new, tuple) or new.shape != handle.layout.shape:
            raise AgentCompileError(
                f"{node.target}: an in-place operator with an unresolved alias", hint="write it out of place"
            )
        if handle.layout.is_bijective(old.shape):
            self._store[handle.storage] = inverse(new, handle.layout, old.shape)
        else:
            self._store[handle.storage] = operators.scatter_view(self.pool, old, handle.layout, new)
        return handle

    def _compute(self, node: fx.Node, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in attention.RAISERS:
            raised = attention.RAISERS[name](self, *args, **kwargs)
            if raised is not None:
                return raised
        handler = operators.COMPUTE.get(name)
        if handler is not None:
            made = handler(self, node, *args, **kwargs)
            if made is not None:
                return made
        return self.generic(node, args, kwargs)

    def inline(self, node: fx.Node) -> Edge:
        """Return a position-only value that is no table of rows, as operators that run at every step."""
        env: dict[fx.Node, Any] = {}
        for at in self.positional.plan(node):
            value = at.meta.get("val")
            if (like := shape_only(at)) is not None and like not in env:
                env[like] = self.edge(self._env[like])
            if at is self.positional.positions:
                env[at] = attention.positions(self.pool)
            elif at.op in ("placeholder", "get_attr"):
                env[at] = self.table(Pos(at, False))
            elif isinstance(value, (int, torch.SymInt)):
                env[at] = self.size(value)
            else:
                args: Any = map_arg(at.args, env.__getitem__)
                kwargs: Any = map_arg(at.kwargs, env.__getitem__)
                env[at] = args[0][args[1]] if packet(at) == "getitem" else self.generic(at, args, kwargs)
        made = env[node]
        assert isinstance(made, Edge)
        return made

    def _wrap(self, made: Any) -> Any:
        return tuple(self._wrap(item) for item in made) if isinstance(made, tuple) else self._new(made)

    def generic(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Keep an operator by its ATen name, with its tensors in order and all other arguments in a template."""
        tensors: list[Edge] = []
        op = _overload(node)
        template = {
            "args": [self._template(arg, tensors) for arg in args],
            "kwargs": {
                k: self._template(v, tensors)
                for k, v in kwargs.items()
                if k not in ("layout", "pin_memory", "memory_format")
            },
        }
        fakes = node.meta["val"]
        many = isinstance(fakes, (list, tuple))
        made = fakes if many else [fakes]
        outs: list[tuple[Shape, DType]] = [(self.shape(fake), self.dtype(fake)) for fake in made]
        term = self.pool.make(str(op), tensors, outs, (("template", json.dumps(template, sort_keys=True)),))
        return tuple(of(term, i) for i in range(len(outs))) if many else of(term)

    def _template(self, value: Any, tensors: list[Edge]) -> Any:
        if isinstance(value, (Handle, Pos, Edge)):
            tensors.append(self.edge(value))
            return {"$": len(tensors) - 1}
        if isinstance(value, (list, tuple)):
            return [self._template(item, tensors) for item in value]
        if isinstance(value, torch.dtype):
            return {"$dtype": DTYPES[value]}
        if isinstance(value, torch.device):
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= TOKENS and value % TOKENS == 0:
            return {"$t": value // TOKENS}
        return value


def _overload(node: fx.Node) -> Any:
    target: Any = node.target
    name = target._schema.name.split("::")[1]
    if name.endswith("_") and not name.startswith("_"):
        namespace = getattr(torch.ops, target.namespace)
        packet = getattr(namespace, name[:-1], None)
        if packet is None or target._overloadname not in packet.overloads():
            raise AgentCompileError(
                f"{target}: an in-place operator that has no functional form", hint="write it out of place"
            )
        return getattr(packet, target._overloadname)
    return target


def _aliases(node: fx.Node) -> bool:
    first: Any = node.args[0]
    made, given = node.meta["val"], first.meta["val"]
    return bool(made.untyped_storage()._cdata == given.untyped_storage()._cdata)


def _where(node: fx.Node, prefix: str) -> tuple[str, str]:
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    path = path.removeprefix(prefix).removeprefix(".")
    found = LINE.findall(node.meta.get("stack_trace") or "")
    return path, f"{Path(found[-1][0]).name}:{found[-1][1]}" if found else ""
