"""Made once for all tests of the flow: tiny checkpoints, one home with a warm store, one run, all-kernel locks."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cpu import courses, flows
from tests.cpu.courses import Course
from tests.models import captures

CONTEXT = 48
"""Tokens of the tiny models' caches."""
SAMPLE_CONTEXT = 96
BUDGET = 1
SECONDS = 1
"""Of search and tuning: what must be done at any time is done, and what others disturbed is not repeated for long."""


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Whoever makes something in `folder` makes it alone: the others wait, and find it."""
    folder.mkdir(exist_ok=True)
    with (folder / "held").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def _captures_remembered() -> Iterator[None]:
    """What one test captured, another reads."""
    with captures.remembered():
        yield


@pytest.fixture
def captured_anew() -> Iterator[None]:
    """Nothing that was captured before is taken for what capture makes."""
    with captures.anew():
        yield


@pytest.fixture(scope="session")
def warm(common: Path) -> Path:
    """A home that the flow's tests share, so that each kernel is built once, and that knows the machine."""
    path = common / "warm"
    with one_at_a_time(path):
        return flows.measured(path)


@pytest.fixture(scope="session")
def checkpoint(common: Path) -> Callable[[str, str], Path]:
    """A preset's checkpoint with seeded random weights, by name and dtype."""
    from bench.models.presets import materialise

    root = common / "checkpoints"

    def make(name: str, dtype: Any) -> Path:
        with one_at_a_time(root):
            return materialise(name, root / f"{name}-{dtype}", dtype=dtype)

    return make


@pytest.fixture(scope="session")
def planted(common: Path, warm: Path, checkpoint: Callable[[str, str], Path]) -> Callable[[str, str], Path]:
    """The lock of a preset (or `sample`) whose decode step is all kernels, by name and dtype."""
    root = common / "locks"

    def make(name: str, dtype: str) -> Path:
        out = root / f"{name}-{dtype}.lock.toml"
        model = flows.SAMPLE if name == "sample" else checkpoint(name, dtype)
        with one_at_a_time(root):
            context = SAMPLE_CONTEXT if name == "sample" else CONTEXT
            return out if out.exists() else flows.write(warm, model, context, out)

    return make


@pytest.fixture(scope="session")
def course(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str, str], Path]) -> Course:
    """The tiny Qwen3 in fp32, compiled by the command line with hardly a budget, and ended on the way again and again.
    Everything of it lies in one folder, its home too."""
    settings = ("--context", CONTEXT, "--threads", flows.THREADS, "--budget", BUDGET, "--seconds", SECONDS)
    model, root = checkpoint("tiny-qwen3", "fp32"), tmp_path_factory.mktemp("course")
    flows.captured(flows.measured(root / "home"), model, CONTEXT)  # every leg goes on to trials, which are the point
    return courses.course(model, root, *settings)


@pytest.fixture(scope="session")
def compiled(course: Course) -> Course:
    """A run that reached its lock."""
    assert course.legs["done"].code == 0, course.legs["done"].err
    return course
