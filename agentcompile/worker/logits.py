"""Comparison of whole steps by their logits, before, while and after they are timed.

The reference is the arm that runs in PyTorch alone, or, where there is none, the first. The bound is generous, since
arms round differently and a model accumulates that over its layers; a step that skips work, or caches it, is far
outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.trial import Check
from agentcompile.runtime.memory import Memory
from agentcompile.worker.protocol import WrongOutput

CHECK = "step-logits"
ALLOWED = 0.25
"""The largest root mean square of the difference, over that of the reference around its mean."""
DURING = 2
"""How many samples of every arm are compared while it is timed."""
SLOW_S = 0.5
"""The seconds of PyTorch's own step from which it does not run for comparisons alone."""
LIVED = 8
"""How many slots of the caches the reference fills itself; they are repeated to fill the others."""
Run = Callable[[], Tensor]
"""A function that runs one step of an arm on the tokens that are set, and returns its logits."""


def live(memory: Memory, programs: Sequence[Program], runs: Sequence[Run], *, vocab: int, seed: int) -> None:
    """Fill the KV caches with what the reference writes there, for tokens drawn over the vocabulary.

    A trained model's queries fit its own keys: over random ones a softmax picks a slot nearly at random, and arms that
    round differently then have nothing in common. Nothing is done for prefill, as a chunk reads no slot that it does
    not write.
    """
    program, run = programs[reference_of(programs)], runs[reference_of(programs)]
    if program.phase != "decode":
        return
    generator = torch.Generator(memory.tokens.device).manual_seed(seed)
    fed_tokens, slots = memory.tokens[: program.batch], min([LIVED, *(state.shape[2] for state in memory.states())])
    for slot in range(slots):
        memory.positions.fill_(slot)
        fed_tokens.copy_(
            torch.randint(vocab, fed_tokens.shape, generator=generator, device=fed_tokens.device, dtype=torch.int64)
        )
        run()
    memory.repeat(slots)


def reference_of(programs: Sequence[Program]) -> int:
    """Return the index of the arm that the others are compared with."""
    return next((i for i, one in enumerate(programs) if not _has_kernels(one)), 0)


def _has_kernels(program: Program) -> bool:
    return any(isinstance(call, NativeCall) for call in program.calls)


class Probe:
    """Tokens that no step has seen, others for every sample, and the reference's logits; some samples are compared."""

    def __init__(
        self, tokens: Tensor, programs: Sequence[Program], runs: Sequence[Run], *, vocab: int, seed: int
    ) -> None:
        """Draw the tokens and run the reference on them; `tokens` is what a step reads, `runs` are the arms.

        PyTorch's own step of `SLOW_S` runs on the first of them: the others get its logits when it is timed on them.
        """
        self._tokens, self._runs, self._reference = tokens, runs, reference_of(programs)
        self._plain = not _has_kernels(programs[self._reference])
        self._generator = torch.Generator(tokens.device).manual_seed(seed)
        self._vocab = vocab
        self._rows = [self.fresh() for _ in range(2 + DURING * (len(runs) - self._plain))]
        begin = time.perf_counter()
        first = self._made(self._reference, self._rows[0]).clone()
        self._first_s = time.perf_counter() - begin
        self._expected: list[Tensor | None] = [first, *[None] * (len(self._rows) - 1)]
        self._slow = self._plain and self._first_s >= SLOW_S
        if not self._slow:
            self._expected[1:] = [self._made(self._reference, row).clone() for row in self._rows[1:]]
        self._taken = [0] * len(runs)

    def fresh(self) -> Tensor:
        """Draw tokens for one step over the whole vocabulary."""
        return torch.randint(
            self._vocab, self._tokens.shape, generator=self._generator, device=self._tokens.device, dtype=torch.int64
        )

    def check(self, when: Literal["before", "after"]) -> None:
        """Compare every arm before or after it is timed.

        PyTorch's own steps are compared with what they were before: not at first, and not where each takes long.
        """
        at = 0 if when == "before" else 1
        if self._expected[at] is None:
            self._expected[at] = self._made(self._reference, self._rows[at]).clone()
        for arm in range(len(self._runs)):
            if self._plain and arm == self._reference and (at == 0 or self._slow):
                continue
            self.compare(arm, at, self._made(arm, self._rows[at]), f"{when} it was timed")

    def take(self, arm: int) -> int:
        """Return the row of tokens for the last step of this arm's sample, if it is to be compared; mostly -1.

        PyTorch's own steps are none of them: on a busy machine they are what takes longest. It gets rows whose logits
        are not known yet.
        """
        drawn = float(torch.rand((), generator=self._generator, device=self._tokens.device))
        if self._plain and arm == self._reference:
            return next((at for at, known in enumerate(self._expected) if known is None), -1)
        at = 2 + DURING * (arm - (self._plain and arm > self._reference)) + self._taken[arm]
        if self._taken[arm] == DURING or drawn > 0.25 or self._expected[at] is None:
            return -1
        self._taken[arm] += 1
        return at

    def known_ns(self, arm: int) -> int:
        """Return about how long a step of an arm takes, in ns; 0 where that is not known."""
        return round(self._first_s * 1e9) if arm == self._reference else 0

    def row(self, at: int) -> Tensor:
        """Return the tokens of row `at`."""
        return self._rows[at]

    def compare(self, arm: int, at: int, logits: Tensor, when: str) -> None:
        """Compare an arm's logits on row `at` with the reference's; where these are not known, they become it.

        Raises:
            WrongOutput: they are further apart than `ALLOWED`, or not finite where the reference's are.
        """
        expected = self._expected[at]
        if expected is None:
            self._expected[at] = logits.clone()
            return
        share = apart(logits, expected)
        if not share <= ALLOWED:
            text = f"{when}: logits are {share:.3g} of their size away from the reference's"
            check = Check(name=CHECK, ok=False, measured=share, allowed=ALLOWED, detail=text)
            raise WrongOutput(arm, check)

    def _made(self, arm: int, row: Tensor) -> Tensor:
        self._tokens.copy_(row)
        return self._runs[arm]()


def apart(logits: Tensor, expected: Tensor) -> float:
    """Return how far logits, of any equal shapes, are from others, as a share of the size of these around their mean.

    It is 1e9 where they are not finite and the others are.
    """
    r, y = expected.double(), logits.double()
    size = float((r - r.mean()).square().mean().sqrt())
    away = float((y - r).square().mean().sqrt())
    finite = bool(y.isfinite().all()) or not bool(r.isfinite().all())
    return min(away / max(size, 1e-30), 1e9) if finite else 1e9
