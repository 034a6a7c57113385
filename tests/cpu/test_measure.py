"""Where timed launches find their inputs, and what the real clock says about itself."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.evaluation.evaluator import Limits, WorkerEvaluator
from agentcompile.measure import POLICY, residency
from agentcompile.measure.clock import core_ns, interval, quantum_ns, settle, waited_ns
from agentcompile.measure.residency import Need, Slots, rotation_bytes
from tests.cpu import jobs

W = Need(name="w", numel=1000, dtype=torch.bfloat16, scale=0.05)
N = Need(name="n", numel=7, dtype=torch.float32, scale=0.1, offset=1.0)


def test_slots_cover_what_was_asked_and_do_not_overlap() -> None:
    slots = Slots((W, N), covers_bytes=100_000, seed=0)
    assert slots.count * slots.slot_bytes >= 100_000
    ends = [0]
    for slot in range(slots.count):
        for need in (W, N):
            tensor = slots.tensor(slot, need.name)
            assert tensor.data_ptr() >= ends[-1]
            assert tensor.data_ptr() % 64 == 0
            ends.append(tensor.data_ptr() + tensor.numel() * tensor.element_size())


def test_slots_are_equal_in_content_and_the_same_for_one_seed() -> None:
    one, two = Slots((W, N), covers_bytes=50_000, seed=3), Slots((W, N), covers_bytes=1, seed=3)
    for slot in range(one.count):
        assert torch.equal(one.tensor(slot, "w"), two.tensor(0, "w"))
        assert torch.equal(one.tensor(slot, "n"), two.tensor(0, "n"))
    assert torch.isfinite(one.tensor(0, "w").float()).all()
    assert 0.03 < one.tensor(0, "w").float().std() < 0.07
    assert not torch.equal(one.tensor(0, "w"), Slots((W, N), covers_bytes=1, seed=4).tensor(0, "w"))


def test_a_weight_larger_than_the_rotation_needs_one_slot() -> None:
    assert Slots((W,), covers_bytes=10, seed=0).count == 1


def test_a_region_without_weights_has_one_empty_slot() -> None:
    assert Slots((), covers_bytes=1 << 20, seed=0).count == 1


def test_memory_is_rotated_over_hundreds_of_megabytes_and_caches_over_what_only_the_last_one_holds() -> None:
    target = replace(jobs.target(), cache_bytes=(48 << 10, 1 << 20, 32 << 20), threads=2)
    assert rotation_bytes("dram", target, POLICY) == POLICY.dram_bytes
    assert rotation_bytes("cache", target, POLICY) == 16 << 20
    large = replace(target, cache_bytes=(48 << 10, 2 << 20, 320 << 20))
    assert rotation_bytes("dram", large, POLICY) == 4 * (320 << 20)
    assert rotation_bytes("cache", replace(large, threads=8), POLICY) == 64 << 20
    small = replace(target, cache_bytes=(48 << 10, 1 << 20, 8 << 20))
    assert rotation_bytes("cache", small, POLICY) == 4 << 20
    assert rotation_bytes("cache", replace(target, cache_bytes=()), POLICY) == 0


@pytest.mark.alone
def test_the_clock_has_a_quantum_and_waiting_is_counted() -> None:
    assert 0 < quantum_ns() < 1_000_000
    before = waited_ns()
    assert waited_ns() >= before >= 0
    timed = interval(lambda: 7)
    assert timed.ns == 7
    assert timed.waited_ns >= 0


def test_the_system_counts_what_a_thread_takes_of_a_core() -> None:
    before, begin = core_ns(), time.thread_time_ns()
    while time.thread_time_ns() < begin + 60_000_000:
        pass
    after = core_ns()
    assert after[0] - before[0] >= 40_000_000  # up to a tick behind
    assert after[1] >= before[1]
    assert core_ns(1 << 22) == (0, 0)  # no process has that number


@pytest.mark.alone
def test_settling_waits_for_threads_that_run_and_not_forever() -> None:
    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"without the lock", b"", 10**6))
    thread.start()
    time.sleep(0.02)
    begin = time.monotonic()
    settle(at_most_s=0.03)
    assert time.monotonic() - begin >= 0.03
    thread.join()
    begin = time.monotonic()
    settle(at_most_s=5.0)
    assert time.monotonic() - begin < 4.0


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    with WorkerEvaluator(
        jobs.target(), store=tmp_path_factory.mktemp("store"), toolchain=jobs.toolchain(), workers=1, limits=Limits()
    ) as made:
        yield made


@pytest.mark.alone
def test_ceilings_of_this_machine_are_plausible(evaluator: WorkerEvaluator) -> None:
    found = evaluator.ceiling()
    assert 1e9 < found.dram_bytes_per_s < 2e12
    assert found.cache_bytes_per_s >= found.dram_bytes_per_s
    assert 1e9 < found.flops_per_s < 1e15


@pytest.mark.alone
def test_the_ceilings_are_no_lower_than_what_pytorch_reaches(evaluator: WorkerEvaluator) -> None:
    """A probe that its compiler makes slow would let every fast kernel count as impossible."""
    threads = torch.get_num_threads()
    torch.set_num_threads(jobs.target().threads)
    try:
        a, near = torch.randn(512, 512), torch.randn(256, 4096)
        products, sums = (per_second(lambda: a @ a), per_second(lambda: near.sum(dtype=torch.float32)))
    finally:
        torch.set_num_threads(threads)
    flops, read = 0.75 * products * 2 * 512**3, 0.75 * sums * near.nbytes
    found = [evaluator.ceiling()]
    for _ in range(8):  # beside other processes a probe's best try may be late as well
        if max(one.flops_per_s for one in found) > flops and max(one.cache_bytes_per_s for one in found) > read:
            return
        found.append(evaluator.ceiling())
    raise AssertionError(f"{flops:.3g} FLOP/s and {read:.3g} B/s are not reached: {found}")


def per_second(work: Callable[[], torch.Tensor]) -> float:
    """Return how often a second `work` was done in the best of many tries."""
    took = []
    for _ in range(200):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return 1 / min(took)


@pytest.mark.alone
def test_the_harness_tests_itself_on_the_real_timer(evaluator: WorkerEvaluator) -> None:
    """Twice the work is told from its twin beside most neighbours; of 2 % a shared machine allows no such claim."""
    found = evaluator.selftest(trials=6, planted=1.0)
    assert (found.trials, found.reversed) == (6, 0)
    assert found.found >= 4


@pytest.mark.usefixtures("process_itself")
def test_a_worker_needs_no_file_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('shadowed')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with WorkerEvaluator(jobs.target(), store=tmp_path / "s", toolchain=jobs.toolchain(), workers=1) as evaluator:
        assert len(list(evaluator.prepare([jobs.job()]))) == 1


def test_slots_of_which_little_is_read_are_as_many_as_their_reads_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replace(N, numel=1 << 18)
    part = replace(whole, read=1 / 16)
    assert Slots((whole,), covers_bytes=8 << 20, seed=0).count == 8
    assert Slots((part,), covers_bytes=8 << 20, seed=0).count == 8  # a host has no memory to spare
    monkeypatch.setattr(residency, "block", lambda nbytes, device="cpu": torch.zeros(nbytes, dtype=torch.uint8))
    monkeypatch.setattr(residency, "MOST_DEVICE_BYTES", 64 << 20)
    assert Slots((part,), covers_bytes=2 << 20, seed=0, device="cuda").count == 32
    assert Slots((part,), covers_bytes=8 << 20, seed=0, device="cuda").count == 64
    tiny = replace(N, numel=8)
    assert Slots((tiny,), covers_bytes=8 << 20, seed=0, device="cuda").count == residency.MOST_DEVICE_SLOTS
