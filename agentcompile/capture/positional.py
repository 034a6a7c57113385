"""Values that depend on positions only: evaluated for real, tabulated, and proved to be a mask or an index.

The program's position-only nodes (rotary angles, masks, cache slots) contain no weight and no token, so their meaning
is found by running them, not by recognising how they were written.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from agentcompile.capture.layout import Layout
from agentcompile.errors import AgentCompileError

Node = fx.Node
PROOF_ELEMENTS = 1 << 24
"""The mask size, in elements, up to which a mask is checked at every position; larger ones at chosen positions."""
SHAPE_ONLY = {
    "sym_size": 0,
    "expand_as": 1,
    "view_as": 1,
    "reshape_as": 1,
    "type_as": 1,
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), 0),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), 0),
}
"""Operators that read one argument for its shape and dtype only, with that argument's index."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A view of a storage, whose content an in-place operator may replace."""

    storage: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Pos:
    """A node whose value depends on positions only, or on nothing."""

    node: Node
    moves: bool
    """Whether the value depends on the positions; otherwise it is a constant."""


def packet(node: Node) -> str:
    """Return an operator's name: `index_copy_` for `aten.index_copy_.default`; others keep their namespace."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).split("::")[1] if target.namespace == "aten" else str(target)
    return getattr(target, "__name__", str(target))


def shape_only(node: Node) -> Node | None:
    """Return the operand that a node reads for its shape and dtype only; None when there is none."""
    index = SHAPE_ONLY.get(packet(node)) if node.op == "call_function" else None
    found = node.args[index] if index is not None and index < len(node.args) else None
    return found if isinstance(found, Node) else None


def extent(value: Any, tokens: int) -> int:
    """Return an extent with the token count substituted.

    Raises:
        AgentCompileError: the extent is not a function of T alone.
    """
    if isinstance(value, int):
        return value
    expr = value.node.expr
    bound = expr.subs(dict.fromkeys(expr.free_symbols, tokens))
    if len(expr.free_symbols) > 1 or not bound.is_Integer:
        raise AgentCompileError(
            f"a size of the captured program, {expr}, depends on more than the token count",
            hint="make every shape a function of the number of tokens",
        )
    return int(bound)


def _hashable(arguments: object) -> Hashable:
    if isinstance(arguments, (tuple, list)):
        return tuple(_hashable(one) for one in arguments)
    if isinstance(arguments, dict):
        return tuple((name, _hashable(one)) for name, one in sorted(arguments.items()))
    if isinstance(arguments, slice):
        return (_hashable(arguments.start), _hashable(arguments.stop), _hashable(arguments.step))
    assert isinstance(arguments, Hashable), arguments
    return type(arguments), arguments  # 1, 1.0 and True are equal


@dataclass(slots=True)
class Positional:
    """An evaluator of position-only nodes; `fixed` says the graph was exported for one token, not for T."""

    positions: Node
    context: int
    constants: Mapping[Node, torch.Tensor]
    fixed: bool
    roots: dict[Node, Node] = field(default_factory=dict)
    """The node that owns the buffer of each node's value."""
    mutators: dict[Node, list[Node]] = field(default_factory=dict)
    """The in-place nodes that write each root."""
    _order: dict[Node, int] = field(default_factory=dict)
    _plans: dict[Node, list[Node]] = field(default_factory=dict)
    _tables: dict[Hashable, torch.Tensor | None] = field(default_factory=dict)
    _slots: dict[str, bool] = field(default_factory=dict)
    _windows: dict[tuple[str, bool], int | None] = field(default_factory=dict)

    def number(self, graph: fx.Graph) -> None:
        """Record the program order; call this once before evaluating."""
        self._order = {node: i for i, node in enumerate(graph.nodes)}

    def plan(self, node: Node) -> list[Node]:
        """Return what must run for `node` in program order, including in-place writes that precede each reader."""
        if (plan := self._plans.get(node)) is not None:
            return plan
        seen: set[Node] = set()
        stack = [node]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            ignored = shape_only(at)
            for arg in at.all_input_nodes:
                if arg is ignored:
                    continue
                stack.append(arg)
                for writer in self.mutators.get(self.roots.get(arg, arg), []):
                    if self._order[writer] < self._order[at]:
                        stack.append(writer)
        plan = sorted(seen, key=self._order.__getitem__)
        self._plans[node] = plan
        return plan

    def evaluate(self, node: Node, positions: torch.Tensor) -> torch.Tensor:
        """Return the value of `node` for these positions (int64 [T])."""
        env: dict[Node, Any] = {}
        for at in self.plan(node):
            if (like := shape_only(at)) is not None:
                fake: Any = like.meta["val"]
                shape = [extent(n, positions.numel()) for n in fake.shape]
                env[like] = env.get(like, torch.empty((), dtype=fake.dtype).expand(shape))
            if at is self.positions:
                env[at] = positions.clone()
            elif at.op in ("placeholder", "get_attr"):
                env[at] = self.constants[at].clone()
            else:
                args = map_arg(at.args, env.__getitem__)
                kwargs = map_arg(at.kwargs, env.__getitem__)
                target: Any = at.target
                env[at] = target(*args, **kwargs)
        value = env[node]
        assert isinstance(value, torch.Tensor)
        return value

    def rows(self, node: Node, axis: int | None, start: int, count: int) -> torch.Tensor:
        """Return the value at positions `start` … `start` + `count` - 1 as [count, width], one row per position.

        `axis` is the token axis of the node's value. A program exported for one token is run once for each position.
        """
        if self.fixed or axis is None:
            return torch.stack(
                [self.evaluate(node, torch.tensor([p])).reshape(-1) for p in range(start, start + count)]
            )
        value = self.evaluate(node, torch.arange(start, start + count))
        return value.movedim(axis, 0).reshape(count, -1)

    def table(self, node: Node, axis: int | None) -> torch.Tensor | None:
        """Return the value at every position as [context, width].

        None when a row depends on more than its own position. Nodes that do the same to the same operands share one
        tensor, because every layer has such nodes of its own.
        """
        key = (*self.plan(node)[:-1], node.target, _hashable(node.args), _hashable(node.kwargs), axis)
        if key not in self._tables:
            self._tables[key] = self._tabulate(node, axis)
        return self._tables[key]

    def _tabulate(self, node: Node, axis: int | None) -> torch.Tensor | None:
        table = self.rows(node, axis, 0, self.context)
        for start, count in ((0, 1), (self.context // 2, 1), (self.context - 2, 2)):
            if not _same(self.rows(node, axis, start, count), table[start : start + count]):
                return None
        return table.contiguous()

    def is_positions(self, node: Node) -> bool:
        """Return whether the value holds the positions themselves, in any shape."""
        if node.name not in self._slots:
            self._slots[node.name] = self._is_positions(node)
        return self._slots[node.name]

    def _is_positions(self, node: Node) -> bool:
        for start, count in self._probes():
            want = torch.arange(start, start + count)
            got = self.evaluate(node, want)
            if got.numel() == 0 or got.numel() % count or got.is_floating_point():
                return False
            axes = [i for i, extent in enumerate(got.shape) if extent == count]
            if not any(torch.equal(got, _along(want, axis, got)) for axis in axes):
                return False
        return True

    def window(self, node: Node, axis: int | None, *, keeps: bool) -> int | None:
        """Check whether a mask is causal: return 0 for full, n for a window of n slots, None for any other mask.

        Boolean masks hold True where a slot is read (`keeps`) or hidden; additive ones hold 0 where it is read and a
        large negative number where it is hidden.
        """
        key = (node.name, keeps)
        if key not in self._windows:
            self._windows[key] = self._window(node, axis, keeps=keeps)
        return self._windows[key]

    def _window(self, node: Node, axis: int | None, *, keeps: bool) -> int | None:
        last = self._visible(node, axis, self.context - 1, 1, keeps=keeps)
        if last is None:
            return None
        seen = int(last[0].sum())
        window = 0 if seen == self.context else seen
        slots = torch.arange(self.context)
        for start, count in self._probes(window):
            visible = self._visible(node, axis, start, count, keeps=keeps)
            positions = torch.arange(start, start + count)[:, None]
            want = slots <= positions
            if window:
                want &= slots > positions - window
            if visible is None or not torch.equal(visible, want):
                return None
        return window

    def _visible(self, node: Node, axis: int | None, start: int, count: int, *, keeps: bool) -> torch.Tensor | None:
        rows = self.rows(node, axis, start, count)
        if rows.shape[1] % self.context:
            return None
        per_head = rows.reshape(count, -1, self.context)
        if not torch.equal(per_head, per_head[:, :1].expand_as(per_head)):
            return None
        mask = per_head[:, 0]
        if mask.dtype == torch.bool:
            return mask if keeps else ~mask
        if not mask.is_floating_point() or not bool(((mask == 0) | (mask < -1e4)).all()):
            return None
        return mask == 0

    def _probes(self, window: int = 0) -> list[tuple[int, int]]:
        """Return chunks (start, count) to test: all positions if few, otherwise the ends, middle and window edges."""
        if not self.fixed and self.context * self.context <= PROOF_ELEMENTS:
            return [(0, self.context), (self.context // 3, 2), (self.context - 1, 1)]
        points = {0, 1, self.context // 2, self.context - 1, window - 1, window, window + 1}
        single = [(p, 1) for p in sorted(points) if 0 <= p < self.context]
        return single if self.fixed else [*single, (0, min(17, self.context)), (self.context // 2, 2)]


def _along(want: torch.Tensor, axis: int, like: torch.Tensor) -> torch.Tensor:
    return want.reshape([-1 if i == axis else 1 for i in range(like.dim())]).expand_as(like).to(like.dtype)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors agree up to the last bits, which a vectorised cosine may change with its shape."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    slack = 2.0 * torch.finfo(a.dtype).eps
    return torch.allclose(a.double(), b.double(), rtol=slack, atol=slack, equal_nan=True)
