"""Kernels that agents wrote for regions of a model, as they are recorded: they pass every check and are in its lock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import agentcompile
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT

RECORDED = flows.ROOT / "bench" / "results" / "refine" / "sample-gelu"


def gelu(folder: Path) -> Path:
    """The sample checkpoint with GELU in place of SiLU, for which no template ships."""
    shutil.copytree(flows.SAMPLE, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu_pytorch_tanh"}), encoding="utf-8")
    return folder


def test_recorded_kernels_pass_every_check_and_are_in_the_lock(warm: Path, tmp_path: Path) -> None:
    lock = agentcompile.compile(
        gelu(tmp_path / "gelu"),
        out=tmp_path / "gelu.lock.toml",
        choose="first",
        context=CONTEXT,
        threads=flows.THREADS,
        user_templates=False,
        templates=RECORDED / "templates",
        home=warm,
    )
    (plan,) = [plan for plan in lock.plan if plan.phase == "decode"]
    found = {one.name.partition("@")[0]: one.template for one in plan.choices if one.use == "kernel"}
    assert found["gelu-tanh"].startswith("gelu-tanh/written-")
    assert found["mul"].startswith("mul/written-")
    assert len(found) > 2
    assert all(one.use == "kernel" for one in plan.choices), "no region of a step is left to PyTorch"
