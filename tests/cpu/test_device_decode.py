"""The device's loops and chunks on the host: graphs that run their body again, an `advance` in Python, no driver.

What is a device's own (streams, captures, launches) is tested on one; here it is counting, padding and ending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentcompile.capture import Captured
from agentcompile.capture.chunked import at_tokens
from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.graph import Use, concrete
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Regime
from agentcompile.regions.partition import partition
from agentcompile.runtime import device_decode, device_step
from agentcompile.runtime.device_decode import DeviceDecode, DevicePrefill
from agentcompile.runtime.device_step import DeviceStep, on_device
from agentcompile.runtime.last import for_one
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.sites import one_operator, product_into
from agentcompile.runtime.step import HostStep
from tests.models import captures, tiny
from tests.models.lowered import in_pytorch
from tests.unit.graphs import qwen3

CONTEXT = 40
IDS = [3, 17, 5, 60, 2, 9, 33]


class Replayed:
    """A graph that runs its body again."""

    def __init__(self, body: Callable[[], None], times: int) -> None:
        self._body, self._times = body, times
        body()

    def replay(self) -> None:
        for _ in range(self._times):
            self._body()


class Advance:
    """The kernel that ends a step."""

    def __init__(self, decode: Memory) -> None:
        self._memory = decode
        self.history: torch.Tensor | None = None

    def __call__(self) -> None:
        assert self.history is not None
        self.history[int(self._memory.position)] = self._memory.token[0]
        self._memory.position += 1


class Rig:
    """A tiny model twice over one memory: as the host steps it, and as the device's classes do."""

    def __init__(self, captured_model: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captured = captured_model
        programs = [in_pytorch(graph, CONTEXT) for graph in (self.captured.decode, self.captured.prefill)]
        read = Checkpoint.open(self.captured.checkpoint).tensor
        self.memory = Memory(programs, read, self.captured.constants)
        self.host = Memory(programs, read, self.captured.constants)
        nothing: Any = None
        self.step = HostStep(programs[0], self.host, nothing, {})
        self.chunks = HostStep(programs[1], self.host, nothing, {}, capacity=CONTEXT)
        advance = Advance(self.memory)

        def captured(
            body: Callable[[], None], *, times: int = 1, pool: object = None, before: object = None
        ) -> Replayed:
            return Replayed(body, times)

        monkeypatch.setattr(device_step, "captured", captured)
        monkeypatch.setattr(device_decode, "captured", captured)
        monkeypatch.setattr(device_decode.Call, "of", staticmethod(lambda *_, **__: None))
        monkeypatch.setattr(device_decode, "enqueued", lambda _: advance)
        stepped = DeviceStep(programs[0], self.memory, {}, overlap=False)
        self.decode = DeviceDecode(stepped, self.memory, nothing, None, context=CONTEXT, overlap=False)
        advance.history = self.decode._history
        self.asked: list[int] = []

        def bound(tokens: int) -> tuple[Program, dict[str, Any]]:
            self.asked.append(tokens)
            return in_pytorch(at_tokens(self.captured.prefill, tokens), CONTEXT, tokens=tokens), {}

        self.prefill = DevicePrefill(bound, self.memory, self.decode, capacity=32, overlap=False)

    def expected(self, ids: list[int], count: int) -> list[int]:
        """Greedy tokens by the host's step, from the prompt on."""
        logits, made = torch.empty(0), list[int]()
        for at, token in enumerate(ids):
            self.host.token[0], self.host.position[0] = token, at
            logits = self.step.again()
        for at in range(len(ids), len(ids) + count):
            made.append(int(logits.argmax()))
            self.host.token[0], self.host.position[0] = made[-1], at
            if at < CONTEXT:
                logits = self.step.again()
        return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return captures.captured(tiny.write("qwen3", tmp_path_factory.mktemp("qwen3")), CONTEXT)


@pytest.fixture
def rig(model: Captured, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(model, monkeypatch)


def begin(rig: Rig, ids: list[int]) -> int:
    """Prefill, and stand behind the prompt with its first token, as a generation does."""
    logits = rig.prefill.run(torch.tensor(ids), torch.arange(len(ids)))
    token = int(logits.argmax())
    rig.decode.rewind(token, len(ids))
    return token


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 20, 32])
def test_a_chunk_of_any_length_gives_the_hosts_logits(rig: Rig, count: int) -> None:
    ids = [(5 * i + 3) % 90 for i in range(count)]
    expected = rig.chunks.run(torch.tensor(ids), torch.arange(count)).float()
    found = rig.prefill.run(torch.tensor(ids), torch.arange(count)).float()
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_a_later_chunk_sees_the_ones_before_and_the_end_of_the_cache_needs_no_room_for_padding(rig: Rig) -> None:
    ids = [(5 * i + 3) % 90 for i in range(CONTEXT)]
    expected = torch.empty(0)
    for first in (0, 32):
        part = torch.tensor(ids[first : first + 32])
        at = torch.arange(first, first + part.numel())
        expected, found = rig.chunks.run(part, at).float(), rig.prefill.run(part, at).float()
        assert float((found - expected).norm() / expected.norm()) < 0.05
    tail = torch.tensor(ids[35:])  # five tokens, and five slots: a graph of eight has no room
    found = rig.prefill.run(tail, torch.arange(35, CONTEXT)).float()
    assert float((found - expected).norm() / expected.norm()) < 0.05


