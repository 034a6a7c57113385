"""`agentcompile bench long`: logits far into the cache beside fp32, for our steps and for PyTorch in the model's dtype.

The same tokens are fed to all: ours one decode step after another, PyTorch's whole. Out: at every checkpoint the
relative error of the logits, ‖x − ref‖ / ‖ref‖, and the divergence from fp32 in nats, as a table and as one JSON file.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch

import agentcompile
from agentcompile.checkpoint.convert import name_of
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import this_machine
from agentcompile.options import resolve
from agentcompile.runs.tables import Table

from ..harness.records import revision, say_next, write_record
from ..models.locate import MAKERS
from ..models.named import checkpoint
from .accuracy import divergence

_CHECKPOINTS = (0, 127, 511, 512, 2047, 2048, 4095, 8191)


def run(arguments: Sequence[str]) -> int:
    """Compare a lock's logits with PyTorch's and write the result as JSON.

    Raises:
        AgentCompileError: a checkpoint position lies beyond the lock's KV cache.
    """
    parser = argparse.ArgumentParser(prog="agentcompile bench long", description=__doc__)
    parser.add_argument("lock", type=Path, help="of the model")
    parser.add_argument("--model", required=True, help=f"a checkpoint, or one of {', '.join(MAKERS)}")
    parser.add_argument("--target", default="cuda:0", help="cpu or cuda:N")
    parser.add_argument("--checkpoints", type=_numbers, default=_CHECKPOINTS, help="positions, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the tokens")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    asked = parser.parse_args(arguments)
    path = checkpoint(asked.model, resolve({}).options.cache)
    options = resolve({"target": asked.target, "model": str(path)}).options
    machine, begun = this_machine(options), revision()
    model: Any = agentcompile.load(asked.lock, model=path, options=options)
    if max(asked.checkpoints) >= model.info.context:
        text = f"--checkpoints: {max(asked.checkpoints)} is past the cache of {model.info.context} tokens"
        raise AgentCompileError(text, hint=f"compile with --context {max(asked.checkpoints) + 1} or more")
    generator = random.Random(asked.seed)
    ids = [generator.randrange(model.info.vocab) for _ in range(max(asked.checkpoints) + 1)]
    ours = model.logits(ids, asked.checkpoints).cpu().double()
    reference = _pytorch(path, ids, asked.checkpoints, torch.float32, machine.device)
    eager = _pytorch(path, ids, asked.checkpoints, torch.bfloat16, machine.device)
    rows = [
        {
            "position": position,
            "error": _error(ours[at], reference[at]),
            "eager_error": _error(eager[at], reference[at]),
            "kl": float(divergence(reference[at], ours[at])),
            "eager_kl": float(divergence(reference[at], eager[at])),
        }
        for at, position in enumerate(asked.checkpoints)
    ]
    words = ["long", asked.lock.name, "--model", name_of(path)]
    write_record(asked.out, words, begun, machine.target, {"model": name_of(path), "checkpoints": rows})
    heads = ("position", "error", "PyTorch's", "KL, nats", "PyTorch's")
    cells = [
        tuple(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()) for row in rows
    ]
    Screen.standard().table(Table(heads=heads, rows=cells))
    say_next(f"agentcompile verify {quote(str(asked.lock))} --model {quote(str(path))} --prompts FILE")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def _pytorch(
    path: Path, ids: Sequence[int], checkpoints: Sequence[int], dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Return logits [checkpoints, vocab] in float64 of the model as transformers runs it in `dtype`."""
    import transformers

    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype, attn_implementation="sdpa")
    model = loaded.to(device)
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids], device=device)).last_hidden_state
        made: torch.Tensor = model.lm_head(hidden[0, list(checkpoints)])
    return made.cpu().double()


def _error(found: torch.Tensor, reference: torch.Tensor) -> float:
    return float((found - reference).norm() / reference.norm())
