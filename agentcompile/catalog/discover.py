"""Discovery by glob: ``<root>/<kind>/<variant>/template.toml`` with its kernel file beside it; the path is the id.

A manifest with tables for single dtypes becomes several templates with one id, each with the facts for its dtypes. A
wrong template is an error; in a lenient root its folder is quarantined instead, and the other templates are used.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.catalog.aliases import ALIASES, KERNEL_FILES, called
from agentcompile.catalog.decode import from_toml, hint_of, read_text
from agentcompile.catalog.manifest import Manifest
from agentcompile.catalog.semantics import refuse, verify
from agentcompile.errors import AgentCompileError
from agentcompile.ir.kind import TASK, KindFacts
from agentcompile.ir.template import QUOTED_INCLUDE, Template

MANIFEST = "template.toml"
INCLUDE_FOLDER = "_include"
_KERNEL = re.compile(r"(?:[a-z][a-z0-9-]*/[a-z][a-z0-9-]*/)?kernel\w*\.[a-z]+")
MAX_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A folder of a lenient root whose template is wrong, so that it is left out."""

    folder: str
    reason: str
    """The fault as file, key and value."""
    hint: str

    @property
    def text(self) -> str:
        """The folder, the fault and the remedy, on one line for people."""
        return f"{self.folder}: this template is left out: {self.reason}; {self.hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Every template that was found, ordered by id; for one id there is at most one template for each dtype."""

    templates: tuple[Template, ...]
    quarantined: tuple[Quarantined, ...] = ()

    def get(self, id: str, dtype: str = "") -> Template:
        """Return the template with that id; where an id has several, the one that serves `dtype`.

        Raises:
            AgentCompileError: no such template, or none for `dtype` (usage); the hint names the nearest id or the
                dtypes.
        """
        own = [template for template in self.templates if template.id == id]
        found = [template for template in own if not dtype or dtype in template.dtypes]
        if len(found) == 1:
            return found[0]
        if own:
            served = ", ".join(name for template in own for name in template.dtypes)
            text = f"{id} does not serve {dtype}" if dtype else f"{id} differs by dtype"
            raise AgentCompileError(text, hint=f"it serves: {served}")
        raise AgentCompileError(f"no template {id}", hint=hint_of(id, self.ids, what="templates"))

    @property
    def ids(self) -> list[str]:
        """Every id once, in order."""
        return list(dict.fromkeys(template.id for template in self.templates))

    def find(self, id: str, dtype: str) -> Template | None:
        """Return the template that a lock or a recorded run calls `id`, as regions of `dtype` see it; or None.

        An old id (see `aliases`) gives the template under that old id, so that its digest and texts are the recorded
        ones. If no template with that id serves `dtype`, another one with the id is returned: the legality rules refuse
        it.
        """
        own = [template for template in self.templates if template.id == id]
        if not own and id in ALIASES:
            now = self.find(*ALIASES[id])
            return called(now, id) if now is not None else None
        return next((template for template in own if dtype in template.dtypes), own[0] if own else None)

    def serving(self, kind: str, dtype: str) -> tuple[Template, ...]:
        """Return the templates for a region kind as regions of `dtype` see them, in order.

        A template that serves only other dtypes is included, so that the legality rules report why it is refused.
        """
        own = [template for template in self.templates if template.region == kind]
        served = {template.id for template in own if dtype in template.dtypes}
        return tuple(template for template in own if dtype in template.dtypes or template.id not in served)


def default_root() -> Path:
    """Return the folder of the templates that come with the package."""
    with importlib.resources.as_file(importlib.resources.files("agentcompile.templates")) as root:
        return root


def load(
    roots: Sequence[Path],
    *,
    kinds: Mapping[str, KindFacts],
    layouts: Collection[str],
    lenient: Collection[Path] = (),
) -> Catalog:
    """Read and check every template below `roots`.

    `kinds` are the facts of every region kind, `layouts` the names in the layout table. An include, and a kernel file
    of another template, is looked for in its own root and then in the others. In the roots that are `lenient`, which
    people and models write, a wrong template is quarantined and stops nothing. Kernels of a task that is none of
    `kinds` are passed over: they serve no region.

    Raises:
        AgentCompileError: a root does not exist, or a template of another root is wrong (usage); it names the first
            fault's file and key.
    """  # noqa: DOC501
    found: dict[str, tuple[tuple[Template, ...], str]] = {}
    quarantined: list[Quarantined] = []
    for root in roots:
        if not root.is_dir():
            raise AgentCompileError(f"{root}: no such folder of templates", hint="check the path after --templates")
        order = [root, *(other for other in roots if other != root)]
        for manifest in sorted(root.glob(f"*/*/{MANIFEST}")):
            if (kind := manifest.parent.parent.name).startswith(TASK) and kind not in kinds:
                continue
            id, file = manifest.parent.relative_to(root).as_posix(), _shown(manifest, root)
            try:
                templates = _verified(manifest, root, order, kinds, layouts)
                if id in found:
                    raise refuse(file, "", f"{id} was found already", f"rename one folder; the first is {found[id][1]}")
            except AgentCompileError as error:
                if root not in lenient:
                    raise
                quarantined.append(Quarantined(folder=str(manifest.parent), reason=error.message, hint=error.hint))
            else:
                found[id] = (templates, file)
    made = tuple(template for id in sorted(found) for template in found[id][0])
    return Catalog(templates=made, quarantined=tuple(quarantined))


