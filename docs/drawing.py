"""Draws the compiler's packages into `docs/architecture.md`, from the imports themselves.

In: the import graph and the layers of pyproject.toml. Out: a mermaid flowchart between two marks: a box for each
layer, and an arrow for every import that no chain of other arrows implies. `python docs/drawing.py` rewrites the page;
with `--check` it exits with 1 when the page is out of date.
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
    """Return the packages of each layer, the highest layer first, as the import contract lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    return [row.replace(":", "|").replace(" ", "").split("|") for row in contract["layers"]]


def imports(names: Sequence[str]) -> dict[str, set[str]]:
    """Return, for each package or module in `names`, which others of them it imports, at any depth.

    Names are those directly below `agentcompile`.
    """
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
    """Return the transitive reduction of an acyclic graph: the edges that no longer path implies."""
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
    """Return the mermaid text of the flowchart."""
    rows = layers()
    edges = reduced(imports([name for row in rows for name in row]))
    lines = ["```mermaid", "flowchart TB"]
    for at, row in enumerate(rows):
        lines += [f'  subgraph L{at}[" "]', "    direction LR", *(f"    {name}" for name in sorted(row)), "  end"]
    lines += [f"  {one} --> {other}" for row in rows for one in sorted(row) for other in sorted(edges[one])]
    return "\n".join([*lines, "```", ""])


def updated(page: str) -> str:
    """Return the page with the drawing replaced by the current one."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + drawing() + END + after


def main() -> int:
    """Rewrite the page, or with `--check` only compare it; return an exit code."""
    page = PAGE.read_text(encoding="utf-8")
    made = updated(page)
    if "--check" in sys.argv[1:]:
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
