"""A region's contract: everything that a kernel must know, nothing of a kernel that ships."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentcompile.catalog import default_root
from agentcompile.catalog.manifest import Manifest, ManifestLaunch
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.attempt import Contract, Times, WrittenLanguage
from agentcompile.ir.digest import canonical
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.ops.reference import OPERATORS
from agentcompile.refine import calling, meanings
from agentcompile.refine.contract import contract_of
from agentcompile.regions.kinds import facts
from agentcompile.validate.tolerance import (
    ACCUMULATION,
    RATIO_GATE,
    ROUNDING_SLACK,
    ROUNDOFF,
    ROW_ELEMENTS,
    ROW_SLACK,
)
from tests.cpu.written import task
from tests.kernels.regions_for import KINDS, region_for
from tests.unit.fakes import target

CEILING = Ceiling(dram_bytes_per_s=20e9, cache_bytes_per_s=200e9, flops_per_s=200e9)
TIMES = Times(reference_ns=9e3, incumbent_ns=7e3)
H100 = target(kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, toolchain="nvrtc 13.0")


def made(region: Region, language: WrittenLanguage = "cpp", times: Times = TIMES) -> Contract:
    here = target() if language == "cpp" else H100
    return contract_of(task(region, target=here), language, CEILING, times)


def interface(region: Region, language: WrittenLanguage = "cpp") -> dict[str, Any]:
    found = made(region, language).interface
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("language", ["cpp", "cuda", "triton"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_contract_says_every_port_operator_and_constant_of_its_region(kind: str, language: WrittenLanguage) -> None:
    region = region_for(kind)
    found = interface(region, language)
    assert [port["name"] for port in found["ports"]] == [port.name for port in region.ports]
    assert len(found["operators"]) == len(region.body.nodes)
    assert found["meaning"].keys() == {node.op for node in region.body.nodes}
    head = found["launch"]["head_of_the_program"]
    assert all(name in head for name, _ in (*region.dims, *region.constants))
    assert all(port.family in found["manifest"]["example"] for port in region.ports)
    assert found["between_the_operators"] == list(facts()[kind].interior)
    assert found.get("softmax_weights", []) == [f"{name}.weights" for name in _attended(region)]
    json.loads(canonical(found))


def _attended(region: Region) -> list[str]:
    return ["y" for node in region.body.nodes if node.op == "attention"]


def test_ports_have_shapes_row_major_strides_and_the_layouts_that_can_hold_them() -> None:
    ports = {port["name"]: port for port in interface(region_for("linear", "bf16", rows=(48,)))["ports"]}
    assert (ports["w"]["shape"], ports["w"]["strides"]) == ([48, 64], [64, 1])
    assert ports["w"]["layouts"] == ["row-major", "rows16-k2"]
    assert "layouts" not in ports["x"]
    assert ports["w"]["bytes"] == 2 * 48 * 64


def test_nothing_of_a_shipped_kernel_is_in_a_contract() -> None:
    told = b"".join(
        canonical(made(region_for(kind), language).interface)
        for kind in ("rmsnorm-linear", "rope-attention-decode", "linear-argmax")
        for language in ("cpp", "cuda", "triton")
    ).decode()
    for path in default_root().rglob("*"):
        if path.suffix in (".cpp", ".h", ".cu", ".cuh", ".py") and path.is_file():
            lines = [line.strip() for line in path.read_text().splitlines()]
            assert not [line for line in lines if len(line) > 30 and line in told], path


def test_the_identity_of_a_contract_leaves_measured_times_out() -> None:
    region = region_for("rmsnorm")
    one, other = made(region), made(region, times=Times(reference_ns=1.0, incumbent_ns=1.0))
    assert one.digest == other.digest
    assert one.floor_ns == region.floor_ns(CEILING, "cache")
    assert (one.reference_ns, one.incumbent_ns) == (9e3, 7e3)
    assert made(region_for("rmsnorm", hidden=128)).digest != one.digest


def test_every_operator_layout_and_key_has_its_meaning() -> None:
    assert meanings.OPERATORS.keys() == OPERATORS.keys()
    assert meanings.LAYOUTS.keys() == LAYOUTS.keys()
    assert list(calling.MANIFEST_KEYS) == [field.name for field in dataclasses.fields(Manifest)]
    keys = interface(region_for("add"), "cuda")["manifest"]["launch_keys"]
    assert keys.keys() <= {field.name for field in dataclasses.fields(ManifestLaunch)}


@pytest.mark.parametrize(("name", "group"), [("rows16-k2", 2), ("rows16-k1", 1)])
def test_the_formula_of_a_tiled_layout_is_what_packing_does(name: str, group: int) -> None:
    formula = meanings.LAYOUTS[name].partition("index ")[2].partition(";")[0]
    rows, columns = 20, 5
    tensor = torch.arange(1, rows * columns + 1, dtype=LAYOUTS[name].dtypes[0]).reshape(rows, columns)
    packed = LAYOUTS[name].pack(tensor)
    expression = formula.replace(f"ceil(K / {group})", str(-(-columns // group)))
    code = compile(expression, "formula", "eval")
    for n in range(rows):
        for k in range(columns):
            assert packed[eval(code, {"n": n, "k": k})] == tensor[n, k]


def test_a_region_that_no_kernel_can_serve_has_no_contract() -> None:
    region = region_for("linear")
    for wrong, language in ((replace(region, kind="aten-cumsum-default"), "cpp"), (region, "cuda")):
        with pytest.raises(AgentCompileError) as caught:
            contract_of(task(wrong, target=target()), language, CEILING, TIMES)  # type: ignore[arg-type]
        assert caught.value.exit_code is ExitCode.USAGE
        assert caught.value.hint


def test_rates_that_were_measured_beside_others_give_no_floor() -> None:
    own = task(region_for("linear"), target=target())
    calm, busy = (contract_of(own, "cpp", replace(CEILING, calm=calm), TIMES) for calm in (True, False))
    assert calm.floor_ns > 0
    assert busy.floor_ns == 0.0
    assert busy.digest == calm.digest


def test_the_tolerance_has_the_roundoff_of_every_output_and_the_numbers_that_the_suite_compares_by() -> None:
    found = interface(region_for("rmsnorm-linear", "bf16"))["tolerance"]
    outputs = [port.name for port in region_for("rmsnorm-linear", "bf16").ports if port.role == "output"]
    assert found["u"] == dict.fromkeys(outputs, ROUNDOFF["bf16"])
    assert found["c"] == {name: c for name, c in ACCUMULATION.items() if name != "library"}
    assert all(f"{number}" in found["accepted"] for number in (ROUNDING_SLACK, ROW_SLACK, ROW_ELEMENTS, RATIO_GATE))
    assert set(found["u"].values()) != set(interface(region_for("rmsnorm-linear", "fp32"))["tolerance"]["u"].values())
    argmax = region_for("linear-argmax")
    chosen, indices = interface(argmax)["tolerance"], {one.name for one in argmax.ports if one.dtype == "int64"}
    assert indices
    assert not indices & chosen["u"].keys(), "an index is not rounded"
    assert "argmax" in chosen["indices"]


def test_the_tolerance_of_a_cache_is_that_of_its_own_dtype() -> None:
    region = region_for("rope-attention-decode")
    appended = {port.name for port in region.ports if port.access == "append"}
    assert appended
    assert appended < interface(region)["tolerance"]["u"].keys()


def test_preconditions_are_those_of_the_ports_and_of_the_regime() -> None:
    (plain,) = interface(region_for("linear"))["preconditions"]
    assert plain.startswith("the extents in `dims` are constants")
    attends = region_for("rope-attention-decode")
    told = interface(attends)["preconditions"]
    least, most = attends.regime.context
    assert any("0 <= index < the extent" in one for one in told)
    assert any(f"this plan serves contexts of {least} to {most}" in one for one in told)
    assert not any("each sequence of the batch" in one for one in told)
    batch = replace(attends, regime=replace(attends.regime, batch=2))
    assert any("each sequence of the batch" in one for one in interface(batch)["preconditions"])


def test_the_machine_is_the_target_with_what_the_system_reports_of_a_processor() -> None:
    region = region_for("linear")
    here, processor = target(), {"threads_a_core": 2, "cpu_family": 26}
    told = contract_of(task(region, target=here), "cpp", CEILING, TIMES, processor=processor, core_mhz=3700)
    assert isinstance(told.interface, dict)
    found = told.interface["machine"]
    assert isinstance(found, dict)
    for name in ("kind", "device", "arch", "threads", "line_bytes", "toolchain"):
        assert found[name] == getattr(here, name)
    assert (found["isa"], found["cache_bytes"]) == (list(here.isa), list(here.cache_bytes))
    assert processor.items() <= found.items()
    assert isinstance(told.measured, dict)
    assert told.measured["core_mhz"] == 3700, "a clock is measured, and no part of what is asked"
    assert told.digest == contract_of(task(region, target=here), "cpp", CEILING, TIMES, processor=processor).digest
    device = interface(region, "cuda")["machine"]
    assert device["shared_bytes_a_block"] == 227 << 10
    assert "about" not in device
