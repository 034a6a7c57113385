"""Turns a template into a `Source`: a generated prologue, the shared texts inlined, and the kernel verbatim.

Equal templates, regions, parameters and targets give equal bytes, whatever the sites are called. `#line` directives
make compiler messages point at the template's own files; in Triton's Python they are comments, and an include is one
too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from agentcompile.errors import AgentCompileError
from agentcompile.ir.evaluate import EvaluationError, evaluate, explain
from agentcompile.ir.expr import parse
from agentcompile.ir.region import Port, Region
from agentcompile.ir.scope import scope
from agentcompile.ir.target import Target
from agentcompile.ir.template import COUNT, QUOTED_INCLUDE, Language, Launch, Params, Source, Template, TensorMap
from agentcompile.materialize import cpp, cuda, triton

Prologue = Callable[[Template, Region, Params, Target], str]
PROLOGUES: dict[Language, Prologue] = {"cpp": cpp.prologue, "cuda": cuda.prologue, "triton": triton.prologue}
"""The prologue generator of each language; `library` has no program text."""
FLAGS: dict[Language, Callable[[Target], tuple[str, ...]]] = {
    "cpp": cpp.flags,
    "cuda": cuda.flags,
    "triton": cuda.flags,
}
NULL = ""
"""The resolved argument for a family that the region lacks: a null pointer."""


def specialise(template: Template, region: Region, params: Params, target: Target) -> Source:
    """Return the program text of one candidate, with its launches resolved to port and workspace names.

    A launch of the result lists one name for each pointer of the entry's argument struct: a family becomes its ports in
    order, or `NULL` when the region lacks it. The geometry of a launch becomes numbers.

    Raises:
        AgentCompileError: a count has no value or is negative, or a tensor map's extent is no number.
        KeyError: the language is not in `PROLOGUES`.
    """
    names = scope(region, target, params)
    launches = tuple(_resolved(launch, template, region, names) for launch in template.launches)
    workspaces = tuple(
        (w.name, w.dtype, _elements(w.count, f"{template.id}: {w.name}", names), w.initial == "zero")
        for w in template.workspaces
    )
    if template.language == "library":
        return Source(language="library", text="", launches=(), workspaces=(), call=template.call, settings=params)
    text = PROLOGUES[template.language](template, region, params, target) + inlined(template)
    flags = FLAGS[template.language](target)
    return Source(language=template.language, text=text, launches=launches, workspaces=workspaces, flags=flags)


def _resolved(launch: Launch, template: Template, region: Region, names: Mapping[str, int]) -> Launch:
    own = {COUNT, *(space.name for space in template.workspaces)}
    arguments: list[str] = []
    for name in launch.arguments:
        ports = [port.name for port in region.family(name)]
        arguments += [name] if name in own else ports or [NULL]

    early = tuple(port.name for name in launch.early for port in region.family(name))
    in_place = tuple(
        (output.name, source.name)
        for made, read in launch.in_place
        for output, source in zip(region.family(made), region.family(read), strict=False)
    )
    pitched, token_major = (
        tuple((port.name, space) for name, space in pairs for port in region.family(name))
        for pairs in (launch.pitched, launch.token_major)
    )

    def number(key: str, text: str) -> str:
        return str(_elements(text, f"{template.id}: {launch.entry}: {key}", names))

    return replace(
        launch,
        arguments=tuple(arguments),
        early=early,
        in_place=in_place,
        pitched=pitched,
        token_major=token_major,
        grid=tuple(number("grid", text) for text in launch.grid),
        block=tuple(number("block", text) for text in launch.block),
        shared_bytes=number("shared_bytes", launch.shared_bytes),
        cluster=tuple(number("cluster", text) for text in launch.cluster),
        maps=tuple(
            _mapped(one, port, number("maps", one.box), f"{template.id}: {launch.entry}")
            for one in launch.maps
            for port in region.family(one.of)
        ),
    )


def _mapped(one: TensorMap, port: Port, box: str, what: str) -> TensorMap:
    if not all(str(extent).isdecimal() for extent in port.shape):
        shape = ", ".join(map(str, port.shape))
        raise AgentCompileError(
            f"{what}: a tensor map of {port.name} with the extents {shape}", hint="specialise it for one length"
        )
    *outer, columns = (int(extent) for extent in port.shape)
    return replace(one, of=port.name, box=box, rows=math.prod(outer), columns=columns)


def _elements(count: str, what: str, names: Mapping[str, int]) -> int:
    expr = parse(count)
    try:
        elements = int(evaluate(expr, names))
    except EvaluationError as error:
        raise AgentCompileError(f"{what}: {explain(expr, names)}", hint="add a `requires` that excludes it") from error
    if elements < 0:
        raise AgentCompileError(f"{what}: {elements} elements: {explain(expr, names)}", hint="counts are 0 or more")
    return elements


def inlined(template: Template) -> str:
    """Return the kernel text with every quoted include inlined once, recursively, under `#line` directives."""
    texts, done = dict(template.includes), set[str]()
    return _inline(template.source, f"{template.id}/{template.source_name}", texts, done)


def _inline(text: str, file: str, texts: Mapping[str, str], done: set[str]) -> str:
    out = [f'#line 1 "{file}"\n']
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        include = QUOTED_INCLUDE.match(line)
        if include is None:
            out.append(_plain(line))
        elif include[1] in done:
            out.append("\n")
        else:
            done.add(include[1])
            out.append(_inline(texts[include[1]], f"_include/{include[1]}", texts, done))
            out.append(f'#line {number + 1} "{file}"\n')
    return "".join(out)


def _plain(line: str) -> str:
    """Return a line without a `#pragma once`, which warns in a main file, and with a line end."""
    if line.strip() == "#pragma once":
        return "\n"
    return line if line.endswith("\n") else line + "\n"
