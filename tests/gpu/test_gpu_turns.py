"""Other processes on a GPU are seen, and a faster kernel stays faster beside them."""

from __future__ import annotations

import pytest
from agentcompile.bench.busy.recipe import neighbours

from agentcompile.worker.gpu_timing import TURN_NS, Turns

pytestmark = pytest.mark.gpu


def test_others_on_the_gpu_are_seen_while_they_are_there() -> None:
    alone = [Turns().shared for _ in range(20)]
    with neighbours(5, "cuda:0"):
        beside = [Turns().turn_ns() for _ in range(20)]
    assert alone.count(True) <= 1
    assert beside.count(TURN_NS) >= 19
