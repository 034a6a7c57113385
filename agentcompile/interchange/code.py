"""A region's body as a self-contained Python program: its meaning, in PyTorch.

In: a region. Out: text that defines ``run``, a function of the region's inputs to its outputs, each in port order. The
operators are those of `agentcompile.ops.reference`, copied from its text: candidates were validated against and timed
beside them, so there is no second definition that could differ. Nothing is executed here.
"""

from __future__ import annotations

import ast
import functools
import importlib.resources
import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from agentcompile.ir.graph import TOKENS, Attr, Dim, Node, Use, View
from agentcompile.ir.region import Region

TABLE = "OPERATORS"
"""The table of `agentcompile.ops.reference` from an operator's name to its function."""
MODULES = ("attention", "reference")
"""The modules that define the operators, each after those that it imports."""


class UnfitError(ValueError):
    """A region that another format cannot express; the message says what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    text: str
    bound: dict[str, ast.stmt]
    operators: dict[str, ast.expr]


def identifiers(region: Region) -> dict[str, str]:
    """Return a unique Python name for every value of the region's body: ``w.0`` is ``w_0``."""
    taken = {*keyword.kwlist, *_module().bound, TOKENS, "run"}
    names: dict[str, str] = {}
    for value in region.body.values:
        name = re.sub(r"\W", "_", value.id)
        name = f"_{name}" if name[:1].isdigit() else name
        while name in taken:
            name += "_"
        taken.add(name)
        names[value.id] = name
    return names


def program(region: Region) -> str:
    """Return the program text; a state that the region appends to is written in place, as kernels write it.

    Raises:
        UnfitError: an operator has no normalised form.
    """
    module, names = _module(), identifiers(region)
    functions = [_function(module, node) for node in region.body.nodes]
    inputs = [names[port.name] for port in region.ports if port.role != "output"]
    body = [f"{TOKENS} = {size}"] if (size := _tokens(region, names)) else []
    for node, function in zip(region.body.nodes, functions, strict=True):
        outs = ", ".join(names[out] for out in node.outputs)
        body.append(f"{outs} = {ast.unparse(function)}({', '.join(_arguments(region, node, names))})")
    results = dict(region.body.outputs)
    made = [_seen(results[port.name], names) for port in region.ports if port.role == "output"]
    body.append(f"return {', '.join(made)}" if made else "return ()")
    head = _needed(module, functions)
    return "\n".join([*head, "", "", f"def run({', '.join(inputs)}):", *(f"    {line}" for line in body)]) + "\n"


def _function(module: _Module, node: Node) -> ast.expr:
    if node.op not in module.operators:
        raise UnfitError(f"{node.op} has no normalised form")
    return module.operators[node.op]


def _tokens(region: Region, names: dict[str, str]) -> str:
    """Return an expression for the number of tokens of a chunk; empty when no extent is symbolic."""
    for port in region.ports:
        if port.role != "output" and TOKENS in port.shape:
            return f"{names[port.name]}.shape[{port.shape.index(TOKENS)}]"
    return ""


def _arguments(region: Region, node: Node, names: dict[str, str]) -> list[str]:
    told: list[tuple[str, Attr | Dim]] = list(node.attrs)
    if node.op == "position_table":  # as `reference.keywords` says: its leading extent is in the declared shape alone
        told.append(("batch", region.body.table()[node.outputs[0]].shape[0]))
    return [*(_seen(use, names) for use in node.inputs), *(f"{name}={value!r}" for name, value in told)]


def _seen(use: Use, names: dict[str, str]) -> str:
    """Return the expression of a value with its views applied, in the order of `reference.apply_views`."""
    return names[use.value] + "".join(_view(view) for view in use.views)


def _view(view: View) -> str:
    if view.op == "slice":
        axis, start, stop = view.args
        assert isinstance(axis, int)
        return f"[{':, ' * axis}{start}:{stop}]"
    return f".{view.op}(({', '.join(str(arg) for arg in view.args)},))"


@functools.cache
def _module() -> _Module:
    package = importlib.resources.files("agentcompile.ops")
    text = "\n".join(package.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
    bound: dict[str, ast.stmt] = {}
    operators: dict[str, ast.expr] = {}
    for statement in ast.parse(text).body:
        bound = dict.fromkeys(_binds(statement), statement) | bound
        if isinstance(statement, ast.AnnAssign) and _binds(statement) == [TABLE]:
            assert isinstance(statement.value, ast.Dict)
            rows = zip(statement.value.keys, statement.value.values, strict=True)
            operators = {str(ast.literal_eval(key)): value for key, value in rows if key is not None}
    return _Module(text=text, bound=bound, operators=operators)


def _binds(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names]
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _needed(module: _Module, functions: Sequence[ast.expr]) -> list[str]:
    wanted, fresh = set[str](), _names(functions, module)
    while fresh:
        wanted |= fresh
        fresh = _names((module.bound[name] for name in fresh), module) - wanted
    kept = {statement.lineno: statement for name, statement in module.bound.items() if name in wanted}
    found = ["from __future__ import annotations", ""]
    for line in sorted(kept):
        statement = kept[line]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            found.append(_import(statement, wanted))
        else:
            text = ast.get_source_segment(module.text, statement)
            assert text is not None
            found += ["", "", *text.splitlines()]
    return found


def _names(nodes: Iterable[ast.AST], module: _Module) -> set[str]:
    read = chain.from_iterable(ast.walk(node) for node in nodes)
    return {node.id for node in read if isinstance(node, ast.Name)} & module.bound.keys()


def _import(statement: ast.Import | ast.ImportFrom, wanted: set[str]) -> str:
    names = [alias for alias in statement.names if (alias.asname or alias.name.partition(".")[0]) in wanted]
    if isinstance(statement, ast.Import):
        return ast.unparse(ast.Import(names=names))
    assert not (statement.module or "").startswith("agentcompile"), "an operator is made of PyTorch alone"
    return ast.unparse(ast.ImportFrom(module=statement.module, names=names, level=0))
