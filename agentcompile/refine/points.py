"""A written template as the catalog reads it, and the few points of its parameters that are evaluated.

In: two texts that a model wrote. Out: a checked `Template`, or findings; nothing of the texts is executed, and whatever
they are, no exception comes of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentcompile import check
from agentcompile.catalog import load
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.catalog.discover import MANIFEST, MAX_SOURCE_BYTES
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import MOST_POINTS, Written, WrittenLanguage
from agentcompile.ir.cleaning import clean
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Template
from agentcompile.ir.trial import Finding
from agentcompile.ops.layouts import LAYOUTS, fits
from agentcompile.regions.kinds import facts as kinds

MAX_MANIFEST_CHARACTERS = 1 << 16
_TRIED = 64
"""The most points that are looked at to find these."""
LINE = 600
"""The most characters of one finding."""


def read(written: Written, kind: str, language: WrittenLanguage, dtype: str) -> Template | tuple[Finding, ...]:
    """Return the template that the texts make for regions of `dtype`, or why they make none."""
    made = read_all(written, kind, language)
    templates = [one for one in made if isinstance(one, Template)]
    if not templates:
        return tuple(one for one in made if isinstance(one, Finding))
    if any(one.accumulation == "library" for one in templates):  # its bounds are wide: nobody knows what a library does
        return (finding("accumulation", "library is for calls of a library; say how the kernel keeps its sums"),)
    return next((one for one in templates if dtype in one.dtypes), templates[0])


def read_all(
    written: Written, kind: str, language: WrittenLanguage, name: str = ""
) -> tuple[Template, ...] | tuple[Finding, ...]:
    """Return the templates that the texts make as a folder of their own called `name`, or why they make none.

    The folder stands alone: it includes nothing of other templates. There are several templates where dtypes have
    tables of their own.
    """
    if found := tuple(unreadable(written)):
        return found
    with tempfile.TemporaryDirectory(prefix="written-") as root:
        folder = Path(root) / kind / (name or written.variant)
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_bytes(written.manifest.encode())
        (folder / KERNEL_FILES[language]).write_bytes(written.kernel.encode())
        try:
            return load([Path(root)], kinds=kinds(), layouts=LAYOUTS).templates
        except AgentCompileError as error:
            return (finding("manifest", f"{error.message.replace(f'{Path(root).name}/', '')}; {error.hint}"),)


def finding(rule: str, text: str) -> Finding:
    """Return an error of a written template; its text is cleaned and cut."""
    return Finding(rule=rule, severity="error", text=clean(text, LINE))


def unreadable(written: Written) -> Iterator[Finding]:
    """Yield why a manifest or a kernel is not read: it is too long, or it is no text."""
    for name, text, most in (
        ("template.toml", written.manifest, MAX_MANIFEST_CHARACTERS),
        ("the kernel", written.kernel, MAX_SOURCE_BYTES),
    ):
        if len(text) > most:
            yield finding("size", f"{name} has {len(text)} characters; at most {most} are read")
        elif not _is_text(text):
            yield finding("text", f"{name} holds a lone surrogate or a NUL character, which is no text")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def legal_points(template: Template, region: Region, target: Target) -> tuple[tuple[Params, ...], tuple[Finding, ...]]:
    """Return the points to evaluate, the default first where it is legal, and the findings on the default."""
    found: list[Params] = []
    told: tuple[Finding, ...] = ()
    for number, params in enumerate(_near(template)):
        findings = check.check(region, template, params, target, layout_fits=fits)
        if number == 0:
            told = findings
        if not check.errors(findings):
            found.append(params)
        if len(found) > MOST_POINTS or number >= _TRIED:
            break
    return tuple(found[: MOST_POINTS + 1]), told


def _near(template: Template) -> Iterator[Params]:
    """Yield the default, then points that differ from it in one parameter, the nearest values of all parameters first.

    A template whose default is not legal is tried at those points all the same.
    """
    default = template.defaults
    yield default
    for step in range(1, max((len(param.domain) for param in template.params), default=0)):
        for at, param in enumerate(template.params):
            home = param.domain.index(param.default)
            for place in (home + step, home - step):
                if 0 <= place < len(param.domain):
                    yield (*default[:at], (param.name, param.domain[place]), *default[at + 1 :])
