"""Decode steps that serve different lengths of context, as one: every step runs where its plan was made for.

A step at position p reads p + 1 slots of the cache. The steps share one memory, so that a sequence goes on with the
next one where the range of the last ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentcompile.runtime.memory import Memory
from agentcompile.runtime.model import Decode, Loop
from agentcompile.runtime.native import Made
from agentcompile.runtime.sampling import Sampling


class Regimes:
    """`steps` are pairs of the last context that a step serves and the step, shortest first."""

    def __init__(self, steps: Sequence[tuple[int, Decode]], memory: Memory) -> None:
        self._steps, self._memory = tuple(steps), memory
        assert list(self._ends) == sorted(set(self._ends)), f"contexts end at {self._ends}"

    @property
    def context(self) -> int:
        """Slots of the cache."""
        return self._ends[-1]

    @property
    def clock(self) -> None:
        """Each step has its own."""

    def again(self) -> torch.Tensor:
        """Run one step on what memory's token and position hold; the logits, [vocab]."""
        at = serving(self._ends, int(self._memory.position[0]))
        return self._steps[-1 if at is None else at][1].again()

    def decoder(self, stop_ids: Sequence[int], context: int) -> Loop | None:
        """The loop over all of them; None when one of the steps needs Python."""
        ends = [min(end, context) for end in self._ends]
        loops = [step.decoder(stop_ids, end) for end, (_, step) in zip(ends, self._steps, strict=True)]
        whole = [loop for loop in loops if loop is not None]
        return _Loops(ends, whole, self._memory) if len(whole) == len(loops) else None

    def rewind(self, token: int, position: int) -> None:
        """Stand at `position` with `token` to be read next."""
        self._memory.stand(token, position)

    @property
    def _ends(self) -> tuple[int, ...]:
        return tuple(end for end, _ in self._steps)


class _Loops:
    """One loop after another; the end of a range is no end of the sequence."""

    def __init__(self, ends: Sequence[int], loops: Sequence[Loop], memory: Memory) -> None:
        self._ends, self._loops, self._memory = tuple(ends), tuple(loops), memory

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Whether all of them can choose so."""
        return all(loop.begin(sampling, first=first, logprobs=logprobs) for loop in self._loops)

    def steps(self, count: int) -> Made:
        """Make up to `count` tokens from where memory stands."""
        tokens: list[int] = []
        logprobs: list[float] = []
        while True:
            at = serving(self._ends, int(self._memory.position[0]))
            if at is None:
                return Made(tokens=tuple(tokens), reason="context", logprobs=tuple(logprobs))
            made = self._loops[at].steps(count - len(tokens))
            tokens += made.tokens
            logprobs += made.logprobs
            if made.reason != "context" or at == len(self._loops) - 1:
                return Made(tokens=tuple(tokens), reason=made.reason, logprobs=tuple(logprobs))
            if len(tokens) >= count:
                return Made(tokens=tuple(tokens), reason="limit", logprobs=tuple(logprobs))


def serving(ends: Sequence[int], position: int) -> int | None:
    """Which of the ranges that end at `ends` serves a step at `position`; None past the last."""
    return next((at for at, end in enumerate(ends) if position < end), None)
