"""The native executor: every launch on every rank in order, the decode loop's ends, and pools that keep apart."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentcompile.build import Binary, compile, compile_executor, find_toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.template import Source
from agentcompile.runtime.elf import loaded_bytes
from agentcompile.runtime.native import Call, CallClock, Executor, Library, NativeDecoder, NativeProgram
from agentcompile.system.store import Store

KERNELS = """
#include <cstdint>
struct args { int64_t* counts; int64_t* position; int64_t* token; };
extern "C" void bump(const args& a, int rank, int size) { a.counts[rank * 16]++; }
extern "C" void sum(const args& a, int rank, int size) {
    if (rank == 0) { *a.token = 0; for (int r = 0; r < size; ++r) *a.token += a.counts[r * 16]; }
}
extern "C" void tens(const args& a, int rank, int size) { if (rank == size - 1) *a.token = *a.position * 10; }
"""


@pytest.fixture(scope="module")
def executor_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_executor(Store(tmp_path_factory.mktemp("store")), toolchain=find_toolchain())


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    source = Source(language="cpp", text=KERNELS, launches=(), workspaces=())
    made = compile(source, Store(tmp_path_factory.mktemp("kernels")), toolchain=find_toolchain(), limit_s=60)
    assert isinstance(made, Binary)
    return Library(Path(made.path))


class Buffers:
    """The arguments of the kernels above, and calls on them."""

    def __init__(self, kernels: Library, threads: int) -> None:
        self._kernels = kernels
        self.counts = (ctypes.c_int64 * (16 * threads))()
        self.position, self.token = ctypes.c_int64(0), ctypes.c_int64(0)
        self._threads = threads

    def calls(self, *entries: str) -> list[Call]:
        pointers = [ctypes.addressof(b) for b in (self.counts, self.position, self.token)]
        return [Call.of(self._kernels, entry, pointers) for entry in entries]

    def decoder(
        self, executor: Executor, *entries: str, stops: Sequence[int] = (), context: int = 100
    ) -> NativeDecoder:
        token = ctypes.addressof(self.token)
        position = ctypes.addressof(self.position)
        return NativeDecoder(
            executor, self.calls(*entries), ids=token, token=token, position=position, stop_ids=stops, context=context
        )


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_rank_runs_every_launch_and_the_next_one_sees_it(
    executor_path: Path, kernels: Library, threads: int
) -> None:
    buffers = Buffers(kernels, threads)
    NativeProgram(Executor(executor_path, threads), buffers.calls("bump", "bump", "sum")).run(repeat=50)
    assert [buffers.counts[16 * rank] for rank in range(threads)] == [100] * threads
    assert buffers.token.value == 100 * threads


def test_a_program_times_every_sample(executor_path: Path, kernels: Library) -> None:
    buffers = Buffers(kernels, 2)
    program = NativeProgram(Executor(executor_path, 2), buffers.calls("bump"))
    times = program.time(repeat=3, samples=4)
    assert len(times) == 4
    assert all(time > 0 for time in times)
    assert buffers.counts[0] == 12
    with pytest.raises(ValueError, match="at least 1"):
        program.time(repeat=0, samples=1)


def test_decode_ends_by_count_by_stop_id_and_at_the_last_slot(executor_path: Path, kernels: Library) -> None:
    buffers = Buffers(kernels, 2)
    decoder = buffers.decoder(Executor(executor_path, 2), "tens", stops=(40,), context=8)
    made = [decoder.steps(count) for count in (2, 9, 9, 9)]
    assert [m.tokens for m in made] == [(0, 10), (20, 30, 40), (50, 60, 70), ()]
    assert [m.reason for m in made] == ["limit", "stop", "context", "context"]
    assert buffers.position.value == 8


def test_decode_stops_when_it_is_cancelled_from_another_thread(executor_path: Path, kernels: Library) -> None:
    buffers = Buffers(kernels, 2)
    decoder = buffers.decoder(Executor(executor_path, 2), "tens", context=1 << 40)
    timer = threading.Timer(0.05, decoder.cancel)
    timer.start()
    made = decoder.steps(20_000_000)
    timer.join()
    assert made.reason == "cancelled"
    assert 0 < len(made.tokens) < 20_000_000


def test_two_pools_and_two_callers_do_not_disturb_each_other(executor_path: Path, kernels: Library) -> None:
    sets = {threads: Buffers(kernels, threads) for threads in (2, 3)}

    def work(threads: int) -> Callable[[], None]:
        program = NativeProgram(Executor(executor_path, threads), sets[threads].calls("bump"))

        def call() -> None:
            for _ in range(5):
                program.run(repeat=200)

        return call

    callers = [threading.Thread(target=work(threads)) for threads in (2, 3, 2, 3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for threads, buffers in sets.items():
        assert [buffers.counts[16 * rank] for rank in range(threads)] == [2000] * threads


def test_the_caller_keeps_its_own_affinity(executor_path: Path, kernels: Library) -> None:
    before, buffers = os.sched_getaffinity(0), Buffers(kernels, 2)
    NativeProgram(Executor(executor_path, 2), buffers.calls("bump")).run()
    assert buffers.counts[16] == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(executor_path: Path, kernels: Library) -> None:
    buffers = Buffers(kernels, 2)
    program = NativeProgram(Executor(executor_path, 2), buffers.calls("bump"))
    program.run()
    child = os.fork()
    if child == 0:
        program.run(repeat=10)
        os._exit(buffers.counts[16])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11
    program.run()
    assert buffers.counts[16] == 2


@pytest.mark.parametrize(("taken", "loads"), [(1 << 20, True), (3 << 27, False)])
def test_a_library_with_much_static_memory_is_not_loaded(taken: int, loads: bool, tmp_path: Path) -> None:
    """It is refused for its size, also where the machine has so much memory."""
    (tmp_path / "room.cpp").write_text(f'char room[{taken}]; extern "C" char* room_of() {{ return room; }}\n')
    path = tmp_path / "room.so"
    subprocess.run([find_toolchain().compiler, "-shared", "-fPIC", "-o", path, tmp_path / "room.cpp"], check=True)
    assert 0 <= loaded_bytes(path) - taken < 1 << 20
    if loads:
        assert Library(path).find("room_of") is not None
    else:
        with pytest.raises(AgentCompileError, match=r"cannot be loaded: it takes 0\.4 GB of memory"):
            Library(path)


def test_what_cannot_be_run_is_said_clearly(executor_path: Path, kernels: Library, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF, or not")
    with pytest.raises(AgentCompileError, match="cannot be loaded") as loading:
        Library(broken)
    assert loading.value.exit_code is ExitCode.ENVIRONMENT
    assert loaded_bytes(broken) == 0
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(executor_path.read_bytes()[:32] + b"\xff" * 8 + executor_path.read_bytes()[40:])
    assert loaded_bytes(damaged) == 0
    with pytest.raises(AgentCompileError, match="cannot be loaded"):
        Library(damaged)
    with pytest.raises(AgentCompileError, match="no entry 'absent'"):
        kernels.entry("absent")
    with pytest.raises(ValueError, match="at least one call"):
        NativeProgram(Executor(executor_path, 2), [])
    with pytest.raises(ValueError, match=r"not in 1\.\.256"):
        Executor(executor_path, 0)


def test_a_clock_adds_up_what_each_call_took_while_it_runs(executor_path: Path, kernels: Library) -> None:
    executor, clock = Executor(executor_path, 2), CallClock(4)
    buffers = Buffers(kernels, 2)
    program = NativeProgram(executor, buffers.calls("bump", "sum", "bump"), clock=clock, at=1)
    program.run(3)
    assert clock.stop() == (0, 0, 0, 0)
    clock.start()
    begin = time.perf_counter_ns()
    program.run(50)
    whole = time.perf_counter_ns() - begin
    spent = clock.stop()
    assert spent[0] == 0
    assert all(ns > 0 for ns in spent[1:])
    assert sum(spent) <= whole
    program.run(3)
    assert clock.stop() == spent
    clock.start()
    assert clock.stop() == (0, 0, 0, 0)
    assert list(buffers.counts[::16]) == [2 * 56] * 2


def test_a_clocked_decode_loop_makes_the_same_tokens_and_counts_its_steps(
    executor_path: Path, kernels: Library
) -> None:
    executor, clock, buffers = Executor(executor_path, 2), CallClock(2), Buffers(kernels, 2)
    token, position = ctypes.addressof(buffers.token), ctypes.addressof(buffers.position)
    calls = buffers.calls("bump", "tens")
    decoder = NativeDecoder(
        executor, calls, ids=token, token=token, position=position, stop_ids=(), context=100, clock=clock
    )
    plain = decoder.steps(5).tokens
    clock.start()
    buffers.position.value = 0
    assert decoder.steps(5).tokens == plain
    assert clock.steps == 5
    assert all(ns > 0 for ns in clock.stop())
