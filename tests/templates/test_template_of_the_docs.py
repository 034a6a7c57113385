"""The template that docs/how-to.md writes is loaded, built and right, as the page has it."""

from __future__ import annotations

import re
from pathlib import Path

from agentcompile.catalog import load
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts
from tests.templates.suite import legal, odd
from tests.templates.test_templates_cpu import ODD, Bench

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^`mine/(\S+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)


def test_the_template_of_the_docs_is_right_at_every_point(tmp_path: Path) -> None:
    files = FILE.findall((ROOT / "docs" / "how-to.md").read_text(encoding="utf-8"))
    assert {name for name, _ in files} == {"silu-mul/strided/template.toml", "silu-mul/strided/kernel.cpp"}
    for name, text in files:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    catalog = load([ROOT / "templates", tmp_path / "mine"], kinds=facts(), layouts=tuple(LAYOUTS))
    template, bench = catalog.get("silu-mul/strided", "bf16"), Bench(tmp_path / "store")
    made = odd("silu-mul", "bf16", *ODD)
    points = legal(made, template, bench.target)
    assert [dict(point.params)["BLOCK"] for point in points] == [16], "of 47 elements"
    assert [bench.faults(template, made, params) for params in (points[0].params, template.defaults)] == [[], []]
