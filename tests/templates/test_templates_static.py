"""Every template that ships, by the same glob as the catalog: it decodes, and specialises to the same bytes twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from agentcompile.catalog import default_root, load
from agentcompile.ir.expr import free_names, parse
from agentcompile.ir.graph import DType, Graph
from agentcompile.ir.kind import KindFacts
from agentcompile.ir.region import Cost, Port, Regime, Region
from agentcompile.ir.scope import ISA, names_of
from agentcompile.ir.target import Target
from agentcompile.ir.template import Template
from agentcompile.materialize import PROLOGUES, specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import REGION_KINDS, facts
from agentcompile.space import Space

ROOT = Path(__file__).parents[2] / "templates"
FOLDERS = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/template.toml"))
KINDS = facts()
CATALOG = load([ROOT], kinds=KINDS, layouts=tuple(LAYOUTS))
TARGET = Target(
    kind="cpu",
    device="any",
    arch="x86_64",
    isa=tuple(sorted(isa for isa in ISA if isa.startswith(("avx", "fma", "f16c", "bmi", "sse")))),
    threads=2,
    cache_bytes=(32 << 10, 1 << 20, 32 << 20),
)
DIMS = {"hidden": 64, "rows": 96, "vocab": 96, "context": 64, "head_dim": 64, "q_heads": 4, "kv_heads": 2, "groups": 4}


def region_of(kind: KindFacts, dtype: DType) -> Region:
    """A region of that kind at a small shape, with two ports in every horizontal family and no optional one."""
    ports = []
    for port in kind.ports:
        if port.optional:
            continue
        held: DType = "int64" if port.family in ("ids", "positions", "token") else dtype
        for name in [f"{port.family}.0", f"{port.family}.1"] if port.many else [port.family]:
            shape = (48, 64) if port.role == "weight" else (1, 1, 64)
            ports.append(Port(name=name, role=port.role, access=port.access, shape=shape, dtype=held))
    return Region(
        kind=kind.name,
        regime=Regime(phase="decode"),
        body=Graph(phase="decode", values=(), nodes=(), inputs=(), outputs=()),
        ports=tuple(ports),
        dims=tuple((name, DIMS.get(name, 1)) for name in kind.dims),
        constants=tuple((name, 0.5) for name in kind.constants),
        cost=Cost(flops=1, weight_bytes=1, state_bytes=0, activation_bytes=0),
    )


EACH = [(template.id, template.dtypes[0]) for template in CATALOG.templates]
CASES = [(template.id, dtype) for template in CATALOG.templates for dtype in template.dtypes]


def test_the_glob_and_the_catalog_agree() -> None:
    assert CATALOG.ids == FOLDERS
    assert default_root().resolve() == ROOT


@pytest.mark.parametrize(("id", "dtype"), EACH)
def test_a_template_names_only_what_exists(id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    allowed = {*names_of(KINDS[template.region]), *(param.name for param in template.params)}
    texts = [*template.requires, *(space.count for space in template.workspaces)]
    assert {name for text in texts for name in free_names(parse(text))} <= allowed
    assert template.language == "library" or template.language in PROLOGUES


@pytest.mark.parametrize(("id", "dtype"), EACH)
def test_a_template_passes_every_port_that_its_kind_always_has(id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    passed = {name for launch in template.launches for name in launch.arguments}
    needed = {port.family for port in KINDS[template.region].ports if not port.optional}
    assert template.language == "library" or needed <= passed


@pytest.mark.parametrize(("id", "dtype"), EACH)
def test_every_parameter_is_read_by_the_kernel_or_its_launch(id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    geometry = [" ".join((*launch.grid, *launch.block)) for launch in template.launches]
    text = "\n".join([template.source, *(text for _, text in template.includes), *geometry])
    unread = [param.name for param in template.params if param.name not in text]
    assert template.language == "library" or not unread


@pytest.mark.parametrize(("id", "dtype"), CASES)
def test_the_default_is_inside_the_space(id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    space = Space(region_of(KINDS[template.region], dtype), [template], TARGET)
    assert space.default(id) is not None, space.exclusions


@pytest.mark.parametrize(("id", "dtype"), CASES)
def test_the_same_point_gives_the_same_bytes_twice(id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    region = region_of(KINDS[template.region], dtype)
    first = specialise(template, region, template.defaults, TARGET)
    again = load([ROOT], kinds=KINDS, layouts=tuple(LAYOUTS)).get(id, dtype) if id == FOLDERS[0] else template
    assert specialise(again, region, template.defaults, TARGET) == first
    assert str(ROOT) not in first.text
    assert str(Path.home()) not in first.text


@pytest.mark.parametrize("kind", sorted(row.name for row in REGION_KINDS if row.hot and "decode" in row.phases))
def test_a_hot_region_of_a_decode_step_has_two_real_variants_and_thirty_two_points(kind: str) -> None:
    for dtype in ("bf16", "fp32"):
        found = [template for template in CATALOG.serving(kind, dtype) if dtype in template.dtypes]
        serving = [template for template in found if "decode" in template.phases]
        real = [template for template in serving if template.language == "cpp"]
        region = region_of(KINDS[kind], dtype)
        assert len(real) >= 2, kind
        assert len(Space(region, serving, TARGET)) >= 32, kind


def test_no_two_templates_are_the_same_text() -> None:
    def text(template: Template) -> tuple[object, ...]:
        return template.region, template.source, template.layouts, template.params, template.dtypes, template.call

    texts = [text(template) for template in CATALOG.templates]
    assert len(set(texts)) == len(texts)


def test_no_two_files_are_the_same_text() -> None:
    files = [path for end in ("cpp", "cu", "h", "cuh", "py", "toml") for path in ROOT.rglob(f"?*.{end}")]
    once = {path.read_bytes(): path for path in files}
    assert len(once) > 100
    assert [path for path in files if once[path.read_bytes()] != path] == []


_COMMENTS = re.compile(r"\s*((?:(?://[^\n]*|/\*.*?\*/)\s*)*)", re.DOTALL)


def opening(text: str, *, python: bool) -> str:
    """The comment that a text begins with, before any code: of Python its docstring."""
    if python:
        return ast.get_docstring(ast.parse(text)) or ""
    found = _COMMENTS.match(text)
    return found[1].strip() if found else ""


def test_a_shared_text_begins_with_what_it_computes_and_who_holds_what() -> None:
    assert opening("// One.\n// Two.\nint x;  // no\n", python=False) == "// One.\n// Two."
    assert opening("/* One.\n   Two. */\nint x;\n", python=False) == "/* One.\n   Two. */"
    assert opening('#include "a.h"\n// Late.\n// Later.\n', python=False) == ""
    assert opening('# include "a.py"\n"""One.\n\nTwo.\n"""\n', python=True) == "One.\n\nTwo."
    assert opening("x = 1\n", python=True) == ""
    shared = sorted(path for path in (ROOT / "_include").iterdir() if path.suffix in (".cuh", ".h", ".py"))
    assert len(shared) >= 50
    short = []
    for path in shared:
        comment = opening(path.read_text(encoding="utf-8"), python=path.suffix == ".py")
        if "\n" not in comment and len(comment) < 120:
            short.append(path.name)
    assert not short
