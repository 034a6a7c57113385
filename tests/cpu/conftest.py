"""Made once for all tests of the flow: tiny checkpoints, one home with a warm store, one run, all-kernel locks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cpu import courses, flows
from tests.cpu.courses import Course

CONTEXT = 48
"""Tokens of the tiny models' caches."""
SAMPLE_CONTEXT = 96
BUDGET = 1


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that the flow's tests share, so that the machine is measured once and each kernel built once."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A preset's checkpoint with seeded random weights, by name and dtype."""
    from bench.models.presets import materialise

    root = tmp_path_factory.mktemp("checkpoints")

    def make(name: str, dtype: Any) -> Path:
        return materialise(name, root / f"{name}-{dtype}", dtype=dtype)

    return make


@pytest.fixture(scope="session")
def planted(
    tmp_path_factory: pytest.TempPathFactory, warm: Path, checkpoint: Callable[[str, str], Path]
) -> Callable[[str, str], Path]:
    """The lock of a preset (or `sample`) whose decode step is all kernels, by name and dtype."""
    root = tmp_path_factory.mktemp("locks")

    def make(name: str, dtype: str) -> Path:
        out = root / f"{name}-{dtype}.lock.toml"
        model = flows.SAMPLE if name == "sample" else checkpoint(name, dtype)
        return out if out.exists() else flows.write(warm, model, SAMPLE_CONTEXT if name == "sample" else CONTEXT, out)

    return make


@pytest.fixture(scope="session")
def course(tmp_path_factory: pytest.TempPathFactory, warm: Path, checkpoint: Callable[[str, str], Path]) -> Course:
    """The tiny Qwen3 in fp32, compiled by the command line with hardly a budget, and ended four times on the way."""
    settings = ("--context", CONTEXT, "--threads", flows.THREADS, "--budget", BUDGET)
    return courses.course(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path_factory.mktemp("course"), *settings)


@pytest.fixture(scope="session")
def compiled(course: Course) -> Course:
    """A run that reached its lock."""
    assert course.legs["done"].code == 0, course.legs["done"].err
    return course
