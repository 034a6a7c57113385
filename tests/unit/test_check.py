"""The static rules: what cannot be legal is refused before a compiler runs, with a sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentcompile.check import POINT_RULES, TEMPLATE_RULES, applicable, check, errors, meant_for
from agentcompile.ir.graph import Dim
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Launch, Params, Template, Workspace
from agentcompile.ir.trial import Finding
from tests.unit.fakes import linear_region, rows_template, target

PARAMS: Params = (("ROWS", 4), ("UNROLL", 1))


def fits(name: str, shape: tuple[Dim, ...], dtype: str) -> bool:
    return True


def found(
    region: Region | None = None,
    template: Template | None = None,
    params: Params = PARAMS,
    machine: Target | None = None,
) -> list[Finding]:
    findings = check(
        region or linear_region(), template or rows_template(), params, machine or target(), layout_fits=fits
    )
    return list(findings)


def only(findings: list[Finding]) -> tuple[str, str]:
    """The rule and the text of the one error."""
    (error,) = errors(findings)
    return error.rule, error.text


def test_a_right_template_has_no_findings() -> None:
    assert found() == []


def test_a_template_of_another_kind_is_refused() -> None:
    assert only(found(template=rows_template(region="linear-merged"))) == (
        "kind",
        "linear/rows serves linear-merged, the region is linear",
    )


STARTED = Launch(entry="gemv", arguments=("x", "w", "b", "y", "partial"), grid=("ceil_div(rows, 4)",), block=("128",))


def test_a_language_of_another_device_is_refused() -> None:
    template = rows_template(language="cuda", arch=(), launches=(STARTED,))
    assert only(found(template=template)) == ("device", "cuda runs on cuda, the target is cpu")


def test_a_phase_that_is_not_served_is_refused() -> None:
    region = replace(linear_region(), regime=Regime(phase="prefill"))
    assert only(found(region)) == ("phase", "it serves decode, the regime is prefill")


def test_a_dtype_that_is_not_served_is_refused() -> None:
    assert only(found(linear_region(dtype="fp16"))) == ("dtype", "it serves bf16, fp32, the region's weights are fp16")


def test_a_family_of_mixed_dtypes_is_refused() -> None:
    region = linear_region(count=2)
    ports = tuple(replace(port, dtype="fp32") if port.name == "y.1" else port for port in region.ports)
    findings = found(replace(region, ports=ports), rows_template(region="linear-merged"))
    assert only(findings) == ("dtype", "the ports of y have different dtypes: bf16, fp32")


def test_a_missing_instruction_set_is_named() -> None:
    assert only(found(machine=target(isa=("avx2",)))) == ("isa", "the machine lacks fma")


def test_a_cuda_template_needs_one_of_its_architectures() -> None:
    template = rows_template(language="cuda", arch=("sm_90a", "sm_100a"), launches=(STARTED,))
    machine = target(kind="cuda", arch="sm_80")
    assert only(found(template=template, machine=machine)) == (
        "isa",
        "it needs one of sm_90a, sm_100a, the device is sm_80",
    )
    assert not errors(found(template=template, machine=target(kind="cuda", arch="sm_90a")))


@pytest.mark.parametrize(
    ("known", "arch", "allowed"),
    [
        (("sm_80", "sm_90"), "sm_120", True),  # newer than all: PTX of a plain one runs there
        (("sm_90a",), "sm_120", False),  # what is special to one architecture has no successor
        (("sm_80", "sm_90a"), "sm_100a", True),
        (("sm_80", "sm_100"), "sm_90", False),  # between two that are known: somebody left it out
        (("sm_90",), "sm_89", False),
    ],
)
def test_a_device_newer_than_its_manifest_runs_what_is_not_special(
    known: tuple[str, ...], arch: str, allowed: bool
) -> None:
    template = rows_template(language="cuda", arch=known, launches=(STARTED,))
    assert (not errors(found(template=template, machine=target(kind="cuda", arch=arch)))) == allowed


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"grid": ()}, "one to three extents"),
        ({"block": ("1", "1", "1", "1")}, "one to three extents"),
        ({"grid": ("rows", "70000")}, "cannot be started"),
        ({"grid": ("rows - rows",)}, "cannot be started"),
        ({"block": ("32", "33")}, "1056 threads a block, more than 1024"),
        ({"shared_bytes": "200 * 1024"}, "204800 bytes of shared memory, sm_80 has 166912"),
        ({"grid": ("rows // 0",)}, "gemv"),
    ],
)
def test_a_launch_that_cannot_be_started_is_refused(changed: dict[str, Any], words: str) -> None:
    launch = replace(STARTED, **changed)
    template = rows_template(language="cuda", arch=(), launches=(launch,))
    rule, text = only(found(template=template, machine=target(kind="cuda", arch="sm_80")))
    assert rule == "geometry"
    assert words in text


@pytest.mark.parametrize(
    ("block", "legal"), [(("128",), True), (("32",), True), (("96",), False), (("64", "2"), False)]
)
def test_a_triton_launch_has_a_power_of_two_of_warps_in_a_line(block: tuple[str, ...], legal: bool) -> None:
    launch = replace(STARTED, block=block)
    source = "@triton.jit\ndef gemv(x, w, b, y, partial):\n    pass\n"
    template = rows_template(language="triton", arch=(), launches=(launch,), source=source, includes=())
    wrong = errors(found(template=template, machine=target(kind="cuda", arch="sm_80")))
    assert legal or "not 32 times a power of two" in wrong[0].text
    assert bool(wrong) is not legal


def test_a_triton_text_that_does_more_than_compute_is_refused() -> None:
    template = rows_template(language="triton", arch=(), launches=(STARTED,), source="import os\n", includes=())
    rule, text = only(found(template=template, machine=target(kind="cuda", arch="sm_80")))
    assert rule == "source"
    assert text.startswith(f"{template.source_name}:1: neither")


def test_shared_memory_is_held_against_the_architecture() -> None:
    template = rows_template(language="cuda", arch=(), launches=(replace(STARTED, shared_bytes="200 * 1024"),))
    assert not errors(found(template=template, machine=target(kind="cuda", arch="sm_90a")))


@pytest.mark.parametrize(("left_out", "role"), [("x", "activation"), ("w", "weight"), ("y", "output")])
def test_a_port_that_no_launch_passes_is_refused(left_out: str, role: str) -> None:
    kept = tuple(name for name in ("x", "w", "b", "y", "partial") if name != left_out)
    template = rows_template(launches=(Launch(entry="linear_rows", arguments=kept),))
    assert only(found(template=template)) == ("ports", f"no launch passes {left_out} ({role})")


def test_an_optional_port_must_be_passed_only_where_the_region_has_it() -> None:
    template = rows_template(launches=(Launch(entry="linear_rows", arguments=("x", "w", "y", "partial")),))
    assert not errors(found(template=template))
    assert only(found(linear_region(bias=True), template)) == ("ports", "no launch passes b (weight)")


def test_ports_may_be_spread_over_launches_and_a_library_call_passes_none() -> None:
    launches = (Launch(entry="a", arguments=("x", "w", "partial")), Launch(entry="b", arguments=("partial", "y")))
    assert not errors(found(template=rows_template(launches=launches)))
    library = Template(id="linear/l", region="linear", language="library", about="t", dtypes=("bf16",), call="f")
    assert found(template=library, params=()) == []


def test_a_library_call_runs_anywhere_unless_it_names_architectures() -> None:
    library = Template(id="linear/l", region="linear", language="library", about="t", dtypes=("bf16",), call="f")
    hopper, ampere = target(kind="cuda", arch="sm_90a"), target(kind="cuda", arch="sm_80")
    assert all(meant_for(library, machine) for machine in (target(), hopper))
    bound = replace(library, arch=("sm_90a",))
    assert [meant_for(bound, machine) for machine in (target(), hopper, ampere)] == [False, True, True]
    assert found(template=bound, params=(), machine=hopper) == []
    assert only(found(template=bound, params=(), machine=ampere))[0] == "isa"
    assert found(template=bound, params=())[0].text == "f runs on cuda, the target is cpu"


def test_a_layout_that_cannot_hold_a_weight_is_refused_with_its_shape() -> None:
    asked: list[tuple[str, tuple[Dim, ...], str]] = []

    def no(name: str, shape: tuple[Dim, ...], dtype: str) -> bool:
        asked.append((name, shape, dtype))
        return False

    findings = applicable(linear_region(hidden=1000, rows=7), rows_template(), target(), layout_fits=no)
    assert only(list(findings)) == ("layout", "rows16-k2 cannot hold w [7x1000] in bf16")
    assert asked == [("rows16-k2", (7, 1000), "bf16")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("#include <thread>", "includes <thread>; allowed: algorithm"),
        ("  #  include <fstream>  // why", "includes <fstream>"),
        ("void f() { malloc(3); }", "kernel.cpp:2: `malloc`: a kernel does not call the host"),
        ("int* p = new int[3];", "kernel.cpp:2: `new i`"),
        ("std::vector<float> v;", "kernel.cpp:2: `std::vector`"),
        ("/* a\nb */ void f() { exit(0); }", "kernel.cpp:3: `exit`"),
        ("thread_local (x);", "kernel.cpp:2: `thread_local`"),
        ('void f() { asm volatile("syscall"); }', "a kernel does not call the host"),
    ],
)
def test_a_kernel_that_reaches_for_the_host_is_refused(line: str, text: str) -> None:
    rule, said = only(found(template=rows_template(source=f"// linear_rows\n{line}\n")))
    assert rule == "source"
    assert text in said


def test_shared_texts_are_looked_at_too() -> None:
    rule, said = only(found(template=rows_template(includes=(("vec.h", "#include <vector>\n"),))))
    assert (rule, said.partition(";")[0]) == ("source", "vec.h:1: includes <vector>")


def test_words_in_comments_are_no_calls() -> None:
    template = rows_template(source="// malloc(3) is not called; a new row, exit( /* std::thread */\nint renew(int);\n")
    assert found(template=template) == []


def test_a_source_of_a_megabyte_is_refused() -> None:
    rule, said = only(found(template=rows_template(source=" " * ((1 << 20) + 1))))
    assert rule == "source"
    assert "more than 1048576" in said


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ((("ROWS", 4),), "UNROLL is missing"),
        ((*PARAMS, ("VEC", 1)), "there is no parameter VEC"),
        ((("ROWS", 3), ("UNROLL", 1)), "ROWS=3 is not one of 1, 2, 4, 8"),
    ],
)
def test_parameters_outside_the_manifest_are_refused(params: Params, text: str) -> None:
    assert ("parameters", text) in [(f.rule, f.text) for f in errors(found(params=params))]


def test_a_constraint_that_fails_is_shown_with_its_figures() -> None:
    assert only(found(linear_region(hidden=1000))) == (
        "constraints",
        "hidden % (16 * UNROLL) == 0 with hidden=1000, UNROLL=1 → 1000 % (16 * 1) = 8",
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ("rows // (UNROLL - 1)", "division by zero"),
        ("0 - 1", "-1 elements"),
        ("16777217", "67108868 bytes of workspace, more than 67108864"),
    ],
)
def test_a_workspace_without_a_size_or_above_the_limit_is_refused(count: str, text: str) -> None:
    template = rows_template(workspaces=(Workspace(name="partial", dtype="fp32", count=count),))
    rule, said = only(found(template=template))
    assert rule == "workspaces"
    assert text in said


def test_risks_are_warnings_and_do_not_stop_a_candidate() -> None:
    template = rows_template(
        deterministic=False,
        rounds=(("n", "bf16"),),
        workspaces=(Workspace(name="partial", dtype="fp32", count="cache_l3"),),
    )
    findings = found(template=template, machine=target(cache_bytes=(1 << 10, 1 << 12, 1 << 14)))
    assert [(f.rule, f.severity) for f in findings] == [
        ("determinism", "warning"),
        ("rounding", "note"),
        ("workspaces", "warning"),
    ]
    assert errors(findings) == ()


def test_every_rule_has_a_name_that_is_its_own() -> None:
    names = [rule.__name__ for rule in (*TEMPLATE_RULES, *POINT_RULES)]
    assert len(set(names)) == len(names)