@pytest.mark.parametrize(("count", "lengths"), [(32, [32]), (27, [16, 16]), (24, [16, 8]), (18, [16, 8]), (9, [16])])
def test_of_a_long_chunk_what_fills_a_program_runs_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, count: int, lengths: list[int]
) -> None:
    monkeypatch.setattr(device_decode, "PADDED", 16)
    ids = [(5 * i + 3) % 90 for i in range(count)]
    expected = rig.chunks.run(torch.tensor(ids), torch.arange(count)).float()
    found = rig.prefill.run(torch.tensor(ids), torch.arange(count)).float()
    assert float((found - expected).norm() / expected.norm()) < 0.05
    assert [length for _, length in rig.prefill._graphs] == lengths


def test_a_padded_chunk_whose_program_has_any_tokens_logits_takes_no_decode_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(tokens: int) -> tuple[Program, dict[str, Any]]:
        graph = at_tokens(rig.captured.prefill, tokens)
        cut = partition(graph, Regime(phase="prefill", context=(1, CONTEXT)), tokens=tokens)
        whole, single = (
            in_pytorch(at_tokens(rig.captured.prefill, count), CONTEXT, tokens=count) for count in (tokens, 1)
        )
        return for_one(whole, single, {region.id: region for region in cut.regions}), {}

    def again() -> torch.Tensor:
        raise AssertionError("a decode step")

    monkeypatch.setattr(rig.decode, "again", again)
    prefill = DevicePrefill(bound, rig.memory, rig.decode, capacity=32, overlap=False)
    ids = [(5 * i + 3) % 90 for i in range(CONTEXT)]
    for count in (1, 20, 3, 8, 32, 5):
        part, at = torch.tensor(ids[:count]), torch.arange(count)
        expected, found = rig.chunks.run(part, at).float(), prefill.run(part, at).float()
        assert float((found - expected).norm() / expected.norm()) < 0.05
    part, at = torch.tensor(ids[32:]), torch.arange(32, CONTEXT)  # to the very end of the cache
    for chunks in (rig.chunks, prefill):
        chunks.run(torch.tensor(ids[:32]), torch.arange(32))
    expected, found = rig.chunks.run(part, at).float(), prefill.run(part, at).float()
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_positions_are_written_only_where_those_before_do_not_serve(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    arange = torch.arange

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "out" in kwargs:
            written.append(int(args[0]))
        return arange(*args, **kwargs)

    monkeypatch.setattr(torch, "arange", noted)
    ids = [(7 * i + 1) % 90 for i in range(CONTEXT)]
    for first, count in ((0, 8), (0, 16), (0, 8), (8, 16), (8, 8), (0, 16)):
        part, at = torch.tensor(ids[first : first + count]), arange(first, first + count)
        expected, found = rig.chunks.run(part, at).float(), rig.prefill.run(part, at).float()
        assert float((found - expected).norm() / expected.norm()) < 0.05
    assert written == [0, 0, 8, 0]


def test_a_longer_chunk_gets_a_larger_arena_and_those_on_the_smaller_one_are_captured_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_decode, "PADDED", 8)
    ids = [(5 * i + 3) % 90 for i in range(32)]
    sizes = []
    for count in (4, 32, 8, 32):
        expected = rig.chunks.run(torch.tensor(ids[:count]), torch.arange(count)).float()
        found = rig.prefill.run(torch.tensor(ids[:count]), torch.arange(count)).float()
        assert float((found - expected).norm() / expected.norm()) < 0.05
        assert rig.prefill._arena is not None
        sizes.append(rig.prefill._arena.nbytes)
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]
    assert list(rig.prefill._graphs) == [(0, 32), (0, 8)]  # the first graph of eight lay in the smaller arena
    assert rig.asked == [8, 32]


