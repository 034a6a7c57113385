"""Where graphs of timed launches start in a rotation: few starts, and nothing read again too soon."""

from __future__ import annotations

import pytest

from agentcompile.worker.gpu_timing import start


@pytest.mark.parametrize("count", [1, 2, 7, 500, 512])
@pytest.mark.parametrize("batch", [1, 2, 3, 128, 255, 256, 257, 300, 499, 500, 512, 1600])
def test_starts_are_few_and_half_of_the_rotation_lies_between_two_reads(count: int, batch: int) -> None:
    starts: set[int] = set()
    read: dict[int, int] = {}
    after = launches = 0
    for _ in range(4 * count):
        first = start(after, batch, count)
        starts.add(first)
        for slot in ((first + i) % count for i in range(batch)):
            if slot in read:
                assert launches - read[slot] >= count / 2
            read[slot], launches = launches, launches + 1
        after = first + batch
    assert len(starts) <= max(count // batch, 2)


def test_intervals_of_other_lengths_between_add_no_starts() -> None:
    starts: dict[int, set[int]] = {300: set(), 64: set(), 128: set()}
    after = 0
    for batch in (1, 2, 4, 64, 128, 64, 300, 64, 128, 128, 300, 64) * 20:
        first = start(after, batch, 1000)
        starts.setdefault(batch, set()).add(first)
        after = first + batch
    assert all(len(found) <= 1000 // batch for batch, found in starts.items())
