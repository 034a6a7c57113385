"""End-to-end accuracy of a lock: teacher-forced logits against float32, beside what eager PyTorch loses.

In: a lock and prompts. Out: figures, each with the tolerance of the policy; AgentCompileError (correctness) when one
breaks. The rule: mean KL(float32 || compiled) <= 1.25 x KL(float32 || eager), and the interval of the log perplexity
ratio lies within +-5e-4; both over every position of every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, silent
from agentcompile.ir.whole import PhaseScore
from agentcompile.options import Options
from agentcompile.replay.load import replay_lock
from agentcompile.runtime import eager
from agentcompile.verification.scores import KL_GATE, PERPLEXITY_GATE, rows, summary

KL_FLOOR = 1e-7
"""Nats per token that the order of float32 sums alone may cost: the eager KL of a float32 checkpoint is zero."""
_LONGEST = 512
"""Tokens of a prompt that are scored; further ones cost time and add little."""


def _within(found: PhaseScore) -> bool:
    ratio = abs(found.log_perplexity_ratio) - found.half_width <= PERPLEXITY_GATE
    return found.kl <= max(KL_GATE * found.kl_eager, KL_FLOOR) and ratio and found.beyond_top == 0


def verify_lock(lock: Path, options: Options, prompts: Sequence[str], emit: Emit = silent) -> Mapping[str, float | str]:
    """Score `lock` on text prompts, and return the figures by name.

    Raises:
        AgentCompileError: there is no tokenizer, or every prompt is too short (usage); a tolerance breaks
            (correctness).
    """
    compiled = replay_lock(lock, options, emit)
    if compiled.tokenizer is None:
        raise AgentCompileError(f"{lock}: the checkpoint has no tokenizer", hint="a tokenizer.json beside its weights")
    texts = [compiled.tokenizer.encode(prompt)[: min(_LONGEST, compiled.info.context)] for prompt in prompts]
    scored = [ids for ids in texts if len(ids) > 1]
    if not scored:
        raise AgentCompileError("no prompt has two tokens or more", hint="give longer prompts, one a line")
    found = measure(compiled.logits, compiled.checkpoint, scored)
    figures: dict[str, float | str] = {
        "tokens": found.positions,
        "KL(float32 || compiled)": found.kl,
        "KL(float32 || eager)": found.kl_eager,
        "KL ratio (at most 1.25)": found.kl / max(found.kl_eager, 1e-12),
        "ln perplexity ratio (within 5e-4)": found.log_perplexity_ratio,
        "its half interval": found.half_width,
        "greedy mismatches": found.mismatches,
        "beyond the top five": found.beyond_top,
    }
    if not _within(found):
        text = "; ".join(f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, float))
        hint = "`agentcompile explain REGION` shows each kernel's errors; compile again to choose others"
        raise AgentCompileError(f"{lock}: the compiled model is less accurate than allowed: {text}",
                                exit_code=ExitCode.CORRECTNESS, hint=hint)  # fmt: skip
    return figures


def measure(
    logits: Callable[[Sequence[int]], torch.Tensor], checkpoint: Path, texts: Sequence[Sequence[int]]
) -> PhaseScore:
    """Compare a compiled model's teacher-forced `logits` (ids -> [len, vocab] float32) with float32 and eager."""
    exact, plain = eager.load(checkpoint, torch.float32), eager.load(checkpoint)
    found_rows = []
    with torch.inference_mode():
        for ids in texts:
            batch = torch.tensor([list(ids)])
            found_rows += rows(exact(batch).logits[0], plain(batch).logits[0], logits(ids), [*ids[1:], None])
    return summary("decode", found_rows)