def test_a_chunk_longer_than_the_capacity_is_refused(rig: Rig) -> None:
    with pytest.raises(ValueError, match="33 tokens"):
        rig.prefill.run(torch.zeros(33, dtype=torch.int64), torch.arange(33))


@pytest.mark.parametrize("count", [1, 7, 8, 19])
def test_the_loop_makes_what_single_steps_make(rig: Rig, count: int) -> None:
    first = begin(rig, IDS)
    loop = rig.decode.decoder((), CONTEXT)
    assert loop.begin(Sampling(), first=len(IDS) - 1, logprobs=False)
    made = loop.steps(count, at=len(IDS), more=False)
    assert [first, *made.tokens] == rig.expected(IDS, count + 1)
    assert made.reason == "limit"
    assert int(rig.memory.position) == len(IDS) + count


def test_with_more_to_come_the_next_step_is_queued_and_no_token_is_made_twice(rig: Rig) -> None:
    first = begin(rig, IDS)
    loop = rig.decode.decoder((), CONTEXT)
    assert loop.begin(Sampling(), first=len(IDS) - 1, logprobs=False)
    made, at = list[int](), len(IDS)
    for count in (1, 3, 8, 9):
        made += loop.steps(count, at=at, more=count < 9).tokens
        at += count
        assert int(rig.memory.position) == at + (count < 9)
    assert [first, *made] == rig.expected(IDS, len(made) + 1)


def test_no_step_is_queued_past_the_end_of_the_cache(rig: Rig) -> None:
    begin(rig, IDS)
    made = rig.decode.decoder((), 20).steps(20 - len(IDS), at=len(IDS), more=True)
    assert made.reason == "context"
    assert int(rig.memory.position) == 20


@pytest.mark.parametrize("more", [False, True])
def test_a_prompts_last_logits_are_chosen_from_on_the_device(rig: Rig, more: bool) -> None:
    expected = rig.expected(IDS, 6)
    logits = rig.prefill.run(torch.tensor(IDS), torch.arange(len(IDS)))
    loop = rig.decode.decoder((), CONTEXT)
    assert loop.begin(Sampling(), first=len(IDS) - 1, logprobs=False)
    made = loop.draw(logits, len(IDS) - 1, more=more)
    assert made is not None
    assert list(made.tokens) == expected[:1]
    assert int(rig.memory.position) == len(IDS) + more
    assert list(loop.steps(5, at=len(IDS), more=False).tokens) == expected[1:]


def test_logits_of_another_kind_are_the_hosts_to_choose_from(rig: Rig) -> None:
    logits = rig.prefill.run(torch.tensor(IDS), torch.arange(len(IDS)))
    loop = rig.decode.decoder((), CONTEXT)
    assert loop.draw(logits.double(), len(IDS) - 1, more=False) is None
    assert loop.draw(logits[:-1], len(IDS) - 1, more=False) is None


def test_a_generation_that_was_left_with_a_step_queued_does_not_show_in_the_next(rig: Rig) -> None:
    loop = rig.decode.decoder((), CONTEXT)
    for more in (True, False):
        logits = rig.prefill.run(torch.tensor(IDS), torch.arange(len(IDS)))
        assert loop.begin(Sampling(), first=len(IDS) - 1, logprobs=False)
        assert loop.draw(logits, len(IDS) - 1, more=more) is not None
        made = loop.steps(4, at=len(IDS), more=more)
    assert list(made.tokens) == rig.expected(IDS, 5)[1:]


