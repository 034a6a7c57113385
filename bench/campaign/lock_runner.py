"""Runs locks in a process of its own, to compare their outputs with those of the first lock.

In: the path of a lock on each line of stdin. Out: a JSON object for each on stdout, with the largest difference from
the first lock's outputs relative to their largest value, or a refusal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from agentcompile.errors import AgentCompileError
from agentcompile.options import Options, resolve
from agentcompile.replay.load import replay_lock

IDS = (3, 141, 59, 26, 5, 358, 97, 93, 238, 46, 264, 33, 83, 27, 95, 28, 84, 197, 169, 399, 37)


def outputs(path: Path, options: Options) -> tuple[torch.Tensor, ...]:
    """Return the logits of a lock: from decode steps at every position, and from its prefill."""
    model = replay_lock(path, options)
    ids = [token % model.info.vocab for token in IDS]
    return model.logits(ids), model.prefill(ids)


def main(model: str, home: str, threads: int) -> None:
    """Write one line of JSON for each path on stdin."""
    options = resolve({"model": model, "home": home, "threads": threads}).options
    first: tuple[torch.Tensor, ...] | None = None
    for line in sys.stdin:
        answer: dict[str, float | int | str] = {}
        try:
            made = outputs(Path(line.strip()), options)
            first = first or made
            pairs = list(zip(first, made, strict=True))
            answer["apart"] = max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
            answer["finite"] = int(all(bool(torch.isfinite(other).all()) for _, other in pairs))
        except AgentCompileError as error:
            answer = {"refused": int(error.exit_code), "message": error.message}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
