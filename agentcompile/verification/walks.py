"""The seeded token sequences that a whole model is run on before it may ship; they reach every plan of a lockfile.

Prompts have 1, 2, 17, 64 and 65 tokens, the prefill chunk's length and one more and one less, every length that a
device has a program for, and the length of the cache; where the ends of prompts run through decode steps, also the
lengths around that. Each goes on with decode steps, and is also fed partly through the prefill and partly token by
token. Steps lie on both sides of every bound between ranges of contexts, and batches run side by side.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentcompile.ir.whole import Group, Walk

LENGTHS = (1, 2, 17, 64, 65)
GOES_ON = 4
"""Decode steps after a prompt."""
TAIL = 8
"""Last tokens that are also fed one by one, of a prompt longer than `WHOLE`."""
WHOLE = 65
SIDE_BY_SIDE = 4
"""Decode steps of a batch."""


def walks(
    context: int,
    vocab: int,
    chunk: int,
    *,
    ends: Sequence[int],
    batches: Sequence[int] = (),
    programs: Sequence[int] = (),
    steps_up_to: int = 0,
    seed: int = 0,
) -> tuple[Group, ...]:
    """Return groups of walks over a cache of `context` slots, longest first, and then the batches.

    Shorter walks then find a cache that others have written. `chunk` is the longest prefill chunk, `programs` are the
    prompt lengths with programs of their own, and `ends` is where ranges of contexts end. Of a prompt, `steps_up_to`
    tokens run through decode steps where no more of it are left: prompts have as many, one more, and a chunk and both.
    """
    draw = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab) for _ in range(count))

    found: list[Walk] = [_walk(ids(min(WHOLE + 1, context)), 0)]
    # With a chunk of one token, prompts are decode steps already, and no chunk length needs its own walks.
    around = {chunk - 1, chunk, chunk + 1, *programs} if chunk > 1 else set[int]()
    if steps_up_to and chunk > 1:
        around |= {rest + left for rest in (0, chunk) for left in (steps_up_to, steps_up_to + 1)}
    for length in sorted({*LENGTHS, *around} & set(range(1, context))):
        text = ids(min(length + GOES_ON, context))
        found.append(_walk(text, length))
        split = length // 2 if length <= WHOLE else length - TAIL
        # Split one of 64 and 65, and one length around the chunk: the token-by-token part is the same for all.
        if 0 < split < length and length not in (WHOLE - 1, chunk - 1, chunk):
            found.append(_walk(text, split))
    for end in ends[:-1]:
        first = max(end - GOES_ON, 1)
        found.append(_walk(ids(min(end + GOES_ON, context)), first))
    last = ids(context)
    found.append(_walk(last, max(context - TAIL, 1)))
    if programs:  # where lengths have programs of their own, the full context may run in another way
        found.append(_walk(last, context))
    # In a small context, several of these are equal.
    once = {(len(walk.ids), walk.prompt): walk for walk in reversed(found)}
    kept = [walk for walk in found if once[len(walk.ids), walk.prompt] is walk]
    groups: list[Group] = [(walk,) for walk in sorted(kept, key=lambda walk: -len(walk.ids))]
    for batch in batches:
        steps = min(SIDE_BY_SIDE, context - 1)
        room = min(WHOLE, context - steps)
        prompts = [1 + 17 * row % room for row in range(batch)]
        groups.append(tuple(_walk(ids(prompt + steps), prompt) for prompt in prompts))
    return tuple(groups)


def lengths(groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the distinct lengths in tokens of all prompts that go through the prefill."""
    return tuple(sorted({walk.prompt for group in groups for walk in group if walk.prompt}))


def named(walk: Walk, position: int) -> str:
    """Describe one position of a walk for people."""
    if not walk.prompt:
        return f"token by token, position {position}"
    if position < walk.prompt:
        return f"a prompt of {walk.prompt} tokens"
    return f"a prompt of {walk.prompt} tokens and {position + 1 - walk.prompt} decoded, position {position}"


def _walk(ids: tuple[int, ...], prompt: int) -> Walk:
    return Walk(ids=ids, prompt=prompt, scored=tuple(range(max(prompt - 1, 0), len(ids))))