def _verified(
    manifest: Path, root: Path, order: Sequence[Path], kinds: Mapping[str, KindFacts], layouts: Collection[str]
) -> tuple[Template, ...]:
    templates, file = tuple(_read(manifest, root, order)), _shown(manifest, root)
    for template in templates:
        where = file if len(templates) == 1 else f"{file}: for {', '.join(template.dtypes)}"
        verify(template, file=where, kinds=kinds, layouts=layouts)
    return templates


def _shown(path: Path, root: Path) -> str:
    return f"{root.name}/{path.relative_to(root).as_posix()}"


def _read(path: Path, root: Path, order: Sequence[Path]) -> Iterator[Template]:
    file, folder = _shown(path, root), path.parent
    manifest = from_toml(Manifest, read_text(path, file=file), file=file)
    id, usual = folder.relative_to(root).as_posix(), KERNEL_FILES.get(manifest.language, "")
    _check_dtypes(manifest, file)
    parts = manifest.parts()
    _check_kernels(manifest, [part.kernel or usual for part in parts], folder, file)
    for part in parts:
        if not usual:
            yield part.template(id=id, source_name="", source="", includes=())
            continue
        name = part.kernel or usual
        foreign = "/" in name
        place = name if foreign else f"{id}/{name}"
        base = next((base for base in order if (base / place).is_file()), root) if foreign else root
        if foreign and not (base / place).is_file():
            known = sorted(one.relative_to(root).as_posix() for one in root.glob(f"*/*/{usual}"))
            raise refuse(file, "kernel", f'"{name}": there is no such file', hint_of(name, known, what="kernels"))
        source, includes = _source(base / place, base), dict[str, str]()
        _include(source, f"{base.name}/{place}", order, includes)
        # Messages call another template's kernel file by its default name: the manifest says where it is.
        own = usual if foreign else name
        yield part.template(id=id, source_name=own, source=source, includes=tuple(includes.items()))


def _check_dtypes(manifest: Manifest, file: str) -> None:
    """Refuse a table for a dtype that is not served, and a parameter in it that the manifest does not declare."""  # noqa: DOC501
    for name, own in manifest.dtype.items():
        if name not in manifest.dtypes:
            raise refuse(file, f"dtype.{name}", "it is none of its dtypes", hint_of(name, manifest.dtypes))
        for param in own.params:
            if param not in manifest.params:
                text = "there is no such parameter"
                raise refuse(file, f"dtype.{name}.params.{param}", text, hint_of(param, list(manifest.params)))


def _check_kernels(manifest: Manifest, names: Sequence[str], folder: Path, file: str) -> None:
    """Refuse names that are not a kernel file of the language, and kernel files in the folder that nothing names."""  # noqa: DOC501
    usual = KERNEL_FILES.get(manifest.language, "")
    own = {f"dtype.{name}.kernel": table.kernel for name, table in manifest.dtype.items()}
    for key, name in {"kernel": manifest.kernel, **own}.items():
        if name and not (usual and _KERNEL.fullmatch(name) and Path(name).suffix == Path(usual).suffix):
            hint = f"a file beside it or of another template: {usual}, linear/rows/{usual}" if usual else "remove it"
            raise refuse(file, key, f'"{name}" is no kernel file of a {manifest.language} template', hint)
    ends = {Path(name).suffix for name in KERNEL_FILES.values()}
    there = sorted(path.name for path in folder.glob("kernel*") if path.suffix in ends)
    wanted = sorted({name for name in names if name and "/" not in name})
    if there != wanted:
        text = f'"{manifest.language}" with {", ".join(there) or "no kernel file"} beside it'
        raise refuse(file, "language", text, f"it takes {', '.join(wanted) or 'no kernel file'} and no other")


def _source(path: Path, root: Path) -> str:
    text = read_text(path, file=_shown(path, root))
    if len(text) > MAX_SOURCE_BYTES:
        excess = f"{len(text)} characters, more than {MAX_SOURCE_BYTES}"
        raise refuse(_shown(path, root), "", excess, "split the kernel")
    return text


def _include(text: str, file: str, order: Sequence[Path], includes: dict[str, str]) -> None:
    """Collect the shared texts that `text` includes into `includes`, depth first, each once."""  # noqa: DOC501
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
