"""Every file of `bench/tasks` is a sound task in KernelBench's format, and their README's table is what they are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.task_files import (
    BEGIN,
    END,
    FILES,
    LEVELS,
    README,
    TASKS,
    Made,
    flops,
    made,
    module_of,
    moved_bytes,
    table,
)

MAY_IMPORT = {"torch", "math", "typing"}
MOST_FLOPS, MOST_BYTES = 1e9, 64e6
"""About 20 ms on two cores."""
RELATIVE_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.int64: 0.0}
"""Of the largest element, against double precision."""
SCALES = (1.0, 3.0, 0.01, -1.0)
"""Of inputs on which kernels are checked."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def task_of(path: Path, seed: int = 0) -> Made:
    return made(module_of(path), seed)


def floating(tensors: tuple[torch.Tensor, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    return [change(one) if one.is_floating_point() else one for one in tensors]


def differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one.double() - other.double()).abs().max() > 1e-3 * one.double().abs().max())


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or "").partition(".")[0])
    return found


def test_there_are_tasks_of_every_level_and_every_task_has_one() -> None:
    assert len(FILES) >= 24
    named = [name for names in LEVELS.values() for name in names]
    assert sorted(named) == [path.stem for path in FILES]
    assert all(len(names) >= 5 for names in LEVELS.values())


def test_the_folder_holds_tasks_and_their_readme_alone() -> None:
    found = {path for path in TASKS.iterdir() if path.name != "__pycache__"}
    assert found == {*FILES, README}


def test_the_table_of_the_readme_is_what_the_tasks_are() -> None:
    text = README.read_text(encoding="utf-8")
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert shown == table(), "run `python -m tests.unit.task_files`"


@each
def test_a_task_has_the_three_names_and_says_what_it_computes(path: Path) -> None:
    module = module_of(path)
    assert issubclass(module.Model, torch.nn.Module)
    assert isinstance(module.get_inputs(), list)
    assert isinstance(module.get_init_inputs(), list)
    what, blank, why = (module.__doc__ or "").split("\n", 2)
    assert what.endswith(".")
    assert not blank
    assert why.endswith(".\n")
    assert "|" not in what


@each
def test_a_task_imports_nothing_but_pytorch_and_seeds_nothing(path: Path) -> None:
    assert imports(path) <= MAY_IMPORT
    assert "seed" not in path.read_text(encoding="utf-8")


@each
def test_a_task_is_the_same_under_one_seed_and_another_under_another(path: Path) -> None:
    first, again, other = task_of(path, 1), task_of(path, 1), task_of(path, 2)
    assert all(torch.equal(a, b) for a, b in zip(first.inputs, again.inputs, strict=True))
    out = first.output()
    assert torch.equal(out, again.output())
    assert torch.equal(out, first.output()), "a second call gives something else"
    assert differs(out, other.output())


@each
def test_a_task_is_finite_at_every_scale_and_leaves_its_inputs_as_they_were(path: Path) -> None:
    task = task_of(path)
    state = {name: one.clone() for name, one in task.model.state_dict().items()}
    for scale in SCALES:
        inputs = floating(task.inputs, lambda one, scale=scale: one * scale)
        before = [one.clone() for one in inputs]
        out = task.output(*inputs)
        assert out.isfinite().all(), scale
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True)), scale
        assert out.data_ptr() not in {one.data_ptr() for one in inputs}
    assert all(torch.equal(one, state[name]) for name, one in task.model.state_dict().items())


@each
def test_a_task_stays_within_limits(path: Path) -> None:
    task = task_of(path)
    assert flops(task) <= MOST_FLOPS
    assert 1e5 <= moved_bytes(task) <= MOST_BYTES
    assert task.output().is_contiguous()


@each
def test_a_task_in_double_precision_is_its_reference(path: Path) -> None:
    task = task_of(path)
    out = task.output()
    exact = Made(task.model.double(), tuple(floating(task.inputs, torch.Tensor.double))).output()
    assert exact.dtype is (torch.float64 if out.is_floating_point() else out.dtype)
    assert exact.shape == out.shape
    most = RELATIVE_ERROR[out.dtype] * exact.double().abs().max()
    assert (out.double() - exact).abs().max() <= most


@each
def test_every_input_parameter_and_buffer_of_a_task_changes_its_output(path: Path) -> None:
    """What changes nothing, a kernel may leave out."""
    task, other = task_of(path, 1), task_of(path, 2)
    out = task.output()
    for at, one in enumerate(other.inputs):
        assert differs(out, task.output(*task.inputs[:at], one, *task.inputs[at + 1 :])), f"input {at}"
    for name, one in task.model.state_dict().items():
        was, drawn = one.clone(), other.model.state_dict()[name]
        # A table or a mask is the same under every seed: there it is turned over.
        one.copy_(drawn if not torch.equal(drawn, was) else was.flip(0))
        assert differs(out, task.output()), name
        one.copy_(was)
    assert torch.equal(out, task.output())


@each
def test_no_constant_is_near_the_output_of_a_task(path: Path) -> None:
    """Where outputs hardly vary, a tolerance may let a constant pass."""
    out = task_of(path).output().double()
    assert out.std() >= 1e-2 * out.abs().max()


@each
def test_a_task_makes_no_tensor_on_a_device_of_its_own_choice(path: Path) -> None:
    task = task_of(path)
    moved = Made(task.model.to("meta"), tuple(one.to("meta") for one in task.inputs)).output()
    assert moved.device.type == "meta"
