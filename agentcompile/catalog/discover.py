"""Discovery by glob: ``<root>/<kind>/<variant>/template.toml`` with one kernel file beside it; the path is the id."""

from __future__ import annotations

import importlib.resources
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.catalog.decode import from_toml, hint_of, read_text
from agentcompile.catalog.manifest import Manifest
from agentcompile.catalog.semantics import refuse, verify
from agentcompile.errors import AgentCompileError
from agentcompile.ir.kind import KindFacts
from agentcompile.ir.template import QUOTED_INCLUDE, Language, Template

MANIFEST = "template.toml"
INCLUDE_FOLDER = "_include"
KERNEL_FILES: dict[Language, str] = {"cpp": "kernel.cpp", "cuda": "kernel.cu", "triton": "kernel.py"}
"""The one file that lies beside the manifest; `library` has none."""
MAX_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Every template that was found, ordered by id."""

    templates: tuple[Template, ...]

    def get(self, id: str) -> Template:
        """The template of that id; raises `AgentCompileError` (usage) with the nearest one."""
        for template in self.templates:
            if template.id == id:
                return template
        known = [template.id for template in self.templates]
        raise AgentCompileError(f"no template {id}", hint=hint_of(id, known, what="templates"))

    def serving(self, kind: str) -> tuple[Template, ...]:
        """The templates of a region kind, in order."""
        return tuple(template for template in self.templates if template.region == kind)


def default_root() -> Path:
    """The templates that come with the package."""
    with importlib.resources.as_file(importlib.resources.files("agentcompile.templates")) as root:
        return root


def load(roots: Sequence[Path], *, kinds: Mapping[str, KindFacts], layouts: Collection[str]) -> Catalog:
    """Read and check every template below `roots`.

    `kinds` are the facts of every region kind, `layouts` the names of the layout table. An include is looked for in
    its own root and then in the others. Raises `AgentCompileError` (usage) for the first fault, naming file and key.
    """
    found: dict[str, tuple[Template, str]] = {}
    for root in roots:
        if not root.is_dir():
            raise AgentCompileError(f"{root}: no such folder of templates", hint="check the path after --templates")
        order = [root, *(other for other in roots if other != root)]
        for manifest in sorted(root.glob(f"*/*/{MANIFEST}")):
            template, file = _read(manifest, root, order), _shown(manifest, root)
            verify(template, file=file, kinds=kinds, layouts=layouts)
            if template.id in found:
                hint = f"rename one folder; the first is {found[template.id][1]}"
                raise refuse(file, "", f"{template.id} was found already", hint)
            found[template.id] = (template, file)
    return Catalog(templates=tuple(found[id][0] for id in sorted(found)))


def _shown(path: Path, root: Path) -> str:
    """The path as people know it: from the root's own name on."""
    return f"{root.name}/{path.relative_to(root).as_posix()}"


def _read(path: Path, root: Path, order: Sequence[Path]) -> Template:
    """One template, decoded but not yet checked for meaning."""
    file = _shown(path, root)
    manifest = from_toml(Manifest, read_text(path, file=file), file=file)
    id = path.parent.relative_to(root).as_posix()
    kernels = [name for name in KERNEL_FILES.values() if (path.parent / name).exists()]
    wanted = KERNEL_FILES.get(manifest.language)
    expected = [wanted] if wanted else []
    if kernels != expected:
        text = f'"{manifest.language}" with {", ".join(kernels) or "no kernel file"} beside it'
        raise refuse(file, "language", text, f"it takes {wanted or 'no kernel file'} and no other")
    if wanted is None:
        return manifest.template(id=id, source_name="", source="", includes=())
    source = _source(path.parent / wanted, root)
    includes: dict[str, str] = {}
    _include(source, f"{root.name}/{id}/{wanted}", order, includes)
    return manifest.template(id=id, source_name=wanted, source=source, includes=tuple(includes.items()))


def _source(path: Path, root: Path) -> str:
    text = read_text(path, file=_shown(path, root))
    if len(text) > MAX_SOURCE_BYTES:
        excess = f"{len(text)} characters, more than {MAX_SOURCE_BYTES}"
        raise refuse(_shown(path, root), "", excess, "split the kernel")
    return text


def _include(text: str, file: str, order: Sequence[Path], includes: dict[str, str]) -> None:
    """Collect the shared texts that `text` names, depth first, each once."""
    for match in QUOTED_INCLUDE.finditer(text):
        name = match[1]
        if name in includes:
            continue
        path = next((p for root in order if (p := root / INCLUDE_FOLDER / name).is_file()), None)
        if path is None or Path(name).name != name:
            line = text[: match.start()].count("\n") + 1
            known = sorted({p.name for root in order for p in (root / INCLUDE_FOLDER).glob("*") if p.is_file()})
            text = f'#include "{name}": no such file in {INCLUDE_FOLDER}/'
            raise refuse(f"{file}:{line}", "", text, hint_of(name, known))
        included = read_text(path, file=f"{INCLUDE_FOLDER}/{name}")
        includes[name] = included
        _include(included, f"{INCLUDE_FOLDER}/{name}", order, includes)
