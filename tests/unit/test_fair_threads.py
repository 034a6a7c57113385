"""PyTorch's threads while other processes want the same cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentcompile.runtime import openmp
from agentcompile.system import probe


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def proc(root: Path, ready: str, states: str) -> Path:
    """A process whose tasks have those states, on a machine with so many tasks ready."""
    for at, state in enumerate(states):
        task = root / "proc" / "self" / "task" / str(at)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{at} (a name) R) {state} 1 2 3\n")
    (root / "proc" / "loadavg").write_text(f"0.00 0.01 0.05 {ready}/80 123\n")
    return root


def cores(own: int, all: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(own)))
    monkeypatch.setattr(os, "cpu_count", lambda: all)


@pytest.mark.parametrize(
    ("ready", "states", "others"), [("1", "R", 0), ("3", "RSS", 2), ("3", "RRS", 1), ("2", "RRR", 0), ("0", "R", 0)]
)
def test_what_is_ready_and_not_ours_wants_our_cores(
    ready: str, states: str, others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(2, 2, monkeypatch)
    assert probe.others_running(root=proc(tmp_path, ready, states)) == others


def test_a_thread_of_ours_that_just_went_to_sleep_is_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter((2, 1))
    monkeypatch.setattr(probe, "_ready", lambda load: next(looks))
    assert probe.others_running(root=proc(tmp_path, "2", "RS")) == 0


def test_a_machine_that_does_not_say_has_no_others(tmp_path: Path) -> None:
    assert probe.others_running(root=tmp_path) == 0
    proc(tmp_path, "2", "R")
    (tmp_path / "proc" / "loadavg").write_text("no numbers")
    assert probe.others_running(root=tmp_path) == 0


def test_of_cores_that_are_some_of_all_others_want_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores(2, 16, monkeypatch)
    assert probe.others_running(root=proc(tmp_path, "17", "R")) == 2


@pytest.mark.parametrize(("others", "threads"), [(0, 2), (1, 2), (2, 1), (3, 1), (9, 1)])
def test_threads_are_fewer_where_cores_are_wanted_and_as_before_afterwards(
    others: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(3, 3, monkeypatch)
    monkeypatch.setattr(openmp, "others_running", lambda: others)
    with contextlib.suppress(KeyError), openmp.fair_threads():
        assert torch.get_num_threads() == threads
        raise KeyError
    assert torch.get_num_threads() == 2


def test_one_thread_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(openmp, "others_running", lambda: pytest.fail("asked"))
    with openmp.fair_threads():
        assert torch.get_num_threads() == 1
