"""Draws the compiler's packages as `docs/architecture.svg`, from the imports themselves.

In: the import graph and the layers of pyproject.toml. Out: a picture with a band for each layer, and an arrow for every
import that no chain of other arrows implies. `python docs/drawing.py` draws it anew; with `--check` it exits with 1
when the picture is out of date.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import grimp
from layered import Node, bent, ordered, places

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
WIDEST = 7
"""The most boxes of a layer side by side; a layer with more takes two rows."""
CHAR_PX, BOX_PX, ROW_PX, GAP_PX, BEND_PX, EDGE_PX = 7.3, 24, 62, 14, 2, 16
"""Width of a character, height of a box, from row to row, between neighbours, width of a bend, and around it all."""
STYLE = """
svg { background: #ffffff; font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.band { fill: #f2f4f7 } .box { fill: #ffffff; stroke: #5b6b7f } text { fill: #1d2733; text-anchor: middle }
.arrow { fill: none; stroke: #8493a6; stroke-width: 1.1 } .tip { fill: #5b6b7f }
@media (prefers-color-scheme: dark) {
svg { background: #1e2129 } .band { fill: #282c36 } .box { fill: #1e2129; stroke: #8b9bb0 } text { fill: #e3e8ef }
.arrow { stroke: #6f7f93 } .tip { fill: #8b9bb0 }
}
""".strip()


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


def split(layer: Sequence[str], edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the rows of a layer: importers above what they import, and no row too wide."""
    depth: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in depth:
            depth[name] = max((1 + of(other) for other in edges[name] if other in layer), default=0)
        return depth[name]

    rows = []
    for at in sorted({of(name) for name in layer}, reverse=True):
        # Who imports most goes above: fewer arrows pass the row below.
        row = sorted((name for name in layer if of(name) == at), key=lambda name: (-len(edges[name]), name))
        count = -(-len(row) // WIDEST)
        size = -(-len(row) // count)
        rows += [sorted(row[begin : begin + size]) for begin in range(0, len(row), size)]
    return rows


def drawing() -> str:
    """Return the picture as SVG."""
    found = layers()
    edges = reduced(imports([name for layer in found for name in layer]))
    bands = [split(layer, edges) for layer in found]
    names = [row for band in bands for row in band]
    boxes = {(name, at) for at, row in enumerate(names) for name in row}
    rows, links = bent(names, edges)
    rows = ordered(rows, links)

    def width(node: Node) -> float:
        return len(node[0]) * CHAR_PX + 14 if node in boxes else BEND_PX

    x = {node: EDGE_PX + value for node, value in places(rows, links, width, GAP_PX).items()}
    right = max(x[node] + width(node) / 2 for node in x) + EDGE_PX
    bottom = len(rows) * ROW_PX
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:.0f} {bottom}" width="{right:.0f}" '
        f'height="{bottom}" role="img">',
        "<title>The packages of agentcompile in their layers, and who imports whom</title>",
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker>',
    ]
    first = 0
    for band in bands:
        height = len(band) * ROW_PX - 14
        out.append(
            f'<rect class="band" x="4" y="{first * ROW_PX + 7}" width="{right - 8:.0f}" height="{height}" rx="6"/>'
        )
        first += len(band)
    for one, other in links:
        out.append(_arrow(one, other, x, boxes))
    for name, at in sorted(boxes, key=lambda node: (node[1], x[node])):
        middle, wide = x[name, at], width((name, at))
        top = _middle(at) - BOX_PX / 2
        out.append(
            f'<rect class="box" x="{middle - wide / 2:.1f}" y="{top:.0f}" width="{wide:.1f}" height="{BOX_PX}" rx="4"/>'
            f'<text x="{middle:.1f}" y="{top + 16:.0f}">{name}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def _middle(row: int) -> float:
    return row * ROW_PX + ROW_PX / 2


def _arrow(one: Node, other: Node, x: Mapping[Node, float], boxes: set[Node]) -> str:
    """Return a curve from a box or bend to the next row, with a tip where it ends at a box."""
    begin = _middle(one[1]) + (BOX_PX / 2 if one in boxes else 0)
    end = _middle(other[1]) - (BOX_PX / 2 if other in boxes else 0)
    half = (begin + end) / 2
    tip = ' marker-end="url(#tip)"' if other in boxes else ""
    curve = f"M{x[one]:.1f} {begin:.0f}C{x[one]:.1f} {half:.0f} {x[other]:.1f} {half:.0f} {x[other]:.1f} {end:.0f}"
    return f'<path class="arrow" d="{curve}"{tip}/>'


def main() -> int:
    """Draw the picture, or with `--check` only compare it; return an exit code."""
    made = drawing()
    if "--check" in sys.argv[1:]:
        return int(not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != made)
    PICTURE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
