"""Files as KernelBench writes them work as they are: names that begin with a number, constants at the end, comments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcompile.ir.attempt import Times, Written
from agentcompile.ir.template import Template
from agentcompile.tasks.contract import contract_of, facts_of, region_of
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.loading import arguments
from agentcompile.tasks.reading import read
from tests.cpu.tasked import CEILING, LIMITS, here

FILES = Path(__file__).with_name("kernelbench")
KERNEL = 'extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {}\n'
PORTS: dict[str, dict[str, list[int]]] = {
    "level1/7_Tall_times_wide_": {"in0": [2048, 32], "in1": [32, 2048], "out0": [2048, 2048]},
    "level2/31_Conv2d_Scale_Clamp": {
        "in0": [4, 3, 16, 16],
        "scale": [8, 1, 1],
        "conv_weight": [8, 3, 3, 3],
        "conv_bias": [8],
        "norm_weight": [8],
        "norm_bias": [8],
        "norm_running_mean": [8],
        "norm_running_var": [8],
        "out0": [4, 8, 8, 8],
    },
    "level3/12_DeepMLP": {
        "in0": [8, 20],
        "network_0_weight": [24, 20],
        "network_4_weight": [16, 24],
        "network_5_bias": [16],
        "network_8_weight": [4, 16],
        "out0": [8, 4],
    },
}


def test_every_file_is_looked_at() -> None:
    assert {str(path.relative_to(FILES))[:-3] for path in FILES.rglob("*.py")} == set(PORTS)


@pytest.mark.parametrize("name", PORTS)
def test_a_file_of_that_style_gets_a_contract_that_its_kernels_are_read_by(name: str, tmp_path: Path) -> None:
    path, times = FILES / f"{name}.py", Times(reference_ns=1e6, incumbent_ns=1e6)
    with LoadedTask(path, threads=1, seed=3, limits=LIMITS) as task:
        made, region = contract_of(task, "cpp", here(tmp_path).target, CEILING, times, {}), region_of(task)
        assert task.told.wide, task.told.note
    interface: Any = made.interface
    shapes = {port["name"]: port["shape"] for port in interface["ports"]}
    assert {port: shapes[port] for port in PORTS[name]} == PORTS[name]
    assert interface["definition"] == path.read_text()
    assert made.kind.removeprefix("task-") == path.stem.lower().replace("_", "-").strip("-")
    assert made.floor_ns > 0
    written = Written(manifest=interface["manifest"]["example"], kernel=KERNEL)
    assert isinstance(read(written, region, facts_of(region), "cpp"), Template)


def _two(width: int, depth: int, scale: float = 1.0) -> None:
    """A constructor."""


def _one(settings: Any, bias: bool = True) -> None:
    """A constructor."""


def _none() -> None:
    """A constructor."""


@pytest.mark.parametrize(
    ("made", "given", "values", "named"),
    [
        (_none, [], [], {}),
        (_none, [[], {}], [], {}),
        (_two, [3, 4], [3, 4], {}),
        (_two, [3, {"depth": 4}], [3], {"depth": 4}),
        (_two, [[3], {"depth": 4}], [3], {"depth": 4}),
        (_two, [{"width": 3, "depth": 4}], [], {"width": 3, "depth": 4}),
        (_two, {"width": 3, "depth": 4}, [], {"width": 3, "depth": 4}),
        (_one, [{"heads": 4}], [{"heads": 4}], {}),
        (_one, [[3], {"bias": False}], [3], {"bias": False}),
        (_two, [3, {"heads": 4}], [3, {"heads": 4}], {}),
        (_two, [3], [3], {}),
    ],
)
def test_arguments_of_a_model_are_by_place_or_by_name(
    made: Callable[..., None], given: Any, values: list[Any], named: dict[str, Any]
) -> None:
    assert arguments(made, given) == (values, named)
