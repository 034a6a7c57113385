"""The identity of a run: every fact that affects its result, so that only an equal run resumes an interrupted one."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import agentcompile
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import SHORT, canonical, digest, digest_bytes
from agentcompile.ir.target import Target
from agentcompile.lockfile.files import read_lock

from .workload import Workload

Identity = dict[str, str]
"""Fact to value, both readable, since a message names each difference with both values."""
SAME_SUBJECT = ("models", "device")
"""The facts that two runs must share to be worth comparing."""
_SOURCES = {".py", ".cpp", ".h", ".cu", ".cuh", ".toml"}
_SHOWN_CHARACTERS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """One checkpoint's workload and the arms that run it."""

    workload: Workload
    arms: tuple[str, ...]


def identity_of(
    jobs: Sequence[WorkloadJob],
    target: Target,
    revision: Mapping[str, Any],
    *,
    lock: Path | None,
    settings: Mapping[str, object],
) -> Identity:
    """Return the facts of a run; `settings` are its plain ones (device, seed, rounds, …) by name, shown as text.

    Raises:
        AgentCompileError: there is a lock and it cannot be read.
    """
    machine = encode(target)
    assert isinstance(machine, dict)
    name = str(revision["revision"])
    return {
        "models": ",".join(job.workload.name for job in jobs),
        **{fact: str(value) for fact, value in settings.items()},
        "lock": read_lock(lock).content_hash if lock else "",
        **{fact: value for job in jobs for fact, value in _of_job(job).items()},
        **{f"target.{fact}": canonical(value).decode() for fact, value in machine.items()},
        "python": sys.version.split()[0],
        "torch": version("torch"),
        "transformers": version("transformers"),
        "agentcompile": agentcompile.__version__,
        "revision": name if name and not revision["changed_since"] else f"{name}+{_sources_digest()[:SHORT]}",
    }


def key_of(identity: Identity) -> str:
    """Return a short digest of a run's identity for the name of its file."""
    return digest("figures-partial/1", dict(identity))[:SHORT]


def differences(there: Identity, here: Identity) -> list[str]:
    """Return a phrase with both values for every fact that differs; empty for the same run."""
    names = [*here, *(name for name in there if name not in here)]
    return [
        f"{name}: {_shown(there.get(name))} there, {_shown(here.get(name))} here"
        for name in names
        if there.get(name) != here.get(name)
    ]


def _of_job(job: WorkloadJob) -> Identity:
    work = job.workload
    return {
        f"{work.name}.arms": ",".join(job.arms),
        f"{work.name}.prompt": digest("figures-prompt/1", list(work.ids)),
        f"{work.name}.new": str(work.new),
        f"{work.name}.context": str(work.context),
        f"{work.name}.weight_bytes": str(work.weight_bytes),
        f"{work.name}.parameters": str(work.parameters),
    }


def _sources_digest() -> str:
    compiler, recipes = Path(agentcompile.__file__).parent, Path(__file__).resolve().parents[1]
    with importlib.resources.as_file(importlib.resources.files("agentcompile.templates")) as templates:
        files = {
            f"{root.name}/{path.relative_to(root)}": digest_bytes("figures-source/1", path.read_bytes())
            for root in (compiler, recipes, templates)
            for path in root.rglob("*")
            if path.suffix in _SOURCES and path.is_file()
        }
    return digest("figures-sources/1", dict(files))


def _shown(value: str | None) -> str:
    if not value:
        return "none"
    return value if len(value) <= _SHOWN_CHARACTERS else f"{value[: _SHOWN_CHARACTERS - 1]}…"
