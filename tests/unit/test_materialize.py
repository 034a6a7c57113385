"""Specialisation: what a compiler sees is generated from data alone, the same bytes every time."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.errors import AgentCompileError
from agentcompile.ir.template import Launch, Params, Template, Workspace
from agentcompile.materialize import specialise
from agentcompile.materialize.cpp import HEADERS
from agentcompile.tasks.loading import identifiers
from tests.unit.fakes import linear_region, rows_template, target

PARAMS: Params = (("ROWS", 4), ("UNROLL", 1))
GOLDEN = Path(__file__).parent / "golden" / "linear_rows.cpp"


def test_the_text_of_a_template_is_the_golden_one() -> None:
    region = linear_region(hidden=64, rows=24, count=2)
    text = specialise(rows_template(), region, PARAMS, target()).text
    assert text == GOLDEN.read_text()


def test_the_same_inputs_give_the_same_bytes_and_sites_do_not_enter() -> None:
    region = linear_region()
    first = specialise(rows_template(), region, PARAMS, target())
    again = specialise(rows_template(), replace(region, sites=()), PARAMS, target())
    assert first == again
    assert first.digest == again.digest


def test_every_input_enters_the_text() -> None:
    texts = {
        specialise(rows_template(), linear_region(), PARAMS, target()).text,
        specialise(rows_template(), linear_region(), (("ROWS", 8), ("UNROLL", 1)), target()).text,
        specialise(rows_template(), linear_region(rows=1024), PARAMS, target()).text,
        specialise(rows_template(), linear_region(dtype="fp32"), PARAMS, target()).text,
        specialise(rows_template(), linear_region(bias=True), PARAMS, target()).text,
        specialise(rows_template(), linear_region(), PARAMS, target(threads=4)).text,
        specialise(rows_template(), linear_region(), PARAMS, target(isa=("avx2", "fma"))).text,
        specialise(rows_template(), linear_region(), PARAMS, target(cache_bytes=(1, 2, 3))).text,
    }
    assert len(texts) == 8


def test_arguments_are_resolved_to_ports_in_order_and_an_absent_family_is_a_null_pointer() -> None:
    def arguments(**shape: int | bool) -> tuple[str, ...]:
        return specialise(rows_template(), linear_region(**shape), PARAMS, target()).launches[0].arguments  # type: ignore[arg-type]

    assert arguments() == ("x", "w", "", "y", "partial")
    assert arguments(bias=True) == ("x", "w", "b", "y", "partial")
    assert arguments(count=2) == ("x", "w.0", "w.1", "", "y.0", "y.1", "partial")
    assert arguments(count=2, bias=True) == ("x", "w.0", "w.1", "b.0", "b.1", "y.0", "y.1", "partial")


@given(st.booleans(), st.integers(1, 4))
def test_the_struct_has_one_pointer_for_each_resolved_argument(bias: bool, count: int) -> None:
    source = specialise(rows_template(), linear_region(bias=bias, count=count), PARAMS, target())
    struct = source.text.partition("struct linear_rows_args {")[2].partition("};")[0]
    members = [line.strip() for line in struct.strip().splitlines()]
    pointers = sum(int(found[1]) if (found := re.search(r"\[(\d+)\]", member)) else 1 for member in members)
    assert pointers == len(source.launches[0].arguments)


def test_what_a_kernel_may_write_is_not_const_and_all_else_is() -> None:
    text = specialise(rows_template(), linear_region(count=2, bias=True), PARAMS, target()).text
    for member in ("const x_t* x;", "const w_t* w[2];", "const b_t* b[2];", " y_t* y[2];", "float* partial;"):
        assert member in text


def test_a_state_that_is_appended_to_is_not_const() -> None:
    region = linear_region()
    ports = tuple(replace(p, role="state", access="append") if p.name == "w" else p for p in region.ports)
    text = specialise(rows_template(), replace(region, ports=ports), PARAMS, target()).text
    assert "    w_t* w;" in text


def test_workspace_counts_are_evaluated_at_the_point() -> None:
    source = specialise(rows_template(), linear_region(rows=30), PARAMS, target())
    assert source.workspaces == (("partial", "fp32", 64, False),)
    zeroed = rows_template(workspaces=(Workspace(name="partial", dtype="int32", count="rows", initial="zero"),))
    source = specialise(zeroed, linear_region(rows=30), PARAMS, target())
    assert source.workspaces == (("partial", "int32", 30, True),)
    assert "int32_t* partial;" in source.text


@pytest.mark.parametrize(("count", "why"), [("rows // (UNROLL - 1)", "division by zero"), ("0 - rows", "-30 elements")])
def test_a_workspace_without_a_size_is_refused_with_the_figures(count: str, why: str) -> None:
    template = rows_template(workspaces=(Workspace(name="partial", dtype="fp32", count=count),))
    with pytest.raises(AgentCompileError, match=f"linear/rows: partial: .*{why}"):
        specialise(template, linear_region(rows=30), PARAMS, target())


def test_flags_name_the_target_s_instruction_sets_as_the_compiler_spells_them() -> None:
    flags = specialise(rows_template(), linear_region(), PARAMS, target()).flags
    assert flags == ("-mavx", "-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16")
    narrow = target(isa=("amx_bf16", "amx_tile", "avx_vnni", "sse4_2"))
    flags = specialise(rows_template(), linear_region(), PARAMS, narrow).flags
    assert flags == ("-msse4.2", "-mavxvnni", "-mamx-tile", "-mamx-bf16")
    assert specialise(rows_template(), linear_region(), PARAMS, target(arch="aarch64", isa=("neon",))).flags == ()


def test_a_library_call_carries_its_settings_and_no_text() -> None:
    template = Template(
        id="linear/library", region="linear", language="library", about="torch", dtypes=("bf16",), call="f"
    )
    source = specialise(template, linear_region(), (("MODE", "fast"),), target())
    assert (source.text, source.call, source.settings, source.flags) == ("", "f", (("MODE", "fast"),), ())


def test_shared_texts_are_inlined_once_wherever_they_are_named() -> None:
    template = rows_template(
        source='#include "a.h"\n#include <cmath>\n#include "b.h"\nint last;',
        includes=(("a.h", '#pragma once\n#include "b.h"\nint a;\n'), ("b.h", '#include "a.h"\nint b;\n')),
        launches=(Launch(entry="f", arguments=("x",)),),
        workspaces=(),
    )
    text = specialise(template, linear_region(), PARAMS, target()).text
    assert text[text.index("#line") :] == (
        '#line 1 "linear/rows/kernel.cpp"\n'
        '#line 1 "_include/a.h"\n'
        "\n"
        '#line 1 "_include/b.h"\n'
        "\n"
        "int b;\n"
        '#line 3 "_include/a.h"\n'
        "int a;\n"
        '#line 2 "linear/rows/kernel.cpp"\n'
        "#include <cmath>\n"
        "\n"
        "int last;\n"
    )


@pytest.mark.parametrize(
    ("value", "literal"),
    [(1e-06, "1e-06f"), (1.0, "1.0f"), (0.08838834764831845, "0.08838834764831845f"), (-1e30, "-1e+30f"), (2, "2.0f")],
)
def test_constants_become_float_literals(value: float, literal: str) -> None:
    region = replace(linear_region(), constants=(("scale", value),))
    assert f"constexpr float scale = {literal};" in specialise(rows_template(), region, PARAMS, target()).text


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("count", "bias", "dtype"), [(1, False, "bf16"), (2, True, "fp32"), (3, False, "bf16")])
def test_a_compiler_accepts_the_head_and_its_errors_name_the_template(
    tmp_path: Path, count: int, bias: bool, dtype: str
) -> None:
    region = linear_region(count=count, bias=bias, dtype=dtype)
    wrong = rows_template(source=rows_template().source + "static_assert(w_count == 0);\n")
    for template, code in ((rows_template(), 0), (wrong, 1)):
        source = specialise(template, region, PARAMS, target())
        path = tmp_path / "k.cpp"
        path.write_text(source.text)
        command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", *source.flags, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
    assert "linear/rows/kernel.cpp:3" in done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_no_tensor_of_a_task_has_a_name_whose_type_the_headers_have(tmp_path: Path) -> None:
    path, command = tmp_path / "kernel.cpp", ["g++", "-std=c++20"]
    headers = "".join(f"#include <{header}>\n" for header in HEADERS)
    path.write_text(headers)
    seen = subprocess.run([*command, "-E", str(path)], capture_output=True, text=True, check=True).stdout
    named = sorted(set(re.findall(r"\b([a-z][a-z0-9_]*)_t\b", seen)))
    assert {"key", "time", "mode", "id", "off", "size", "int8"} <= set(named)
    found = identifiers([*named, "weight"], [])
    assert found[-1] == "weight"
    types = "".join(f"using {name}_t = probe;\n" for name in found)
    path.write_text(f"{headers}struct probe {{}};\n{types}")
    checked = subprocess.run([*command, "-fsyntax-only", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
