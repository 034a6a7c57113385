"""Decode steps for different ranges of context length, used as one: each position runs the step made for its range.

A step at position p reads p + 1 slots of the cache. The steps share one memory, so that a sequence goes on with the
next step where the range of the last one ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentcompile.runtime.generator import Decode, DecodeLoop
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import DecodedTokens
from agentcompile.runtime.sampling import Sampling


class Regimes:
    """Decode steps used as one: pairs of the last context that a step serves and the step, shortest first."""

    def __init__(self, steps: Sequence[tuple[int, Decode]], memory: Memory) -> None:
        self._steps, self._memory = tuple(steps), memory
        assert list(self._ends) == sorted(set(self._ends)), f"contexts end at {self._ends}"

    @property
    def context(self) -> int:
        """The number of cache slots."""
        return self._ends[-1]

    @property
    def clock(self) -> None:
        """None: each step has its own clock."""

    def again(self) -> torch.Tensor:
        """Run one step on memory's token at the position it was last set to; return the logits, [vocab]."""
        at = serving(self._ends, self._memory.stood)
        return self._steps[-1 if at is None else at][1].again()

    def decoder(self, stop_ids: Sequence[int], context: int) -> DecodeLoop | None:
        """Return the loop over all steps; None when one of them needs Python."""
        ends = [min(end, context) for end in self._ends]
        loops = [step.decoder(stop_ids, end) for end, (_, step) in zip(ends, self._steps, strict=True)]
        whole = [loop for loop in loops if loop is not None]
        return _Loops(ends, whole) if len(whole) == len(loops) else None

    def rewind(self, token: int, position: int) -> None:
        """Set the position to `position` with `token` to be read next."""
        self._memory.stand(token, position)

    @property
    def _ends(self) -> tuple[int, ...]:
        return tuple(end for end, _ in self._steps)


class _Loops:
    """Decode loops run one after another; the end of one's range does not end the sequence."""

    def __init__(self, ends: Sequence[int], loops: Sequence[DecodeLoop]) -> None:
        self._ends, self._loops = tuple(ends), tuple(loops)

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        return all(loop.begin(sampling, first=first, logprobs=logprobs) for loop in self._loops)

    def draw(self, logits: torch.Tensor, at: int, *, more: bool) -> DecodedTokens | None:
        serves = serving(self._ends, at)
        return None if serves is None else self._loops[serves].draw(logits, at, more=more)

    def steps(self, count: int, *, at: int, more: bool) -> DecodedTokens:
        tokens: list[int] = []
        logprobs: list[float] = []
        while True:
            serves = serving(self._ends, at + len(tokens))
            if serves is None:
                return DecodedTokens(tokens=tuple(tokens), reason="context", logprobs=tuple(logprobs))
            made = self._loops[serves].steps(count - len(tokens), at=at + len(tokens), more=more)
            tokens += made.tokens
            logprobs += made.logprobs
            if made.reason != "context" or serves == len(self._loops) - 1:
                return DecodedTokens(tokens=tuple(tokens), reason=made.reason, logprobs=tuple(logprobs))
            if len(tokens) >= count:
                return DecodedTokens(tokens=tuple(tokens), reason="limit", logprobs=tuple(logprobs))


def serving(ends: Sequence[int], position: int) -> int | None:
    """Return the index of the range, among those that end at `ends`, that serves `position`; None past the last."""
    return next((at for at, end in enumerate(ends) if position < end), None)
