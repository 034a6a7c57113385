"""Task files of every kind: what is wrong is said with the file's name and a remedy, and nothing hangs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.tasks.load import LoadedTask, TaskLimits
from agentcompile.tasks.wire import Loaded
from tests.cpu.tasked import NORMED, SCALED

LIMITS = TaskLimits(load_s=60.0, memory_bytes=1 << 30)
TASK = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {forward}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return []
"""


def task(forward: str = "torch.relu(x)", inputs: str = "[torch.randn(4, 8)]") -> str:
    return TASK.format(forward=forward, inputs=inputs)


def loaded(folder: Path, text: str, limits: TaskLimits = LIMITS, name: str = "one.py") -> Loaded:
    path = folder / name
    path.write_text(text)
    with LoadedTask(path, threads=1, seed=3, limits=limits) as found:
        return found.told


def refusal(folder: Path, text: str, limits: TaskLimits = LIMITS) -> str:
    with pytest.raises(AgentCompileError) as caught:
        loaded(folder, text, limits)
    assert str(folder / "one.py") in caught.value.message
    assert caught.value.hint
    return caught.value.message


BAD = {
    "a missing import": ("import nowhere_at_all\n" + task(), "imports nowhere_at_all, which is not installed"),
    "no Python": ("def (:\n" + task(), "line 1: SyntaxError"),
    "an error at import": (task() + "\nraise RuntimeError('not today')\n", "line 17: RuntimeError: not today"),
    "an exit at import": (task() + "\nraise SystemExit(3)\n", "SystemExit"),
    "no model": (task().replace("class Model", "class Modell"), "no class Model"),
    "no get_inputs": (task().replace("get_inputs", "get_in"), "no function get_inputs"),
    "no inputs": (task(inputs="[]"), "no list of inputs"),
    "no tensors": (task(inputs="[3, 'a']"), "no tensor"),
    "nothing": (task(inputs="None"), "no list of inputs"),
    "random results": (task("x + torch.rand(1)"), "different results for the same inputs"),
    "inputs from the clock": (
        "import time\n" + task(inputs="[torch.randn(4, 8) + time.time_ns() % 1000003]"),
        "every generator has the same seed",
    ),
    "NaN": (task("torch.log(-x.abs() - 1)"), "out0 holds NaN"),
    "a constant": (task("x * 0 + 1"), "the same for different inputs"),
    "inputs that never change": (task(inputs="[torch.arange(8)]", forward="x + 1"), "the same tensors at every call"),
    "a text as result": (task("'relu'"), "something else than tensors"),
    "a dtype that kernels lack": (task("x.to(torch.int16)"), "torch.int16"),
    "an empty tensor": (task("x[:0]"), "without elements"),
    "an error in forward": (task("x @ x"), "line 7: RuntimeError"),
    "a device": (task("x.cuda()"), "Model.forward"),
    "an abort": (task("__import__('os').abort()"), "its process ended in loading it: killed by SIGABRT"),
    "too much memory": (task(inputs="[torch.randn(1 << 31)]"), "needs more memory"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_task_is_an_error_that_names_file_fault_and_remedy(tmp_path: Path, what: str) -> None:
    text, part = BAD[what]
    assert part in refusal(tmp_path, text)


@pytest.mark.parametrize("where", ["import", "inputs", "forward"])
def test_a_task_that_hangs_is_killed_at_the_limit(tmp_path: Path, where: str) -> None:
    sleeping = "__import__('time').sleep(600)"
    text = {
        "import": task() + f"\n{sleeping}\n",
        "inputs": task(inputs=f"[{sleeping}]"),
        "forward": task(sleeping),
    }[where]
    begin = time.monotonic()
    assert "took longer than 6 s" in refusal(tmp_path, text, TaskLimits(load_s=6.0))
    assert time.monotonic() - begin < 30


def test_what_a_task_prints_breaks_nothing(tmp_path: Path) -> None:
    noisy = "import os\nprint('hello' * 9999)\nos.write(1, b'acf1garbage')\n" + task()
    assert loaded(tmp_path, noisy).signatures[0].of("output")


def test_a_path_that_is_no_task_is_refused(tmp_path: Path) -> None:
    for name in ("none.py", "text.txt"):
        with pytest.raises(AgentCompileError, match=name):
            LoadedTask(tmp_path / name, threads=1, seed=0, limits=LIMITS)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(AgentCompileError, match="a folder, and no file"):
        LoadedTask(tmp_path / "folder.py", threads=1, seed=0, limits=LIMITS)
    (tmp_path / "large.py").write_bytes(b"#" * (1 << 21))
    with pytest.raises(AgentCompileError, match="at most"):
        LoadedTask(tmp_path / "large.py", threads=1, seed=0, limits=LIMITS)


def test_a_tasks_tensors_are_its_ports_by_name(tmp_path: Path) -> None:
    text = task("self.part.layer(x) * self.scale + self.bias", "[torch.randn(2, 3), 7, 0.5]").replace(
        "def forward(self, x)",
        "def __init__(self):\n"
        "        super().__init__()\n"
        "        self.part = nn.Module()\n"
        "        self.part.layer = nn.Linear(3, 4)\n"
        "        self.scale = torch.full((4,), 2.0)\n"
        "        self.register_buffer('bias', torch.zeros(4))\n"
        "        self.norm = nn.BatchNorm1d(4)\n\n"
        "    def forward(self, x, count, share)",
    )
    found = loaded(tmp_path, text)
    (signature,) = found.signatures
    names = {one.name: (one.source, one.shape) for one in signature.of("parameter")}
    assert names["part_layer_weight"] == ("part.layer.weight", (4, 3))
    assert names["scale"] == ("scale", (4,))
    assert names["bias"] == ("bias", (4,))
    assert not any("num_batches" in name for name in names)
    assert [one.name for one in signature.of("input")] == ["in0"]
    assert signature.flags == (("in1", 7),)
    assert signature.numbers == (("in2", 0.5),)
    assert found.flops == 2 * 2 * 3 * 4
    assert found.wide


def test_an_embedding_needs_the_bytes_of_the_rows_that_it_reads(tmp_path: Path) -> None:
    made = (
        "def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(1000, 16)\n\n"
        "    def forward"
    )
    text = task("self.table(x)", "[torch.randint(0, 1000, (2,))]").replace("def forward", made)
    found = loaded(tmp_path, text)
    assert found.touched_bytes <= 2 * (2 * 16 * 4)
    assert found.signatures[0].of("input")[0].varies


def test_a_batch_norm_needs_its_input_and_its_parameters(tmp_path: Path) -> None:
    made = "def __init__(self):\n        super().__init__()\n        self.norm = nn.BatchNorm1d(8)\n\n    def forward"
    found = loaded(tmp_path, task("self.norm(x)").replace("def forward", made))
    assert found.touched_bytes == 4 * (2 * 4 * 8 + 2 * 8)


def test_boundary_shapes_come_from_the_task_itself(tmp_path: Path) -> None:
    found = loaded(tmp_path, NORMED)
    widths = [one.tensors[0].shape[1] for one in found.signatures]
    assert widths == [70, 3, 36]
    assert len(loaded(tmp_path, SCALED).signatures) == 1


def test_a_model_that_does_not_run_in_float64_is_its_own_reference(tmp_path: Path) -> None:
    found = loaded(tmp_path, task("x @ torch.ones(8, 8, dtype=torch.float32)"))
    assert not found.wide
    assert "float64" in found.note


@pytest.mark.usefixtures("process_itself")
def test_the_process_of_a_task_ends_with_its_block(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(task())
    with LoadedTask(tmp_path / "one.py", threads=1, seed=3, limits=LIMITS) as found:
        pid = found.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
