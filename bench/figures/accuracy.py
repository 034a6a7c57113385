"""End-to-end accuracy: teacher-forced logits of the compiled model and of bf16 eager PyTorch, both against fp32.

Run as `python -m agentcompile.bench.figures.accuracy REQUEST`; prints one JSON object. The text is the compiler's own
source, one window from the head of each file: Python that the sample model was not trained on.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentcompile.ir.digest import digest

from ..harness.means import mean_of
from ..harness.workload import own_sources

WINDOW_TOKENS = 256
WINDOWS = 64


def windows(model: Path) -> list[list[int]]:
    """Return up to `WINDOWS` windows of token ids, each the head of one source file, spread evenly over the files."""
    from agentcompile.runtime.text import Tokenizer

    tokenizer = Tokenizer(model)
    heads = [tokenizer.encode(text)[:WINDOW_TOKENS] for text in own_sources()]
    long = [ids for ids in heads if len(ids) == WINDOW_TOKENS]
    step = max(1, len(long) // WINDOWS)
    return long[::step][:WINDOWS]


def divergence(reference: Any, logits: Any) -> Any:
    """Return KL(reference ‖ logits) in nats, in float64: [tokens, vocab] each to [tokens]."""
    import torch

    p, q = torch.log_softmax(reference.double(), -1), torch.log_softmax(logits.double(), -1)
    return (p.exp() * (p - q)).sum(-1)


def losses(logits: Any, ids: Sequence[int]) -> Any:
    """Return the negative log-likelihood of every next token in nats, in float64: [tokens, vocab] to [tokens − 1]."""
    import torch

    return torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:]), reduction="none")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % t interval."""
    mean = mean_of(values)
    return mean.value, mean.half_width(0.05)


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the lock `request["lock"]` with eager bf16 and fp32 PyTorch of `request["model"]`, window by window."""
    import torch
    import transformers

    import agentcompile

    torch.set_num_threads(request["threads"])
    texts = windows(Path(request["model"]))
    eager: dict[str, Any] = {
        name: transformers.AutoModelForCausalLM.from_pretrained(request["model"], dtype=dtype)
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
    }
    ours: Any = agentcompile.load(Path(request["lock"]), model=request["model"])
    kl: dict[str, list[float]] = {"bf16": [], "ours": [], "bf16 prefill": [], "ours prefill": []}
    ratios: dict[str, list[float]] = {"bf16": [], "ours": []}
    fp32_loss: list[float] = []
    with torch.inference_mode():
        for ids in texts:
            exact = eager["fp32"](torch.tensor([ids])).logits[0]
            found = {"bf16": eager["bf16"](torch.tensor([ids])).logits[0].float(), "ours": ours.logits(ids)}
            loss = losses(exact, ids)
            fp32_loss.append(float(loss.mean()))
            for name, logits in found.items():
                kl[name].append(float(divergence(exact, logits).mean()))
                ratios[name].append(float((losses(logits, ids) - loss).mean()))
            prefill = ours.prefill(ids)
            kl["bf16 prefill"].append(float(divergence(exact[-1:], found["bf16"][-1:]).mean()))
            kl["ours prefill"].append(float(divergence(exact[-1:], prefill[None]).mean()))
    mean, half = interval(ratios["ours"])
    eager_mean, eager_half = interval(ratios["bf16"])
    return {
        "windows": len(texts),
        "window_tokens": WINDOW_TOKENS,
        "text_digest": digest("figures-text/1", [list(ids) for ids in texts]),
        "fp32_perplexity": math.exp(fmean(fp32_loss)),
        "mean_kl": {name: fmean(values) for name, values in kl.items()},
        "kl_ratio": fmean(kl["ours"]) / fmean(kl["bf16"]),
        "prefill_kl_ratio": fmean(kl["ours prefill"]) / fmean(kl["bf16 prefill"]),
        "ln_perplexity_ratio": mean,
        "ln_perplexity_half_width": half,
        "eager_ln_perplexity_ratio": eager_mean,
        "eager_ln_perplexity_half_width": eager_half,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
