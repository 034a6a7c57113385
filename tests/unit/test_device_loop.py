"""The loop of launches on a device, here with a kernel and tensors on the host: what it finds is what waiting finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.validate.endurance import Loop, PlainLoop, Turn
from agentcompile.worker.gpu_looping import device_looper

SETS = 3
Kernel = Callable[[Mapping[str, Tensor]], None]


class Doubling:
    """Writes 2x to y, and x to a slot of a cache; from one launch on, or at one alone, something else."""

    def __init__(self, wrong: Callable[[int], bool], spoilt: str) -> None:
        self.launches, self._wrong, self._spoilt = 0, wrong, spoilt

    def __call__(self, buffers: Mapping[str, Tensor]) -> None:
        self.launches += 1
        buffers["y"].copy_(2 * buffers["x"])
        buffers["cache"][:, 1:2].copy_(buffers["x"].view(2, 1, 4))
        if self._wrong(self.launches):
            buffers[self._spoilt].view(torch.int16)[..., 1] ^= 1


def turns_of(buffers: Mapping[str, Tensor]) -> list[Turn]:
    sets = [torch.arange(8).view(2, 4).bfloat16() + 8 * at for at in range(SETS)]
    slot, buffers["x"][:] = buffers["cache"][:, 1:2], sets[0]
    turns = []
    for at, x in enumerate(sets):
        equal = ((buffers["y"], 2 * x), (slot, x.view(2, 1, 4)))
        copied = ((buffers["y"], torch.zeros(2, 4).bfloat16()), (buffers["x"], sets[(at + 1) % SETS]))
        turns.append(Turn(equal=equal, copied=copied))
    return turns


def found(make: Callable[[Kernel, Mapping[str, Tensor], list[Turn]], Loop], kernel: Kernel) -> tuple[int, int]:
    buffers = {name: torch.zeros(2, 4).bfloat16() for name in ("x", "y")}
    buffers["cache"] = torch.full((2, 3, 4), torch.nan).bfloat16()
    loop = make(kernel, buffers, turns_of(buffers))
    assert loop.kept() == ""
    for rounds in (1, 4, 20):
        loop.run(rounds)
    return loop.wrong()


def on_a_device(kernel: Kernel, buffers: Mapping[str, Tensor], turns: list[Turn]) -> Loop:
    waits = []
    made = device_looper(lambda given: lambda: kernel(given), lambda: waits.append(1))(buffers, turns)
    made.run(0)
    assert waits == [1]
    return made


@pytest.mark.parametrize("spoilt", ["y", "cache"])
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda n: False, (0, 0)),
        (lambda n: n == 1, (1, 1)),
        (lambda n: n == 40, (1, 40)),
        (lambda n: n >= 70, (6, 70)),
        (lambda n: n in (3, 75), (2, 3)),
    ],
)
def test_it_counts_the_wrong_launches_as_a_loop_that_waits_does(
    spoilt: str, wrong: Callable[[int], bool], expected: tuple[int, int]
) -> None:
    assert found(on_a_device, Doubling(wrong, spoilt)) == expected
    plain = found(PlainLoop, Doubling(wrong, spoilt))
    assert plain == expected
