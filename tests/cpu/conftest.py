"""Made once for all tests of the flow: tiny checkpoints, one home with a warm store, locks whose steps are all kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cpu import flows

CONTEXT = 48
"""Tokens of the tiny models' caches."""
SAMPLE_CONTEXT = 96
BUDGET = 6


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What one run of `agentcompile compile` left."""

    lock: Path
    run: Path
    model: Path
    home: Path
    ended: flows.Ended


def _compiled(home: Path, model: Path, context: int, root: Path) -> Compiled:
    lock, run = root / "agentcompile.lock.toml", root / "run"
    ended = flows.cli(
        home, "compile", model, "--context", context, "--threads", flows.THREADS, "--budget", BUDGET,
        "--out", lock, "--run-dir", run, "--events", "jsonl",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    return Compiled(lock=lock, run=run, model=model, home=home, ended=ended)


@pytest.fixture(scope="session")
def compiled(
    tmp_path_factory: pytest.TempPathFactory, warm: Path, checkpoint: Callable[[str, str], Path]
) -> Compiled:
    """The tiny Qwen3 in fp32, compiled by the command line with a budget of a few candidates."""
    return _compiled(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT, tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="session")
def compiled_sample(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Compiled:
    """The sample checkpoint, compiled by the command line with a budget of a few candidates."""
    return _compiled(warm, flows.SAMPLE, SAMPLE_CONTEXT, tmp_path_factory.mktemp("sample"))
