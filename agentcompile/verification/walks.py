"""What a whole model is fed before it may ship: seeded sequences that reach every plan that a lock holds.

Prompts of 1, 2, 17, 64 and 65 tokens, of the prefill chunk and one more and one less, of every length that a device
has a program for, and to the cache's end; each goes on with decode steps, and is also fed in part through the prefill
and in part token by token. Steps stand on both sides of every bound between ranges of contexts, and batches run side by
side.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentcompile.ir.whole import Group, Walk

LENGTHS = (1, 2, 17, 64, 65)
GOES_ON = 4
"""Decode steps after a prompt."""
TAIL = 8
"""Of a prompt longer than `WHOLE`, how many of its tokens are also fed one by one."""
WHOLE = 65
SIDE_BY_SIDE = 4
"""Steps of a batch."""


def walks(
    context: int,
    vocab: int,
    chunk: int,
    *,
    ends: Sequence[int],
    batches: Sequence[int] = (),
    programs: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Group, ...]:
    """Groups of walks over a cache of `context` slots, longest first, so that shorter ones find a cache that others
    have written. `chunk` is the longest of the prefill, `programs` the lengths that it has programs of their own for,
    `ends` where ranges of contexts end."""
    draw = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab) for _ in range(count))

    found: list[Walk] = [_walk(ids(min(WHOLE + 1, context)), 0)]
    # Where no prompt can be fed at once, its tokens are decode steps already: only the cache's end is far.
    around = {chunk - 1, chunk, chunk + 1, *programs} if chunk > 1 else set[int]()
    for length in sorted({*LENGTHS, *around} & set(range(1, context))):
        text = ids(min(length + GOES_ON, context))
        found.append(_walk(text, length))
        split = length // 2 if length <= WHOLE else length - TAIL
        # One of 64 and 65, and one around the chunk: what is fed one by one is the same of all.
        if 0 < split < length and length not in (WHOLE - 1, chunk - 1, chunk):
            found.append(_walk(text, split))
    for end in ends[:-1]:
        first = max(end - GOES_ON, 1)
        found.append(_walk(ids(min(end + GOES_ON, context)), first))
    last = ids(context)
    found.append(_walk(last, max(context - TAIL, 1)))
    if programs:  # each length that a device has no program for is run in another way there
        found.append(_walk(last, context))
    # In a context of a few slots, several of these are one.
    once = {(len(walk.ids), walk.prompt): walk for walk in reversed(found)}
    kept = [walk for walk in found if once[len(walk.ids), walk.prompt] is walk]
    groups: list[Group] = [(walk,) for walk in sorted(kept, key=lambda walk: -len(walk.ids))]
    for batch in batches:
        room = min(WHOLE, context - SIDE_BY_SIDE)
        prompts = [1 + 17 * seat % room for seat in range(batch)]
        groups.append(tuple(_walk(ids(prompt + SIDE_BY_SIDE), prompt) for prompt in prompts))
    return tuple(groups)


def lengths(groups: Sequence[Group]) -> tuple[int, ...]:
    """Of all prompts that go through the prefill as a whole, in tokens."""
    return tuple(sorted({walk.prompt for group in groups for walk in group if walk.prompt}))


def named(walk: Walk, position: int) -> str:
    """Which row of a walk, for people."""
    if not walk.prompt:
        return f"token by token, position {position}"
    if position < walk.prompt:
        return f"a prompt of {walk.prompt} tokens"
    return f"a prompt of {walk.prompt} tokens and {position + 1 - walk.prompt} decoded, position {position}"


def _walk(ids: tuple[int, ...], prompt: int) -> Walk:
    return Walk(ids=ids, prompt=prompt, scored=tuple(range(max(prompt - 1, 0), len(ids))))
