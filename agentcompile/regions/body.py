"""Builds a region from a legal match: body graph, ports, extents and bindings.

Invariant: equal operators at equal shapes give equal bodies wherever they are in the graph. An edge that only reshapes
is folded into its port's shape. Any other view stays in the body, and the port is the whole buffer behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentcompile.ir.graph import Dim, Graph, Node, Role, Use, Value, View
from agentcompile.ir.region import Access, Port, PortRole, Site
from agentcompile.regions.legal import LegalityFacts, state_root
from agentcompile.regions.match import Bound, Match, attribute, dense
from agentcompile.regions.pattern import Size

Shape = tuple[Dim, ...]


class UnequalError(ValueError):
    """Members of a family, or operators that must agree, disagree about an extent or a scalar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionParts:
    """A region's parts before cost and merging."""

    body: Graph
    ports: tuple[Port, ...]
    site: Site


def make(match: Match, known: LegalityFacts) -> RegionParts:
    """Build the body, the ports and the site of a match."""
    values = dict(match.values)
    results = {name for bound in match.operators for name in bound.outs}
    shapes = _port_shapes(match, results, known)
    writes = {bound.names[k] for bound in match.operators for k in bound.node.mutates}
    inputs = [_input(name, values[name], shape, known) for name, shape in shapes.items()]
    nodes = [_node(bound, shapes, results, known) for bound in match.operators]
    inside = [_result(name, values, known) for bound in match.operators for name in bound.outs]
    outputs = tuple((name, Use(value=name)) for name in _outputs(match, known))
    body = Graph(
        phase=known.graph.phase,
        values=(*inputs, *inside),
        nodes=tuple(nodes),
        inputs=tuple(value.id for value in inputs),
        outputs=outputs,
    )
    ports = [_port(value, "append" if value.id in writes else "read") for value in inputs]
    table = body.table()
    ports += [replace(_port(table[name], "write"), role="output") for name, _ in outputs]
    ordered = sorted(match.nodes, key=known.order.index.__getitem__)
    path = known.graph.nodes[known.order.index[ordered[0]]].module
    site = Site(nodes=tuple(ordered), bindings=tuple((port.name, values[port.name]) for port in ports), path=path)
    return RegionParts(body=body, ports=tuple(ports), site=site)


def _seen(use: Use, known: LegalityFacts) -> Shape:
    return use.views[-1].args if use.views else known.table[use.value].shape


def _port_shapes(match: Match, results: set[str], known: LegalityFacts) -> dict[str, Shape]:
    """Return the input ports in order of appearance, each with the shape that its first operator sees.

    A port that some operator reads through another view than a reshape has the shape of its buffer.
    """
    shapes: dict[str, Shape] = {}
    strided = {name for bound in match.operators for name, use in _edges(bound) if not dense(use.views)}
    for bound in match.operators:
        for name, use in _edges(bound):
            if name not in results:
                shapes.setdefault(name, known.table[use.value].shape if name in strided else _seen(use, known))
    return shapes


def _edges(bound: Bound) -> list[tuple[str, Use]]:
    return list(zip(bound.names, bound.uses, strict=True))


def _input(name: str, value_id: str, shape: Shape, known: LegalityFacts) -> Value:
    value = known.table[value_id]
    role: Role = "state" if state_root(known, value_id) else value.role
    return Value(id=name, shape=shape, dtype=value.dtype, role=role)


def _node(bound: Bound, shapes: dict[str, Shape], results: set[str], known: LegalityFacts) -> Node:
    uses = []
    for name, use in _edges(bound):
        whole = known.table[use.value].shape if name in results else shapes[name]
        views = use.views
        if dense(views):
            seen = _seen(use, known)
            views = () if seen == whole else (View(op="reshape", args=seen),)
        uses.append(Use(value=name, views=views))
    id = bound.outs[0] if bound.outs else bound.node.id
    return Node(
        id=id,
        op=bound.node.op,
        inputs=tuple(uses),
        outputs=bound.outs,
        attrs=bound.node.attrs,
        mutates=bound.node.mutates,
    )


def _result(name: str, values: dict[str, str], known: LegalityFacts) -> Value:
    """Return a computed value; one that lives in a state's buffer becomes an alias of the state's port."""
    value = known.table[values[name]]
    owner = state_root(known, value.id)
    alias = next(
        (other for other, of in values.items() if owner and other != name and state_root(known, of) == owner), ""
    )
    return Value(id=name, shape=value.shape, dtype=value.dtype, role="state" if alias else "activation", alias=alias)


def _outputs(match: Match, known: LegalityFacts) -> list[str]:
    """Return the results that are read outside the match, in the pattern's order.

    States are left out, because they are written in place.
    """
    values = dict(match.values)
    names = []
    for bound in match.operators:
        for name in bound.outs:
            value = values[name]
            wanted = value in known.kept or known.readers[value] - match.nodes
            if wanted and not state_root(known, value):
                names.append(name)
    return names


_ROLES: dict[Role, PortRole] = {"weight": "weight", "constant": "weight", "state": "state"}


def _port(value: Value, access: Access) -> Port:
    role = _ROLES.get(value.role, "activation")
    return Port(name=value.id, role=role, access=access, shape=value.shape, dtype=value.dtype)


def measure_dims(sizes: tuple[Size, ...], body: Graph, tokens: int) -> tuple[tuple[str, int], ...]:
    """Evaluate a kind's extents on a body.

    Raises:
        UnequalError: members of a family disagree about an extent, or one has no such axis.
    """
    found = {"tokens": tokens}
    for size in sizes:
        number = _extent(size, body, tokens)
        found[size.name] = number // found[size.over] if size.over else number
    return tuple(sorted(found.items()))


def measure_constants(sizes: tuple[Size, ...], body: Graph) -> tuple[tuple[str, float], ...]:
    """Evaluate a kind's scalars on a body.

    Raises:
        UnequalError: operators that must agree about a scalar do not, or it is not a number.
    """
    return tuple((size.name, float(_scalar(size, body))) for size in sizes)


def _members(name: str, body: Graph) -> list[Value]:
    found = [value for value in body.values if value.id == name or value.id.partition(".")[0] == name]
    assert found, f"the body has no {name}"
    return found


def _extent(size: Size, body: Graph, tokens: int) -> int:
    if size.form == "attr":
        return int(_scalar(size, body))
    if size.form == "numel":
        numbers = [value.numel(tokens) for value in _members(size.of[0], body)]
    else:
        places = [
            (value, axis) for name, axis in zip(size.of, size.axes, strict=True) for value in _members(name, body)
        ]
        if short := next((value.id for value, axis in places if axis >= len(value.shape)), ""):
            raise UnequalError(f"{short} has too few extents for {size.name}")
        dims = [value.shape[axis] for value, axis in places]
        numbers = [dim if isinstance(dim, int) else tokens for dim in dims]
    if size.form == "sum":
        return sum(numbers)
    if len(set(numbers)) > 1:
        raise UnequalError(
            f"{size.name} is {numbers[0]} and {next(n for n in numbers if n != numbers[0])} in one region"
        )
    return numbers[0]


def _scalar(size: Size, body: Graph) -> float:
    numbers = []
    producers = body.producers()
    for of in size.of:
        name, _, attr = of.partition(".")
        number = attribute(producers[name], attr)
        if not isinstance(number, (int, float)):
            raise UnequalError(f"{of} is {number!r}, not a number")
        numbers.append(number)
    if len(set(numbers)) > 1:
        raise UnequalError(
            f"{' and '.join(size.of)} differ: {numbers[0]} and {next(n for n in numbers if n != numbers[0])}"
        )
    return numbers[0]
