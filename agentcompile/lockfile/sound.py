"""Checks that the values of a lock make sense, as far as this can be told without its model and its templates.

A hash shows that a file is as it was written, not that it makes sense: whoever can write the file can compute the hash.
So every number has a range here, every digest a form, and the location may only lead to a checkpoint near the lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agentcompile.checkpoint.names import misplaced
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.program import CHUNK
from agentcompile.lockfile.schema import Evidence, Lock, LockChoice, LockPlan

MOST_CONTEXT = 1 << 20
MOST_THREADS = 1024
"""The most worker threads of a CPU, or multiprocessors of a GPU."""
MOST_BATCH = 64
MOST_PLANS = 64
MOST_CHOICES = 4096
"""The most choices of one plan."""
MOST_CHUNK = 4096
"""The most tokens of a chunk of a prompt on a CPU."""
MOST_STEPS = 64
"""The most tokens of a prompt that run through decode steps."""
LARGEST = 1 << 53
"""A bound on every number in a lock, below which every reader represents integers exactly."""
DTYPES = ("bf16", "fp16", "fp32")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DECIMAL = re.compile(r"-?(\d{1,30}(\.\d{1,30})?(e[+-]?\d{1,3})?|inf)")
_WITH_LENGTHS: dict[str, tuple[str, ...]] = {"cpu": ("prefill",), "cuda": ()}
"""The phases whose plans have lengths of prompts, by kind of device (`backends`, which needs PyTorch, is not read)."""
_ARCH = {"cpu": re.compile(r"[a-z0-9_]{1,40}", re.IGNORECASE), "cuda": re.compile(r"sm_[0-9]{2,3}[af]?")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsound:
    """What is wrong at a key of the lock."""

    key: str
    text: str


def unsound(lock: Lock) -> Unsound | None:
    """Return the first value that no compiler writes, or None."""
    return next(_faults(lock), None)


def _faults(lock: Lock) -> Iterator[Unsound]:
    yield from _numbers(encode(lock), "")
    yield from _target(lock)
    yield from _model(lock)
    if not _DIGEST.fullmatch(lock.policy.digest):
        yield _no_digest("policy.digest", lock.policy.digest)
    if len(lock.plan) > MOST_PLANS:
        yield Unsound(key="plan", text=f"{len(lock.plan)} plans, at most {MOST_PLANS}")
    for at, plan in enumerate(lock.plan):
        yield from _plan(f"plan[{at}]", plan, lock.model.context)
        yield from _prompts(f"plan[{at}]", plan, lock)
    yield from _evidence(lock.evidence)


def _numbers(value: Json, key: str) -> Iterator[Unsound]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, f"{key}.{name}".lstrip(".").replace("_", "-"))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _numbers(item, f"{key}[{at}]")
    elif isinstance(value, int) and not -LARGEST < value < LARGEST:
        yield Unsound(key=key, text=f"a number of {value.bit_length()} bits")


def _range(key: str, value: int, least: int, most: int) -> Iterator[Unsound]:
    if not least <= value <= most:
        yield Unsound(key=key, text=f"{value} is not in {least} … {most}")


def _no_digest(key: str, value: str) -> Unsound:
    return Unsound(key=key, text=f"{value[:70]!r} is no digest")


def _target(lock: Lock) -> Iterator[Unsound]:
    target = lock.target
    if not _ARCH[target.kind].fullmatch(target.arch):
        yield Unsound(key="target.arch", text=f"{target.arch[:70]!r} is no architecture of {target.kind}")
    yield from _range("target.threads", target.threads, 1, MOST_THREADS)
    yield from _range("target.line-bytes", target.line_bytes, 1, 4096)
    yield from _range("target.cache-bytes", len(target.cache_bytes), 0, 8)
    for at, size in enumerate(target.cache_bytes):
        yield from _range(f"target.cache-bytes[{at}]", size, 0, 1 << 40)


def _model(lock: Lock) -> Iterator[Unsound]:
    model = lock.model
    if reason := misplaced(model.location):
        yield Unsound(key="model.location", text=f"{model.location[:70]!r}: {reason}")
    if model.dtype not in DTYPES:
        yield Unsound(key="model.dtype", text=f"{model.dtype[:70]!r} is not one of {', '.join(DTYPES)}")
    yield from _range("model.context", model.context, 1, MOST_CONTEXT)
    digests = {"config": model.config, "weights": model.weights}
    digests |= {f"graphs.{phase}": value for phase, value in model.graphs.items()}
    for key, value in digests.items():
        if not _DIGEST.fullmatch(value):
            yield _no_digest(f"model.{key}", value)
    if model.gguf_sha256 and not _DIGEST.fullmatch(model.gguf_sha256):
        yield _no_digest("model.gguf-sha256", model.gguf_sha256)
    if (
        len(model.gguf) > 255
        or "/" in model.gguf
        or not model.gguf.isprintable()
        or bool(model.gguf) is not bool(model.gguf_sha256)
    ):
        yield Unsound(key="model.gguf", text=f"{model.gguf[:70]!r} is no name of a file with a digest")
    if odd := set(model.graphs) - {"decode", "prefill"}:
        yield Unsound(key="model.graphs", text=f"{min(odd)[:70]!r} is no phase")


def _plan(key: str, plan: LockPlan, context: int) -> Iterator[Unsound]:
    first, last = plan.context
    yield from _range(f"{key}.batch", plan.batch, 1, MOST_BATCH)
    yield from _range(f"{key}.context[0]", first, 1, context)
    yield from _range(f"{key}.context[1]", last, first, context)
    if len(plan.choices) > MOST_CHOICES:
        yield Unsound(key=f"{key}.choices", text=f"{len(plan.choices)} choices, at most {MOST_CHOICES}")
    for at, choice in enumerate(plan.choices):
        yield from _choice(f"{key}.choices[{at}]", choice)


def _prompts(key: str, plan: LockPlan, lock: Lock) -> Iterator[Unsound]:
    most = min(MOST_CHUNK, lock.model.context)
    usual = min(CHUNK, most)
    for name, value in (("chunk", plan.chunk), ("steps-up-to", plan.steps_up_to)):
        if value and plan.phase not in _WITH_LENGTHS[lock.target.kind]:
            yield Unsound(key=f"{key}.{name}", text=f"{value}, where 0 is: it is for prompts on a CPU")
    if plan.chunk:
        yield from _range(f"{key}.chunk", plan.chunk, 1, most)
    # What is left behind whole chunks is shorter than a chunk.
    yield from _range(f"{key}.steps-up-to", plan.steps_up_to, 0, min(MOST_STEPS, (plan.chunk or usual) - 1))


def _choice(key: str, choice: LockChoice) -> Iterator[Unsound]:
    if not _DIGEST.fullmatch(choice.region):
        yield _no_digest(f"{key}.region", choice.region)
    if list(choice.at) != sorted(set(choice.at)) or min(choice.at, default=0) < 0:
        yield Unsound(key=f"{key}.at", text="the sites are not distinct numbers in order")
    if choice.use == "kernel":
        for name, value in (("template-digest", choice.template_digest), ("source", choice.source)):
            if not _DIGEST.fullmatch(value):
                yield _no_digest(f"{key}.{name}", value)
        if not choice.template or choice.decided_by == "fallback":
            yield Unsound(key=key, text="a kernel needs a template, and someone who decided for it")
    elif choice.template or choice.template_digest or choice.source or choice.params:
        yield Unsound(key=key, text="a fallback has no template, parameters or source")
    elif choice.decided_by not in ("fallback", "human"):
        yield Unsound(key=f"{key}.decided-by", text=f"a fallback is not decided by {choice.decided_by!r}")


def _evidence(evidence: Evidence) -> Iterator[Unsound]:
    for at, row in enumerate((*evidence.regions, *evidence.steps, *evidence.prompts)):
        for name, value in sorted((encode(row) or {}).items()):  # type: ignore[union-attr]
            if name.endswith("_ns") and isinstance(value, int) and value < 0:
                yield Unsound(key=f"evidence[{at}].{name.replace('_', '-')}", text=f"{value} is no time")
            if name in ("log_ratio", "half_width", "error_ratio") and not _DECIMAL.fullmatch(str(value)):
                yield Unsound(key=f"evidence[{at}].{name.replace('_', '-')}", text=f"{str(value)[:70]!r} is no number")
