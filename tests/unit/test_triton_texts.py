"""Triton's Python: the generated head executes to constants, and a text holds functions and constants alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.catalog import load
from agentcompile.check.script import strays
from agentcompile.errors import AgentCompileError
from agentcompile.ir.template import Launch, Template
from agentcompile.materialize import specialise
from agentcompile.regions.kinds import facts
from tests.unit.fakes import linear_region, rows_template, target

GPU = target(kind="cuda", arch="sm_90a", isa=())
LAUNCH = Launch(entry="gemv", arguments=("x", "w", "b", "y", "partial"), grid=("rows",), block=("32 * ROWS",))
KERNEL = '# include "more.py"\n@triton.jit\ndef gemv(x, w, b, y, partial):\n    """One row."""\n'


def template(**changed: Any) -> Template:
    more = ("more.py", "LAST = tl.constexpr(ROWS - 1)\n")
    return rows_template(language="triton", source=KERNEL, includes=(more,), launches=(LAUNCH,), **changed)


def executed(text: str) -> dict[str, Any]:
    """The names of a text, with constants and functions as they are."""
    module = SimpleNamespace(jit=lambda function: function, constexpr=lambda value: value)
    lines = [line for line in text.splitlines() if not line.startswith("import ")]
    names: dict[str, Any] = {"triton": module, "tl": module}
    exec("\n".join(lines), names)
    return names


def head(**region: Any) -> dict[str, Any]:
    return executed(specialise(template(), linear_region(**region), (("ROWS", 4), ("MODE", "fast")), GPU).text)


def test_the_head_says_shapes_parameters_and_the_device() -> None:
    found = head(hidden=64, rows=24)
    assert {name: found[name] for name in ("hidden", "rows", "ROWS", "MODE", "capability", "weight_bytes")} == {
        "hidden": 64, "rows": 24, "ROWS": 4, "MODE": "fast", "capability": 90, "weight_bytes": 2,
    }  # fmt: skip
    assert (found["has_w"], found["w_count"], found["w_rows"], found["w_numel"]) == (True, 1, (24,), (24 * 64,))
    assert (found["has_b"], found["b_count"], found["b_rows"]) == (False, 0, ())


def test_an_included_text_reads_the_head_and_stands_before_the_kernel() -> None:
    assert head()["LAST"] == 3


def test_numbered_ports_are_a_tuple_of_pointers_and_an_absent_family_is_one() -> None:
    assert head()["gemv_args"] == {"x": "*bf16", "w": "*bf16", "b": "*bf16", "y": "*bf16", "partial": "*fp32"}
    pair = ("*fp32", "*fp32")
    assert head(count=2, dtype="fp32")["gemv_args"] == {
        "x": "*fp32",
        "w": pair,
        "b": "*fp32",
        "y": pair,
        "partial": "*fp32",
    }


@pytest.mark.parametrize("shape", [{}, {"count": 3}, {"count": 2, "bias": True}])
def test_the_signature_has_one_pointer_for_each_resolved_argument(shape: dict[str, Any]) -> None:
    source = specialise(template(), linear_region(**shape), (("ROWS", 4),), GPU)
    types = executed(source.text)["gemv_args"].values()
    assert sum(1 if isinstance(one, str) else len(one) for one in types) == len(source.launches[0].arguments)


def test_constants_of_a_kind_are_floats_and_infinity_has_a_spelling() -> None:
    region = replace(linear_region(), constants=(("eps", 1e-6), ("scale", 2), ("least", float("-inf"))))
    found = executed(specialise(template(), region, (("ROWS", 4),), GPU).text)
    assert [found[name] for name in ("eps", "scale", "least")] == [1e-6, 2.0, float("-inf")]
    assert isinstance(found["scale"], float)


def test_the_target_s_architecture_is_the_flag() -> None:
    assert specialise(template(), linear_region(), (("ROWS", 4),), GPU).flags == ("--gpu-architecture=sm_90a",)


def folder(root: Path, launch: str) -> Path:
    """A root with one template and a text that it includes."""
    (root / "_include").mkdir(parents=True)
    (root / "_include" / "more.py").write_text("LAST = tl.constexpr(hidden - 1)\n")
    made = root / "silu-mul" / "mine"
    made.mkdir(parents=True)
    (made / "kernel.py").write_text('# include "more.py"\n@triton.jit\ndef apply(g, u, y):\n    pass\n')
    facts = 'region = "silu-mul"\nlanguage = "triton"\nabout = "mine"\ndtypes = ["bf16"]\n'
    passed = '[[launch]]\nentry = "apply"\narguments = ["g", "u", "y"]\ngrid = [1]\nblock = [32]\n'
    (made / "template.toml").write_text(facts + passed + launch)
    return root


def test_an_include_is_a_comment_that_the_catalog_follows(tmp_path: Path) -> None:
    (found,) = load([folder(tmp_path / "mine", "pdl = true")], kinds=facts(), layouts=()).templates
    assert [name for name, _ in found.includes] == ["more.py"]


@pytest.mark.parametrize("line", ["shared_bytes = 1024", "cluster = [2]", "cooperative = true"])
def test_what_triton_decides_by_itself_is_no_matter_of_a_launch(tmp_path: Path, line: str) -> None:
    with pytest.raises(AgentCompileError, match=r"launch\[0\]: Triton decides on shared memory by itself"):
        load([folder(tmp_path / "mine", line)], kinds=facts(), layouts=())


def test_an_entry_that_is_launched_with_two_sizes_of_block_is_refused(tmp_path: Path) -> None:
    again = '[[launch]]\nentry = "apply"\narguments = ["g", "u", "y"]\ngrid = [1]\nblock = ['
    load([folder(tmp_path / "same", f"{again}32]")], kinds=facts(), layouts=())
    with pytest.raises(AgentCompileError, match=r"launch\[1\]\.block: .*two sizes of block: 32 and 64"):
        load([folder(tmp_path / "mine", f"{again}64]")], kinds=facts(), layouts=())


def test_an_output_may_lie_where_an_input_of_the_launch_does(tmp_path: Path) -> None:
    line = 'in_place = [["y", "g"]]'
    (found,) = load([folder(tmp_path / "mine", line)], kinds=facts(), layouts=()).templates
    assert found.launches[0].in_place == (("y", "g"),)


@pytest.mark.parametrize(
    ("pairs", "fault"),
    [
        ('["g", "u"]', '"g" is no output'),
        ('["y", "y"]', '"y" is no activation that is read'),
        ('["y", "z"]', '"z" is no port that the launch passes'),
        ('["y"]', "in_place"),
    ],
)
def test_what_cannot_be_in_place_is_refused(tmp_path: Path, pairs: str, fault: str) -> None:
    with pytest.raises(AgentCompileError, match=fault):
        load([folder(tmp_path / "mine", f"in_place = [{pairs}]")], kinds=facts(), layouts=())


SPACE = '[[workspaces]]\nname = "wide"\ndtype = "int64"\ncount = 1\ninitial = "zero"\n'


def test_an_input_may_be_columns_of_a_wider_matrix(tmp_path: Path) -> None:
    root = folder(tmp_path / "mine", 'pitched = [["g", "wide"], ["u", "wide"]]\n' + SPACE)
    manifest = root / "silu-mul" / "mine" / "template.toml"
    manifest.write_text(manifest.read_text().replace('"y"]\ngrid', '"y", "wide"]\ngrid'))
    (found,) = load([root], kinds=facts(), layouts=()).templates
    assert found.launches[0].pitched == (("g", "wide"), ("u", "wide"))


@pytest.mark.parametrize(
    ("pair", "space", "fault"),
    [
        ('"y", "wide"', SPACE, '"y" is no activation that is read'),
        ('"z", "wide"', SPACE, '"z" is no port that the launch passes'),
        ('"g", "width"', SPACE, '"width" is no workspace that the launch passes'),
        ('"g", "wide"', SPACE.replace("int64", "int32"), '"wide" is not one int64 that begins as zero'),
        ('"g", "wide"', SPACE.replace('initial = "zero"\n', ""), '"wide" is not one int64 that begins as zero'),
        ('"g", "wide"', SPACE.replace("count = 1", "count = 2"), '"wide" is not one int64 that begins as zero'),
    ],
)
def test_what_cannot_be_pitched_is_refused(tmp_path: Path, pair: str, space: str, fault: str) -> None:
    root = folder(tmp_path / "mine", f"pitched = [[{pair}]]\n{space}")
    manifest = root / "silu-mul" / "mine" / "template.toml"
    manifest.write_text(manifest.read_text().replace('"y"]\ngrid', '"y", "wide"]\ngrid'))
    with pytest.raises(AgentCompileError, match=fault):
        load([root], kinds=facts(), layouts=())


def test_an_output_may_lie_token_by_token(tmp_path: Path) -> None:
    root = folder(tmp_path / "mine", 'token_major = [["y", "wide"]]\n' + SPACE)
    manifest = root / "silu-mul" / "mine" / "template.toml"
    manifest.write_text(manifest.read_text().replace('"y"]\ngrid', '"y", "wide"]\ngrid'))
    (found,) = load([root], kinds=facts(), layouts=()).templates
    assert found.launches[0].token_major == (("y", "wide"),)


@pytest.mark.parametrize(
    ("pair", "fault"),
    [
        ('"g", "wide"', '"g" is no output'),
        ('"z", "wide"', '"z" is no port that the launch passes'),
        ('"y", "width"', '"width" is no workspace that the launch passes'),
    ],
)
def test_what_cannot_lie_token_by_token_is_refused(tmp_path: Path, pair: str, fault: str) -> None:
    root = folder(tmp_path / "mine", f"token_major = [[{pair}]]\n{SPACE}")
    manifest = root / "silu-mul" / "mine" / "template.toml"
    manifest.write_text(manifest.read_text().replace('"y"]\ngrid', '"y", "wide"]\ngrid'))
    with pytest.raises(AgentCompileError, match=fault):
        load([root], kinds=facts(), layouts=())


ALLOWED = '''
"""What it is."""
import triton
import triton.language as tl
HALF = tl.constexpr(hidden // 2 if hidden > 1 else 1)

@triton.jit
def f(x, n: tl.constexpr, norm=None):
    """Nothing in here is executed by Python."""
    for k in tl.range(0, n):
        tl.store(x + k, tl.sum(x))
'''


def test_functions_and_constants_are_all_that_a_text_needs() -> None:
    assert list(strays({"kernel.py": ALLOWED})) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\n", "kernel.py:1: neither"),
        ("from triton import language\n", "kernel.py:1: neither"),
        ("print(1)\n", "kernel.py:1: neither"),
        ("N = open('/etc/passwd')\n", "kernel.py:1: neither"),
        ("N = tl.constexpr(len('x'))\n", "kernel.py:1: neither"),
        ("\n@triton.jit\ndef f(x=print(1)):\n    pass\n", "neither"),
        ("@triton.jit\ndef f(x: print(1)):\n    pass\n", "neither"),
        ("@triton.autotune(configs=[])\n@triton.jit\ndef f(x):\n    pass\n", "neither"),
        ("def f(x):\n    pass\n", "neither"),
        ("class A:\n    pass\n", "neither"),
        ("@triton.jit\ndef f(x):\n    x.__class__\n", "kernel.py:3: `.__class__`"),
        ("@triton.jit\ndef f(x):\n  return (\n", "kernel.py:3: '(' was never closed"),
        ("x = '\0'\n", "kernel.py:1: "),
    ],
)
def test_anything_else_is_named_with_its_line(text: str, words: str) -> None:
    found = list(strays({"kernel.py": text}))
    assert found
    assert words in found[0]
