"""End-to-end accuracy of a lock: teacher-forced logits against float32, beside what eager PyTorch loses.

In: a lock and prompts. Out: figures, each with the tolerance of the policy; AgentCompileError (correctness) when one
breaks. The rule: mean KL(float32 || compiled) <= 1.25 x KL(float32 || eager), and the interval of the log perplexity
ratio lies within +-5e-4; both over every position of every prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from agentcompile import eager
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, silent
from agentcompile.options import Options
from agentcompile.replay import replay_lock

KL_GATE = 1.25
KL_FLOOR = 1e-7
"""Nats a token that the order of float32 sums alone may cost: a float32 checkpoint's eager KL is zero."""
PERPLEXITY_GATE = 5e-4
TOP = 5
_LONGEST = 512
"""Tokens of a prompt that are scored: the rest costs time and says little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What was found over all positions; times are natural logarithms."""

    tokens: int
    kl: float
    """Mean KL(float32 || compiled), in nats a token."""
    kl_eager: float
    log_perplexity_ratio: float
    """ln(perplexity compiled / perplexity float32)."""
    half_width: float
    """Half its 95 % interval, by the spread over positions."""
    mismatches: int
    """Positions whose greedy token differs from float32's."""
    beyond_top: int
    """Mismatches where either token is outside the other's five likeliest."""

    @property
    def ok(self) -> bool:
        """Whether the tolerances hold."""
        within = abs(self.log_perplexity_ratio) - self.half_width <= PERPLEXITY_GATE
        return self.kl <= max(KL_GATE * self.kl_eager, KL_FLOOR) and within and self.beyond_top == 0


def verify_lock(lock: Path, options: Options, prompts: Sequence[str], emit: Emit = silent) -> Mapping[str, float | str]:
    """Score `lock` on text prompts; the figures by name. Raises AgentCompileError (correctness) when they break."""
    compiled = replay_lock(lock, options, emit)
    if compiled.tokenizer is None:
        raise AgentCompileError(f"{lock}: the checkpoint has no tokenizer", hint="a tokenizer.json beside its weights")
    texts = [compiled.tokenizer.encode(prompt)[: min(_LONGEST, compiled.info.context)] for prompt in prompts]
    scored = [ids for ids in texts if len(ids) > 1]
    if not scored:
        raise AgentCompileError("no prompt has two tokens or more", hint="give longer prompts, one a line")
    found = measure(compiled.logits, compiled.checkpoint, scored)
    figures: dict[str, float | str] = {
        "tokens": found.tokens,
        "KL(float32 || compiled)": found.kl,
        "KL(float32 || eager)": found.kl_eager,
        "KL ratio (at most 1.25)": found.kl / max(found.kl_eager, 1e-12),
        "ln perplexity ratio (within 5e-4)": found.log_perplexity_ratio,
        "its half interval": found.half_width,
        "greedy mismatches": found.mismatches,
        "beyond the top five": found.beyond_top,
    }
    if not found.ok:
        text = "; ".join(f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, float))
        hint = "`agentcompile explain REGION` shows each kernel's errors; compile again to choose others"
        raise AgentCompileError(f"{lock}: the compiled model is less accurate than allowed: {text}",
                                exit_code=ExitCode.CORRECTNESS, hint=hint)  # fmt: skip
    return figures


def measure(
    logits: Callable[[Sequence[int]], torch.Tensor], checkpoint: Path, texts: Sequence[Sequence[int]]
) -> Accuracy:
    """Compare a compiled model's teacher-forced `logits` (ids -> [len, vocab] float32) with float32 and eager."""
    exact, plain = eager.load(checkpoint, torch.float32), eager.load(checkpoint)
    kls: list[float] = []
    kls_eager: list[float] = []
    ratios: list[float] = []
    mismatches = beyond = 0
    with torch.inference_mode():
        for ids in texts:
            batch = torch.tensor([list(ids)])
            r = torch.log_softmax(exact(batch).logits[0].double(), -1)
            e = torch.log_softmax(plain(batch).logits[0].double(), -1)
            c = torch.log_softmax(logits(ids).double(), -1)
            kls += (r.exp() * (r - c)).sum(-1).tolist()
            kls_eager += (r.exp() * (r - e)).sum(-1).tolist()
            following = batch[0, 1:].unsqueeze(-1)
            ratios += (r[:-1].gather(-1, following) - c[:-1].gather(-1, following)).flatten().tolist()
            wrong = (r.argmax(-1) != c.argmax(-1)).nonzero().flatten().tolist()
            mismatches += len(wrong)
            beyond += sum(not _mutual(r[i], c[i]) for i in wrong)
    spread = 1.96 * stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return Accuracy(
        tokens=len(kls),
        kl=mean(kls),
        kl_eager=mean(kls_eager),
        log_perplexity_ratio=mean(ratios),
        half_width=spread,
        mismatches=mismatches,
        beyond_top=beyond,
    )


def _mutual(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether each one's likeliest token is among the other's five likeliest."""
    first, second = a.topk(TOP).indices.tolist(), b.topk(TOP).indices.tolist()
    return first[0] in second and second[0] in first
