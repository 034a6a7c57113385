"""The description of a machine, from files that stand for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.ir.target import Ceiling
from agentcompile.system import probe
from agentcompile.system.store import Store

XEON = """processor\t: 0
model name\t: Intel(R)  Xeon(R) Platinum 8481C
flags\t\t: fpu sse4_2 avx avx2 fma f16c avx512f avx512bw avx512vbmi avx512_bf16 amx_tile amx_bf16 hypervisor

processor\t: 1
model name\t: another
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def machine(root: Path) -> Path:
    cpu = "sys/devices/system/cpu"
    files = {"proc/cpuinfo": XEON}
    levels = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "105M")]
    for index, (level, kind, size) in enumerate(levels):
        folder = f"{cpu}/cpu0/cache/index{index}"
        files |= {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size + "\n"}
    files[f"{cpu}/cpu0/cache/index0/coherency_line_size"] = "64\n"
    for number in range(8):
        files[f"{cpu}/cpu{number}/topology/core_id"] = str(number % 4)
        files[f"{cpu}/cpu{number}/topology/physical_package_id"] = "0"
    return write(root, files)


def test_a_machine_is_described_by_what_templates_may_ask_for(tmp_path: Path) -> None:
    target = probe.probe(toolchain="g++ 12.2.0", threads=4, root=machine(tmp_path))
    assert target.device == "Intel(R) Xeon(R) Platinum 8481C"
    assert target.cache_bytes == (48 << 10, 2 << 20, 105 << 20)
    wide = "avx512_bf16 avx512_vbmi avx512bw avx512f"
    assert target.isa == tuple(f"amx_bf16 amx_tile avx avx2 {wide} f16c fma sse4_2".split())
    assert (target.threads, target.line_bytes, target.toolchain) == (4, 64, "g++ 12.2.0")
    assert dict(target.libraries)["torch"]


def test_a_processor_tells_its_generation_its_threads_and_who_shares_its_caches(tmp_path: Path) -> None:
    info = XEON.replace("model name", "cpu family\t: 6\nmodel\t\t: 143\nmodel name", 1)
    own = "sys/devices/system/cpu/cpu0"
    shared = {f"{own}/cache/index{index}/shared_cpu_list": text for index, text in ((0, "0,4"), (2, "0,4"), (3, "0-7"))}
    root = write(machine(tmp_path), {"proc/cpuinfo": info, f"{own}/topology/thread_siblings_list": "0,4\n", **shared})
    assert probe.processor(root=root) == {
        "cpu_family": 6,
        "cpu_model": 143,
        "threads_a_core": 2,
        "cpus_a_cache": [2, 2, 8],
    }


def test_a_core_has_the_clock_that_the_system_says(tmp_path: Path) -> None:
    assert probe.core_mhz(root=write(tmp_path, {"proc/cpuinfo": "model name\t: a\ncpu MHz\t\t: 2445.428\n"})) == 2445
    assert probe.core_mhz(root=write(tmp_path, {"proc/cpuinfo": "cpu MHz\t\t: unknown\n"})) is None


def test_what_a_system_does_not_say_of_its_processor_is_left_out(tmp_path: Path) -> None:
    assert probe.processor(root=tmp_path) == {}
    assert probe.core_mhz(root=tmp_path) is None
    assert probe.processor(root=machine(tmp_path)) == {}, "nobody says who shares the caches"


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert probe.default_threads(root=root, allowed=frozenset(range(8))) == 4
    assert probe.default_threads(root=root, allowed=frozenset({0, 4})) == 1
    assert probe.default_threads(root=root, allowed=frozenset({1, 2})) == 2


@pytest.mark.parametrize(("text", "threads"), [("max 100000", 4), ("250000 100000", 2), ("20000 100000", 1), ("?", 4)])
def test_a_control_group_quota_bounds_the_threads(tmp_path: Path, text: str, threads: int) -> None:
    root = write(machine(tmp_path), {"sys/fs/cgroup/cpu.max": text})
    assert probe.default_threads(root=root, allowed=frozenset(range(8))) == threads


def test_an_older_control_group_quota_bounds_the_threads(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu"
    files = {f"{group}/cpu.cfs_quota_us": "300000", f"{group}/cpu.cfs_period_us": "100000"}
    assert probe.default_threads(root=write(machine(tmp_path), files), allowed=frozenset(range(8))) == 3


def test_a_machine_that_says_nothing_is_still_a_target(tmp_path: Path) -> None:
    target = probe.probe(toolchain="", root=tmp_path)
    assert target.threads >= 1
    assert target.cache_bytes == ()
    assert target.line_bytes == 64


def test_this_machine_has_one_digest(tmp_path: Path) -> None:
    assert probe.probe(toolchain="x").digest == probe.probe(toolchain="x").digest
    assert probe.probe(toolchain="x").digest != probe.probe(toolchain="y").digest


def test_ceilings_are_measured_once_a_target(tmp_path: Path) -> None:
    target, store = probe.probe(toolchain="x"), Store(tmp_path)
    calls: list[int] = []

    def measure() -> Ceiling:
        calls.append(1)
        return Ceiling(dram_bytes_per_s=3e10, cache_bytes_per_s=2e11, flops_per_s=1e12)

    first = probe.ceiling(target, store, measure)
    assert probe.ceiling(target, store, measure) == first
    assert len(calls) == 1


def test_what_was_measured_on_a_crowded_machine_is_not_kept(tmp_path: Path) -> None:
    target, store = probe.probe(toolchain="x"), Store(tmp_path)
    low = Ceiling(dram_bytes_per_s=1e10, cache_bytes_per_s=2e10, flops_per_s=1e11, calm=False)
    high = Ceiling(dram_bytes_per_s=3e10, cache_bytes_per_s=2e11, flops_per_s=1e12)
    assert probe.ceiling(target, store, lambda: low) == low
    assert probe.ceiling(target, store, lambda: high) == high
    assert probe.ceiling(target, store, lambda: low) == high


def test_a_damaged_ceiling_file_is_measured_again(tmp_path: Path) -> None:
    target, store = probe.probe(toolchain="x"), Store(tmp_path)
    ceiling = Ceiling(dram_bytes_per_s=3e10, cache_bytes_per_s=2e11, flops_per_s=1e12)
    probe.ceiling(target, store, lambda: ceiling)
    (damaged,) = tmp_path.rglob("*.json")
    damaged.write_text("{", encoding="utf-8")
    assert probe.ceiling(target, store, lambda: ceiling) == ceiling
    assert probe.ceiling(target, store, lambda: pytest.fail("it was kept")) == ceiling
