"""What a contract gives to start from: a manifest as an answer, and a kernel that compiles behind its head."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.answers import Draft, manifest_text, read_draft
from agentcompile.ir.region import Region
from agentcompile.refine.calling import ENTRY, skeleton_text
from tests.kernels.regions_for import region_for
from tests.unit.test_refine_contract import interface, made


@pytest.mark.parametrize("language", ["cpp", "cuda", "triton"])
def test_the_manifest_to_start_from_becomes_the_example(language: Any) -> None:
    region = region_for("rmsnorm-linear")
    contract, told = made(region, language), interface(region, language)
    text = json.dumps({"notes": "", "manifest": told["manifest"]["answer"], "kernel": told["launch"]["skeleton"]})
    draft = read_draft(text)
    assert isinstance(draft, Draft), draft
    ours = _bare(manifest_text(contract, draft.manifest))
    assert ours == _bare(told["manifest"]["example"])
    assert told["manifest"]["answer"].keys() == told["manifest"]["keys"].keys()


def _bare(manifest: str) -> dict[str, Any]:
    import tomllib

    found = tomllib.loads(manifest)
    found.pop("about")
    return found


@pytest.mark.parametrize(
    ("kind", "dtype"), [("rmsnorm-linear", "bf16"), ("linear", "fp16"), ("rope-attention-decode", "fp32")]
)
def test_the_skeleton_compiles_behind_the_head(kind: str, dtype: str, tmp_path: Path) -> None:
    region: Region = region_for(kind, dtype)
    told = interface(region)["launch"]
    file = tmp_path / "kernel.cpp"
    file.write_text(told["head_of_the_program"] + skeleton_text(region, "cpp"))
    words = [os.environ.get("CXX_REAL") or "g++", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused"]
    ran = subprocess.run([*words, "-std=c++20", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"{ENTRY}_args" in told["skeleton"]


def test_rates_say_which_limit_binds() -> None:
    few, many = made(region_for("rmsnorm")).measured, made(region_for("linear", rows=(48,))).measured
    assert isinstance(few, dict)
    assert isinstance(many, dict)
    assert few["binds"] == "bytes"
    assert (few["dram_gb_per_s"], few["cache_gb_per_s"], few["gflop_per_s"]) == (20.0, 200.0, 200.0)
    assert max(few["floor_by_bytes_us"], few["floor_by_flops_us"]) == pytest.approx(  # type: ignore[type-var]
        made(region_for("rmsnorm")).floor_ns / 1e3, abs=1e-3
    )
    assert many["floor_by_flops_us"] != few["floor_by_flops_us"]
