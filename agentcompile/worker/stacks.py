"""Stacks of our own for a candidate's ranks, where what a launch leaves can be seen.

A launch that keeps nothing leaves on its stack what its inputs make it write, so launches on the same inputs leave the
same bytes every time. One that counts, or remembers what it did, leaves others, however much of the stack it uses and
however late it acts on what is there. Nothing else runs on these stacks, and every launch finds the same registers.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence

from agentcompile.runtime.native import NativeProgram
from agentcompile.worker.probes import Probes

_RANKS = 4
"""The most stacks: the last is shared by the ranks that are left."""
_USUAL_BYTES, _MOST_BYTES = 8 << 20, 64 << 20
"""The size of a stack where the system sets none, and the largest that is made."""
_ROUNDS = 8
"""Rounds until the launches must leave what they left a round before. Garbage that is copied takes a few to settle."""


def left_on_stacks(probes: Probes, program: NativeProgram, own: Sequence[bool]) -> str:
    """Return what is wrong with what a program's launches leave on their stacks; empty for launches that keep nothing.

    `own` says which calls are the candidate's. A round runs them all, on inputs that are the same in every round.
    Before the second one, what the first touched is filled with NaN in every type, for results that depend on it.

    Raises:
        MemoryError: there is none for the stacks.
    """
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    size = min(limit, _MOST_BYTES) if limit > 0 else _USUAL_BYTES  # a limit of -1 is none
    if probes.on_stacks(program, own, min(probes.executor.threads, _RANKS), size, _ROUNDS):
        return ""
    return f"the same inputs left other bytes on the stack in each of {_ROUNDS} rounds, as a launch that counts does"
