"""The native executor where threads lose their cores: ranks change threads, and what they compute stays the same."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from agentcompile.bench.busy.recipe import neighbours

from agentcompile.build import Binary, compile, compile_executor, find_toolchain
from agentcompile.ir.template import Source
from agentcompile.runtime.native import Call, Executor, Library, NativeDecoder, NativeProgram
from agentcompile.system.store import Store

# A rank reads what another one left in the launch before. `inside` counts who is in a rank, which is never two.
KERNELS = """
#include <cstdint>
struct args { uint64_t *here, *there, *seen; int64_t *inside, *token, *work; };
static void relay(const args& a, int rank, int size, const uint64_t* from, uint64_t* to, uint64_t factor) {
    if (__atomic_fetch_add(a.inside + rank * 16, 1, __ATOMIC_SEQ_CST) != 0) a.seen[rank * 16]++;
    for (volatile int64_t i = 0; i < *a.work * (rank + 1) % 7 * 100; i = i + 1) {}
    to[rank * 16] = from[(rank + 1) % size * 16] * factor + rank;
    __atomic_fetch_sub(a.inside + rank * 16, 1, __ATOMIC_SEQ_CST);
}
extern "C" void forth(const args& a, int rank, int size) { relay(a, rank, size, a.here, a.there, 3); }
extern "C" void back(const args& a, int rank, int size) { relay(a, rank, size, a.there, a.here, 5); }
extern "C" void pick(const args& a, int rank, int size) { if (rank == size - 1) *a.token = a.here[0] >> 40; }
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


class Relay:
    """Buffers of the kernels above, and what they hold after some passes when every launch waits for the last."""

    def __init__(self, kernels: Library, ranks: int, work: int) -> None:
        self._kernels, self._ranks = kernels, ranks
        self.here, self.there, self.seen = ((ctypes.c_uint64 * (16 * ranks))() for _ in range(3))
        self.inside = (ctypes.c_int64 * (16 * ranks))()
        self.token, self.work = ctypes.c_int64(0), ctypes.c_int64(work)

    def calls(self, entries: Sequence[str]) -> list[Call]:
        buffers = (self.here, self.there, self.seen, self.inside, self.token, self.work)
        return [Call.of(self._kernels, entry, [ctypes.addressof(one) for one in buffers]) for entry in entries]

    def values(self) -> list[int]:
        assert not any(self.seen), "two threads were in one rank"
        return list(self.here[::16])

    def expected(self, passes: int) -> list[int]:
        values = [0] * self._ranks
        for _ in range(passes):
            for factor in (3, 5):
                turned = values[1:] + values[:1]
                values = [(value * factor + rank) % 2**64 for rank, value in enumerate(turned)]
        return values


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("work", [0, 1])
def test_launches_keep_their_order_while_threads_lose_their_cores(
    executor_path: Path, kernels: Library, ranks: int, work: int
) -> None:
    relay, passes = Relay(kernels, ranks, work), 0
    program = NativeProgram(Executor(executor_path, ranks), relay.calls(("forth", "back")))
    with neighbours(2 * len(os.sched_getaffinity(0))):
        for repeat in (1, 2, 5, 2_000, 1, 2_000):
            program.run(repeat)
            passes += repeat
            assert relay.values() == relay.expected(passes)


def test_a_decode_loop_makes_the_same_tokens_while_threads_lose_their_cores(
    executor_path: Path, kernels: Library
) -> None:
    steps = 1_000
    relay, position = Relay(kernels, 2, 1), ctypes.c_int64(0)
    token, at = ctypes.addressof(relay.token), ctypes.addressof(position)
    calls = relay.calls(("forth", "back", "pick"))
    decoder = NativeDecoder(
        Executor(executor_path, 2), calls, ids=token, token=token, position=at, stop_ids=(), context=steps + 1
    )
    with neighbours(2 * len(os.sched_getaffinity(0))):
        made = decoder.steps(steps)
    assert made.reason == "limit"
    assert list(made.tokens) == [relay.expected(count)[0] >> 40 for count in range(1, steps + 1)]