def test_a_stop_token_ends_the_loop_and_memory_stands_behind_it(rig: Rig) -> None:
    expected = rig.expected(IDS, 20)
    late = next(token for at, token in enumerate(expected[1:], 1) if token not in expected[:at])
    at = expected.index(late)
    begin(rig, IDS)
    made = rig.decode.decoder((late,), CONTEXT).steps(19, at=len(IDS), more=True)
    assert made.reason == "stop"
    assert list(made.tokens) == expected[1 : at + 1]
    assert int(rig.memory.position) == len(IDS) + at
    assert int(rig.memory.token) == late


def test_the_loop_ends_with_the_cache(rig: Rig) -> None:
    begin(rig, IDS)
    loop = rig.decode.decoder((), CONTEXT)
    made = loop.steps(1000, at=len(IDS), more=False)
    assert made.reason == "context"
    assert len(made.tokens) == CONTEXT - len(IDS)
    assert loop.steps(5, at=CONTEXT, more=False).tokens == ()


def test_without_a_sampler_only_greedy_tokens_are_made_on_the_device(rig: Rig) -> None:
    loop = rig.decode.decoder((), CONTEXT)
    assert not loop.begin(Sampling(temperature=1.0), first=0, logprobs=False)
    assert not loop.begin(Sampling(), first=0, logprobs=True)
    assert loop.begin(Sampling(), first=0, logprobs=False)


def test_running_out_of_memory_says_what_to_do() -> None:
    says = "loading m on cuda:0: the GPU is out of memory"
    with pytest.raises(AgentCompileError, match=says) as caught, on_device("loading m on cuda:0"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "--context" in caught.value.hint


def test_a_lost_device_is_the_environments_fault_and_a_mistake_of_ours_is_not() -> None:
    with pytest.raises(AgentCompileError, match="the GPU failed") as caught, on_device("decode steps"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    with pytest.raises(RuntimeError, match="shape"), on_device("decode steps"):
        raise RuntimeError("shape '[2]' is invalid")


def test_a_step_of_pytorch_alone_has_no_native_call(rig: Rig) -> None:
    assert not any(isinstance(call, NativeCall) for call in rig.decode._step.program.calls)


class Copies(TorchDispatchMode):
    """Counts what is copied into one tensor."""

    def __init__(self, into: torch.Tensor) -> None:
        super().__init__()
        self.count, self._place = 0, into.data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.count += args[0].data_ptr() == self._place
        return func(*args, **(kwargs or {}))


def test_a_product_is_written_where_others_read_it(rig: Rig) -> None:
    program = in_pytorch(rig.captured.decode, CONTEXT, singly=True)
    rig.host.token[0] = rig.memory.token[0] = 5
    expected = rig.step.again()
    step = DeviceStep(program, rig.memory, {}, overlap=False)
    step.logits.fill_(float("nan"))
    with Copies(step.logits) as copies:
        step.enqueue()
    assert copies.count == 0
    torch.testing.assert_close(step.logits, expected)


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_a_product_in_place_is_the_operator(biased: bool) -> None:
    body = next(
        region.body
        for region in partition(qwen3(2), Regime(phase="decode", context=(1, 32))).regions
        if [node.op for node in region.body.nodes] == ["linear"]
    )
    (node,), values = body.nodes, body.table()
    names = [use.value for use in node.inputs]
    if biased:
        bias = replace(values[names[1]], id="b", shape=values[names[1]].shape[:1])
        node = replace(node, inputs=(*node.inputs, Use(value="b")))
        body = replace(body, nodes=(node,), values=(*body.values, bias), inputs=("b", *body.inputs))
        values = body.table()
    inputs = [torch.randn(concrete(values[name].shape)).bfloat16() for name in body.inputs]
    run, write = one_operator(body, 1), product_into(body, 1)
    assert run is not None
    assert write is not None
    made = run(inputs)
    into = torch.full_like(made, float("nan"))
    write(inputs, into)
    torch.testing.assert_close(into, made, rtol=2**-7, atol=1e-3)
