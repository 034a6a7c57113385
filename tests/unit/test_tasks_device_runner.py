"""The process of a kernel on a device, on a host that stands in for the device: copies of arenas, batches, changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from agentcompile.ir.codec import decode, encode
from agentcompile.ir.template import Source
from agentcompile.ir.timing import Interval
from agentcompile.tasks import device_arms, device_runner, graphs, mirror
from agentcompile.tasks.arena import ArenaOwner, ArenaView, Side, mapped
from agentcompile.tasks.device_arms import ONE_BY_ONE, DeviceArms
from agentcompile.tasks.device_runner import DeviceRunner
from agentcompile.tasks.loading import LoadedModel
from agentcompile.tasks.precision import exact
from agentcompile.tasks.stirring import TABLE, applied, fill, shuffled, steps_of, table_numbers
from agentcompile.tasks.torch_arms import EAGER
from agentcompile.tasks.wire import BindDevice, LaunchKernel, ProcessFault, Request, TimeKernel
from tests.unit.fakes import linear_region
from tests.unit.task_files import TASKS


@pytest.mark.parametrize("side", ["after", "before"])
def test_a_device_s_copy_of_an_arena_has_its_redzones_and_borders_nothing_on_the_same_side(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, bool]]()

    def fenced(nbytes: int, *, before: bool) -> torch.Tensor:
        asked.append((nbytes, before))
        return torch.zeros(nbytes, dtype=torch.uint8)

    monkeypatch.setattr(mirror, "fenced", fenced)
    owner = ArenaOwner({"in0": 100, "out0": 5000}, side)
    view = ArenaView(owner.file, 1)
    view.buffer("in0", torch.uint8, (100,)).fill_(7)
    made = mirror.Mirror(owner.file, mapped(owner.file))
    made.load()
    assert asked == [(block.size, side == "before") for block in owner.file.blocks]
    assert made.buffers["in0"].tolist() == [7] * 100
    made.buffers["out0"].fill_(9)
    made.store()
    assert view.buffer("out0", torch.uint8, (5000,)).tolist() == [9] * 5000
    assert not view.broken()
    block = owner.file.blocks[1]
    beyond = made.buffers["out0"].untyped_storage()
    at = block.start + block.nbytes if side == "before" else block.start - 1
    beyond[at] = (beyond[at] + 1) % 256
    made.store()
    assert view.broken() == ["out0"]
    owner.close()


class Graph:
    """What a capture gives: `body` again."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.replay = body


class Watch:
    """A stopwatch of a host that is slow at first: everything runs twice, and the second time counts."""

    def elapsed(self, graphs: Callable[[], None], before: Callable[[], None]) -> Interval:
        for _ in range(2):
            before()
            graphs()
        return Interval(ns=1000)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's device, which does at once what it is asked for."""

    def captured(body: Callable[[], None], *, before: Callable[[], None] | None = None) -> Graph:
        (before or body)()
        return Graph(body)

    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(device_arms, "captured", captured)
    monkeypatch.setattr(graphs, "DeviceTimer", Watch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: type("Stream", (), {"cuda_stream": 0}))
    monkeypatch.setattr(mirror, "fenced", lambda nbytes, before: torch.zeros(nbytes, dtype=torch.uint8))


def test_batches_of_any_length_are_as_many_launches(device: None) -> None:
    done = list[int]()
    batches = graphs.GraphBatches(lambda count: lambda: done.append(count))
    for count in (1, 7, 1024, 1025, 5000):
        queue = batches.of(count)
        done.clear()
        queue()
        assert sum(done) == count
    done.clear()
    assert batches.timed(3, before=done.clear).interval.ns == 1000
    assert done == [3]


@dataclass
class Call:
    """A launch that runs on the host."""

    body: Callable[[], None]

    def run(self, stream: int) -> None:
        self.body()


SETS, NUMBERS = 4, 40


