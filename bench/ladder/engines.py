"""The engines of the rungs, each run in a process of its own.

It runs as `python -m agentcompile.bench.ladder.engines`; the first request names the rung, the checkpoint, the threads,
and the lock where the rung has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..harness.channel import Engine, serve
from ..harness.engines import ENGINES, Ours
from .decoder import LEAST_S, ByHand, cuda_graph


class Locked(Ours):
    """A lock, loaded as a user loads it, that can say where its decode step spends its time."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__(request)
        self._request = request

    def look(self, ids: Sequence[int], new: int) -> dict[str, Any]:
        """Return a `looks.Looked` as plain values.

        On a CPU the times come from generations in which every call of the step is timed. On a GPU they come from steps
        without each region in turn, and the time per token from a separate generation.
        """
        from agentcompile.options import resolve
        from agentcompile.replay.open import open_lock

        from . import insides

        request = self._request
        target = request.get("device", "cpu")
        # `open_lock` uses the lock's own number of threads, whatever this machine's default is.
        opened = open_lock(Path(request["lock"]), resolve({"model": request["model"], "target": target}).options)
        middle = len(ids) + new // 2
        if (clock := self._model.clock) is None:
            parts, kept = insides.left_out(opened, middle)
            token_s = self.generate(ids, new).rest_s / (new - 1)
            how = "what the step takes less without the region's launches"
            how += f"; {', '.join(sorted(set(kept)))} cannot be left out" if kept else ""
            return {"token_ns": 1e9 * token_s, "parts": parts, "how": how}
        self.generate(ids, new)
        rests: list[float] = []
        clock.start()
        while sum(rests) < LEAST_S:
            rests.append(self.generate(ids, new).rest_s)
        spent = clock.stop()
        return {
            "token_ns": 1e9 * sum(rests) / len(rests) / (new - 1),
            "parts": insides.clocked(opened, spent, clock.steps, middle),
            "how": "a look at the clock after each call of the step",
        }


def _by_hand(*, merged: bool, captured: bool = False) -> Callable[[Mapping[str, Any]], Engine]:
    def load(request: Mapping[str, Any]) -> Engine:
        return ByHand(request, merged=merged, capture=cuda_graph if captured else None)

    return load


def _no_python(request: Mapping[str, Any]) -> Engine:
    """Return the engine of the rung: on a CPU a lock without kernels, on a GPU the step in a CUDA graph."""
    return Locked(request) if request["device"] == "cpu" else _by_hand(merged=True, captured=True)(request)


LOADERS: Mapping[str, Callable[[Mapping[str, Any]], Engine]] = {
    "fp32": ENGINES["fp32"],
    "eager": ENGINES["hf-eager"],
    "static-cache": _by_hand(merged=False),
    "merged-projections": _by_hand(merged=True),
    "no-python": _no_python,
    "first-templates": Locked,
    "searched-templates": Locked,
    "agentcompile": Locked,
}
"""The engine of each rung; `fp32` is the reference that their tokens are checked against."""


if __name__ == "__main__":
    serve(lambda request: LOADERS[request["arm"]](request))
