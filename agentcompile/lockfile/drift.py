"""Differences between a lock and the machine or model at hand, how grave each is, and which command repairs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.target import Target
from agentcompile.lockfile.schema import Lock

Grade = Literal["warn", "rebuild", "remeasure", "refuse"]
"""How grave a difference is.

warn: replay as it is. rebuild: build and validate again, which replay always does. remeasure: the choices may be the
wrong ones here. refuse: exit 3.
"""


ISA = "target.isa"
"""The field of instruction sets, whose values are names with spaces between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One field that differs, with both values."""

    field: str
    locked: str
    here: str
    grade: Grade
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The digests of the model at hand: the same ones that a lock holds."""

    config: str
    graphs: Mapping[str, str]
    weights: str
    gguf: str = ""
    """The SHA-256 of the GGUF file that it was converted from; empty when there is none."""


def difference(field: str, locked: str, here: str) -> str:
    """Return a line on a field that differs, with both values; of instruction sets, only the names that differ."""
    if field != ISA:
        return f"{field}: locked {locked}, here {here}"
    needed, known = set(locked.split()), set(here.split())
    if missing := needed - known:
        return f"{field}: the lock needs {', '.join(sorted(missing))}, which this CPU lacks"
    return f"{field}: this CPU also has {', '.join(sorted(known - needed))}, which the lock does not use"


def drift(lock: Lock, target: Target, model: ModelFacts | None = None, policy: str = "") -> tuple[Drift, ...]:
    """Compare a lock with this machine and model field by field; an empty tuple means that the lock holds as it is.

    `policy` is the digest of the tolerances and the timing protocol here, if it is known: where it differs, replay
    validates the kernels again. Libraries are compared by the names in the lock; one that is missing here is shown as
    `absent`.
    """
    found: list[Drift] = []

    def differ(field: str, locked: object, here: object, grade: Grade, remedy: str) -> None:
        if locked != here:
            found.append(Drift(field=field, locked=_show(locked), here=_show(here), grade=grade, remedy=remedy))

    here, again = target, "agentcompile compile MODEL"
    differ("target.kind", lock.target.kind, here.kind, "refuse", again)
    differ("target.arch", lock.target.arch, here.arch, "refuse", again)
    missing = sorted(set(lock.target.isa) - set(here.isa))
    if missing:
        differ(ISA, lock.target.isa, tuple(sorted(here.isa)), "refuse", f"compile again here: {again}")
    else:
        differ(ISA, lock.target.isa, tuple(sorted(here.isa)), "remeasure", again)
    differ("target.device", lock.target.device, here.device, "remeasure", again)
    differ("target.threads", lock.target.threads, here.threads, "remeasure", f"--threads {lock.target.threads}")
    differ("target.cache-bytes", lock.target.cache_bytes, here.cache_bytes, "remeasure", again)
    differ("target.toolchain", lock.target.toolchain, here.toolchain, "rebuild", "agentcompile replay LOCK")
    libraries = dict(here.libraries)
    for name, version in lock.target.libraries.items():
        remedy = f"pip install {name}=={version}"
        differ(f"target.libraries.{name}", version, libraries.get(name, "absent"), "rebuild", remedy)
    if policy:
        differ("policy.digest", lock.policy.digest, policy, "rebuild", "agentcompile replay LOCK")
    if model is not None:
        found += _model_drift(lock, model)
    return tuple(found)


def _model_drift(lock: Lock, model: ModelFacts) -> list[Drift]:
    rows: list[tuple[str, str, str]] = []
    if lock.model.gguf_sha256 and model.gguf:  # a file differs as a whole, whatever it does to the configuration
        rows.append(("model.gguf-sha256", lock.model.gguf_sha256, model.gguf))
    rows += [("model.config", lock.model.config, model.config)]
    phases = sorted(set(lock.model.graphs) | set(model.graphs))
    rows += [(f"model.graphs.{p}", lock.model.graphs.get(p, "absent"), model.graphs.get(p, "absent")) for p in phases]
    rows.append(("model.weights", lock.model.weights, model.weights))
    remedy = "give the checkpoint that was compiled with --model, or compile this one"
    return [
        Drift(field=field, locked=_show(locked), here=_show(here), grade="refuse", remedy=remedy)
        for field, locked, here in rows
        if locked != here
    ]


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    text = str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text