class Runner(DeviceRunner):
    """A runner whose kernel doubles an input, and whose device is the host."""

    def __init__(self, owners: list[ArenaOwner], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._mirrors = [mirror.Mirror(owner.file, mapped(owner.file)) for owner in owners]
        self._stirs = [Call(functools.partial(self.stir, at)) for at in range(SETS)]  # type: ignore[misc]
        self.launched = list[int]()

        def bind_all(_source: object, _region: object, _module: object, slots: list[Any], **_: object) -> list[Call]:
            places = [one["out0"].data_ptr() for one in slots]
            known = [one.buffers["out0"].data_ptr() for one in self._mirrors]
            return [Call(functools.partial(self.double, known.index(place))) for place in places]

        monkeypatch.setattr(device_runner, "bind_all", bind_all)
        monkeypatch.setattr(device_runner, "Module", lambda path: path)
        request = type("Bind", (), {"binary": "", "source": None, "region": None, "shared": (), "arch": "sm_90a"})
        self._bind(request)  # type: ignore[arg-type] # what it reads

    def double(self, at: int) -> None:
        self.launched.append(at)
        one = self._mirrors[at].buffers
        one["out0"].view(torch.float32).copy_(one["in0"].view(torch.float32) * 2)

    def stir(self, at: int) -> None:
        table, tensor = self._mirrors[at].buffers[TABLE].view(torch.int64), self._mirrors[at].buffers["in0"]
        made, count = int(table[0]), int(table[1])
        whole = tensor.view(torch.float32)
        whole.copy_(applied(table[2 + 2 * made :][: 2 * count].view(1, count, 2), 0, whole))
        table[0] += count


@pytest.mark.parametrize("batch", [1, 3, 8, 21])
def test_inputs_that_change_between_timed_launches_are_what_the_examining_process_expects(
    batch: int, device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"in0": 4 * NUMBERS, "out0": 4 * NUMBERS, TABLE: 8 * table_numbers()}
    owners = [ArenaOwner(sizes, "before") for _ in range(SETS)]
    views = [ArenaView(owner.file, at) for at, owner in enumerate(owners)]
    runner, generator = Runner(owners, monkeypatch), torch.Generator().manual_seed(5)
    given, rows = list[torch.Tensor](), list[torch.Tensor]()
    for at, view in enumerate(views):
        values = torch.randn(NUMBERS, generator=generator)
        view.buffer("in0", torch.float32, (NUMBERS,)).copy_(values)
        table, steps = view.buffer(TABLE, torch.int64, (table_numbers(),)), steps_of(batch, SETS, at)
        given.append(values)
        rows.append(fill(table, [shuffled(values)], steps, generator))
    runner.handle(TimeKernel(batch=batch, stirred=True))
    for at, view in enumerate(views[: min(batch, SETS)]):
        expected = applied(rows[at], 0, given[at])
        assert torch.equal(view.buffer("in0", torch.float32, (NUMBERS,)), expected)
        assert torch.equal(view.buffer("out0", torch.float32, (NUMBERS,)), expected * 2)
        assert not view.broken()
    for owner in owners:
        owner.close()


def test_results_come_back_from_a_device_where_somebody_looks_and_only_there(
    device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"in0": 4 * NUMBERS, "out0": 4 * NUMBERS, TABLE: 8 * table_numbers()}
    owners = [ArenaOwner(sizes, "before") for _ in range(SETS)]
    views = [ArenaView(owner.file, at) for at, owner in enumerate(owners)]
    runner = Runner(owners, monkeypatch)
    for view in views:
        view.buffer("in0", torch.float32, (NUMBERS,)).fill_(1.5)
        view.buffer("out0", torch.float32, (NUMBERS,)).fill_(0.0)
    out = views[2].buffer("out0", torch.float32, (NUMBERS,))
    runner.handle(LaunchKernel(arena=2, repeat=3))
    assert runner.launched == [2, 2, 2]
    assert out.tolist() == [3.0] * NUMBERS
    out.fill_(0.0)
    runner.handle(TimeKernel(batch=8))
    assert out.tolist() == [0.0] * NUMBERS
    runner.handle(TimeKernel(batch=8, shown=True))
    assert out.tolist() == [3.0] * NUMBERS
    for owner in owners:
        owner.close()


def test_no_launch_sees_memory_that_nothing_was_written_to(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"in0": 4 * NUMBERS, "out0": 4 * NUMBERS, TABLE: 8 * table_numbers()}
    owners = [ArenaOwner(sizes, "before") for _ in range(SETS)]
    for at, owner in enumerate(owners):
        ArenaView(owner.file, at).buffer("in0", torch.float32, (NUMBERS,)).fill_(1.5)
    runner, seen = Runner(owners, monkeypatch), set[float]()
    monkeypatch.setattr(
        runner, "double", lambda at: seen.update(runner._mirrors[at].buffers["in0"].view(torch.float32).tolist())
    )
    runner._bind(type("Bind", (), {"binary": "", "source": None, "region": None, "shared": (), "arch": "sm_90a"}))  # type: ignore[arg-type]
    runner.handle(TimeKernel(batch=3))
    assert seen == {1.5}, "captures launch, too"
    for owner in owners:
        owner.close()


def test_a_device_that_cannot_be_used_is_the_machine_s_fault(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: object) -> None:
        raise RuntimeError("No CUDA GPUs are available\nmore")

    runner = DeviceRunner()
    monkeypatch.setattr(runner, "_prepare", refuse)
    source = Source(language="cuda", text="", launches=(), workspaces=())
    bind = BindDevice(
        binary="", source=source, region=linear_region(), arch="sm_90a", device="cuda:0", nodes=(), arenas=(),
        shared=(), fenced=False, attendants="",
    )  # fmt: skip
    assert decode(Request, encode(bind)) == bind
    assert runner.handle(bind) == ProcessFault(
        error="cuda:0 cannot be used: No CUDA GPUs are available", environment=True
    )


class Seen(torch.nn.Module):
    """A model that notes which inputs it was called on, and whether TF32 was on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.tf32 = list[int](), set[bool]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(x.data_ptr())
        self.tf32.add(torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32)
        return x + 1


def test_pytorch_s_batches_walk_over_its_sets_with_tf32_on_which_is_off_elsewhere(device: None) -> None:
    exact()
    loaded, model = LoadedModel(TASKS / "softmax.py", 3), Seen()
    loaded.model = model
    arms = DeviceArms(loaded, 5)
    assert arms.make(EAGER) == ""
    model.calls.clear()
    assert arms.timed(EAGER, 6).interval.ns == 1000
    *_, a, b, c, d, e, f = model.calls
    assert len({a, b, c, d}) == 4
    assert (e, f) == (a, b)
    assert model.tf32 == {True}
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True  # as it was


def test_a_model_that_cannot_be_captured_is_launched_one_by_one(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(body: Callable[[], None], **_: object) -> Graph:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "captured", refused)
    monkeypatch.setattr(device_arms, "captured", refused)
    arms = DeviceArms(LoadedModel(TASKS / "softmax.py", 3), 5)
    assert arms.make(EAGER) == ONE_BY_ONE
    assert arms.timed(EAGER, 3).interval.ns == 1000


@pytest.mark.parametrize(
    ("said", "environment"),
    [("CUDA error: an illegal memory access was encountered\nmore", False), ("CUDA out of memory. Tried", True)],
)
def test_a_kernel_that_faults_is_told_in_a_line_and_memory_that_runs_out_is_the_machine_s(
    said: str, environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(request: object) -> None:
        raise RuntimeError(said)

    runner = DeviceRunner()
    monkeypatch.setattr(runner, "_launch", fault)
    assert runner.handle(LaunchKernel(arena=0)) == ProcessFault(error=said.partition("\n")[0], environment=environment)
