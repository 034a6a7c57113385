"""What the evaluator may have under way at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.evaluation.work import Work, room_for

MEMORY = 16 << 30


def job(nbytes: int) -> Any:
    return SimpleNamespace(region=SimpleNamespace(cost=SimpleNamespace(bytes=nbytes)))


@pytest.mark.parametrize(
    ("running", "nbytes", "room"),
    [((), 64 << 30, True), ((1 << 20,), 1 << 20, True), ((600 << 20,), 600 << 20, False), ((1 << 20,), 2 << 30, False)],
    ids=["alone", "small", "together too large", "too large beside any"],
)
def test_regions_are_validated_beside_one_another_where_memory_allows(
    running: tuple[int, ...], nbytes: int, room: bool
) -> None:
    assert room_for(job(nbytes), [Work(job=job(one), binary=None) for one in running], MEMORY) is room
