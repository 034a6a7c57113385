"""Where a written template comes from: a file beside it that says who wrote it, for which task, and how fast it was.

The file is no part of the template: the catalog does not read it, and it is in no digest. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Evaluated, Written
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import SHORT, canonical
from agentcompile.ir.template import ParamValue
from agentcompile.ir.trial import Measured

FILE = "provenance.json"
_VERSION = 1
_MOST_BYTES = 1 << 20
_LONGEST = 2_000
"""Characters of a provenance on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who wrote a template, for which task, and what was measured when it was admitted."""

    task: str
    """The task for people: the region's name, or the task file's."""
    contract: str
    """The digest of what was asked for."""
    node: str
    """The node of the tree that it came from."""
    models: tuple[tuple[str, str], ...]
    """(role, name of the model) of all that had a part in it."""
    exchanges: tuple[str, ...]
    """The digests of the exchanges with them, in order."""
    times_ns: dict[str, int]
    """Measured times by name, such as ``kernel``, ``pytorch``, ``incumbent`` and ``floor``."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """The parameters at which it was that fast."""
    machine: dict[str, str] = field(default_factory=dict)
    """Device, architecture, threads and toolchain that it was measured on."""
    written: str = ""
    """The digest of manifest and kernel."""
    templates: tuple[str, ...] = ()
    """The digests of the templates that the folder makes; none for a kernel of a task, which no catalog reads."""
    task_file: str = ""
    """The SHA-256 of the task's file; empty for a region of a model."""

    @property
    def text(self) -> str:
        """The provenance on one line for people."""
        models = ", ".join(f"{role} {name}" for role, name in self.models) or "nobody named"
        times = ", ".join(f"{name} {ns / 1e3:.3g} us" for name, ns in self.times_ns.items())
        machine = f" on {self.machine['device']}" if self.machine.get("device") else ""
        asked = f"{len(self.exchanges)} exchanges" + (f" from {self.exchanges[0][:SHORT]}" if self.exchanges else "")
        return f"written by {models} for {self.task}, node {self.node}, {asked}; {times}{machine}"


def provenance_for(
    task: str,
    contract: str,
    written: Written,
    evaluated: Evaluated,
    *,
    node: str,
    models: tuple[tuple[str, str], ...],
    exchanges: tuple[str, ...] = (),
    incumbent_ns: float,
    floor_ns: float,
    machine: Mapping[str, str],
    task_file: str = "",
) -> Provenance:
    """Return where an admitted kernel comes from; `contract` is the digest of what was asked for.

    `incumbent_ns` counts where the kernel's feedback does not say what the incumbent took beside it. `task_file` is the
    SHA-256 of a task's file, whose incumbent is its baseline.

    Raises:
        AgentCompileError: the kernel was not measured (usage).
    """
    if not isinstance(evaluated.verdict, Measured):
        text = f"{task}: a kernel that is {evaluated.verdict.kind} cannot be promoted"
        raise AgentCompileError(text, hint="promote a node that was measured")
    found = evaluated.verdict.measurement
    told = evaluated.feedback if isinstance(evaluated.feedback, dict) else {}
    params, beside_us = told.get("params"), told.get("incumbent_us")
    if isinstance(beside_us, (int, float)):  # in the same rounds
        incumbent_ns = 1e3 * beside_us
    bars = {"pytorch": found.baseline_ns, "incumbent": round(incumbent_ns)}
    bars = {found.baseline: found.baseline_ns} if task_file else bars
    times = {"kernel": found.median_ns, **bars, "floor": round(floor_ns)}
    return Provenance(
        task=task,
        contract=contract,
        node=node,
        models=models,
        exchanges=exchanges,
        times_ns=times,
        params={k: v for k, v in params.items() if isinstance(v, (int, str))} if isinstance(params, dict) else {},
        machine=dict(machine),
        written=written.digest,
        task_file=task_file,
    )


def provenance_bytes(about: Provenance) -> bytes:
    """Return the content of the file."""
    return canonical({"version": _VERSION, "provenance": encode(about)}) + b"\n"


def provenance_in(folder: Path) -> Provenance | None:
    """Return the provenance of the template in `folder`; None where there is none, or none that can be read."""
    path = folder / FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        found = json.loads(path.read_bytes())
        return decode(Provenance, found["provenance"]) if found["version"] == _VERSION else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError, CodecError):
        return None


def provenance_of(id: str, template_digest: str, roots: Iterable[Path]) -> Provenance | None:
    """Return the provenance of the template of that id and digest in the first of `roots` that has it, or None.

    A template that was edited since it was written has another digest, and so nobody's name.
    """
    for root in roots:
        found = provenance_in(root / id)
        if found is not None and template_digest in found.templates:
            return found
    return None


def authors(roots: Iterable[Path]) -> dict[str, str]:
    """Return who wrote what for people, by the digest of the template, of all written templates below `roots`."""
    found: dict[str, str] = {}
    for root in roots:
        for file in sorted(root.glob(f"*/*/{FILE}")):
            about = provenance_in(file.parent)
            if about is not None:
                found.update({one: clean(about.text, _LONGEST) for one in about.templates if one not in found})
    return found
