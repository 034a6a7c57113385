"""An arm's side of the pipe: requests come in and replies go out, each as a line of JSON.

It needs only the standard library, because an arm may run in another interpreter than ours. Whatever a library prints
goes to stderr; only replies go to the descriptor that was stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

_SET_PARENT_DEATH_SIGNAL = 1
"""The value of Linux's `PR_SET_PDEATHSIG`."""


@dataclass(frozen=True)
class Generation:
    """One generation: `first_s` is the time until the first new token was known, `rest_s` from then to the last."""

    tokens: list[int]
    first_s: float
    rest_s: float


class Engine(Protocol):
    """The methods of every loaded arm."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Versions and settings for the result file, scalars by name."""

    def generate(self, ids: Sequence[int], new: int, **drawn: Any) -> Generation:
        """Continue `ids` by exactly `new` tokens: greedily, or sampled as `drawn` says (temperature, top_p, seed)."""

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of `generate`, untimed, and for each the `count` tokens with the largest logits."""


Known = dict[tuple[tuple[int, ...], int], list[int]]
"""By prompt and count, the first greedy tokens of a process, with which later requests' tokens are compared."""


def serve(load: Callable[[Mapping[str, Any]], Engine]) -> None:
    """Load the arm that the first request describes, then answer requests until the pipe closes."""
    _die_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(value: Mapping[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    begin = time.perf_counter()
    described = json.loads(sys.stdin.readline())
    engine, slower = load(described), float(described.get("slower", 0.0))
    reply({"load_s": time.perf_counter() - begin, "facts": dict(engine.facts)})
    known: Known = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "look":
            look = getattr(engine, "look", None)  # makes a `looks.Looked` of its own step, as plain values
            reply(look(request["ids"], request["new"]) if look else {"reason": "it cannot say where its time goes"})
        elif request["do"] == "tops":
            tokens, tops = engine.tops(request["ids"], request["new"], request["count"])
            reply({"tokens": tokens, "tops": tops})
        else:
            reply(_timed(engine, request, slower, known))


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent: if it is stopped then, it would live on and keep its memory."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _timed(engine: Engine, request: Mapping[str, Any], slower: float, known: Known) -> dict[str, Any]:
    """Generate repeatedly until `least_s` has passed, after a short warm-up, as caches held other arms' data before.

    Raises:
        RuntimeError: the arm made another number of tokens than asked for.
    """
    ids, new, drawn = request["ids"], request["new"], request.get("sampling") or {}

    def make(ids: Sequence[int], new: int) -> Generation:
        if request.get("whole"):
            begin = time.perf_counter()
            # The tokens of `generate`, made without reading any clock; arms whose own overhead is measured have it.
            tokens: list[int] = cast(Any, engine).whole(ids, new, **drawn)
            return Generation(tokens, 0.0, time.perf_counter() - begin)
        one = engine.generate(ids, new, **drawn)
        if len(one.tokens) != new:  # else the time per token would be wrong
            raise RuntimeError(f"made {len(one.tokens)} tokens where {new} were asked for")
        return _slowed(one, slower) if slower else one

    make(ids, min(new, request["warm"]))
    done: list[Generation] = []
    begin = time.perf_counter()
    while not done or time.perf_counter() - begin < request["least_s"]:
        done.append(make(ids, new))
    first = done[0].tokens if drawn else known.setdefault((tuple(ids), new), done[0].tokens)
    return {
        "tokens": done[-1].tokens,
        # Sampled tokens may differ: not every arm seeds its generator for each generation.
        "same": bool(drawn) or all(one.tokens == first for one in done),
        "first_s": [one.first_s for one in done],
        "rest_s": [one.rest_s for one in done],
        "peak_memory_bytes": _peak_memory_bytes(),
    }


def _slowed(one: Generation, share: float) -> Generation:
    """Wait for `share` of each of the two times and add the wait to it: a slow-down of known size."""
    return Generation(one.tokens, *(took + _waited(share * took) for took in (one.first_s, one.rest_s)))


def _waited(seconds: float) -> float:
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        pass
    return passed


def _peak_memory_bytes() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
