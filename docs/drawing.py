"""Draws the packages of the compiler into `docs/architecture.md`, from the imports themselves.

In: the import graph and the layers of pyproject.toml. Out: a mermaid flowchart between two marks: a box for each
layer, and an arrow for every import that does not follow from others. `python docs/drawing.py` rewrites it, `--check`
says whether it is up to date.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawing: begin -->\n", "<!-- drawing: end -->\n"


def layers() -> list[list[str]]:
    """Packages by layer, the highest first, as the import contract has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    return [row.replace(":", "|").replace(" ", "").split("|") for row in contract["layers"]]


def imports(names: Sequence[str]) -> dict[str, set[str]]:
    """For every package or module right below `agentcompile` those of the same that it imports, at any depth."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph("agentcompile", exclude_type_checking_imports=True, cache_dir=None)
    found: dict[str, set[str]] = {name: set() for name in names}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            one, other = (f"{module}.".split(".")[1] for module in (importer, imported))
            if one in found and other in found and one != other:
                found[one].add(other)
    return found


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The edges that do not follow from others; `edges` has no circle."""
    reach: dict[str, set[str]] = {}

    def below(name: str) -> set[str]:
        if name not in reach:
            reach[name] = set().union(*({other} | below(other) for other in edges[name]))
        return reach[name]

    return {
        name: {other for other in others if not any(other in below(via) for via in others - {other})}
        for name, others in edges.items()
    }


def drawing() -> str:
    """The mermaid text."""
    rows = layers()
    edges = reduced(imports([name for row in rows for name in row]))
    lines = ["```mermaid", "flowchart TB"]
    for at, row in enumerate(rows):
        lines += [f'  subgraph L{at}[" "]', "    direction LR", *(f"    {name}" for name in sorted(row)), "  end"]
    lines += [f"  {one} --> {other}" for row in rows for one in sorted(row) for other in sorted(edges[one])]
    return "\n".join([*lines, "```", ""])


def updated(page: str) -> str:
    """The page with the drawing as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + drawing() + END + after


def main() -> int:
    """Rewrite the page, or with `--check` only compare."""
    page = PAGE.read_text(encoding="utf-8")
    made = updated(page)
    if "--check" in sys.argv[1:]:
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
