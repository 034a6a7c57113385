"""A lock's own sources and templates by digest: those in its bundle, and those that this machine's store keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agentcompile.build import NVRTC_SCRIPT, build_command
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.ir.template import Source, Template
from agentcompile.lockfile.bundle import (
    Bundle,
    Tools,
    beside,
    read_bundle,
    render_bundle,
    source_bytes,
    source_in,
    template_bytes,
    template_in,
)
from agentcompile.lockfile.files import lock_bytes, write_file
from agentcompile.lockfile.schema import Lock
from agentcompile.system.plain_files import read_plain
from agentcompile.system.store import Store

_SOURCE, _TEMPLATE = ".source.json", ".template.json"
_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSources:
    """Where a lock's own sources are looked for: its bundle, then the store."""

    store: Store | None = None
    bundle: Bundle = field(default_factory=lambda: Bundle(sources={}, templates={}))

    @classmethod
    def of(cls, lock: Path, store: Store) -> LockSources:
        """Return the sources of the lock at `lock`.

        Raises:
            AgentCompileError: the bundle beside the lock is damaged (usage).
        """
        return cls(store=store, bundle=read_bundle(beside(lock)) or Bundle(sources={}, templates={}))

    def source(self, digest: str) -> Source | None:
        """Return the source with that digest, or None."""
        data = self._bytes(digest, _SOURCE)
        try:
            return self.bundle.sources.get(digest) or (source_in(data, digest) if data else None)
        except ValueError:
            return None  # a cache: a damaged entry counts as missing

    def template(self, digest: str) -> Template | None:
        """Return the template with that digest, or None."""
        data = self._bytes(digest, _TEMPLATE)
        try:
            return self.bundle.templates.get(digest) or (template_in(data, digest) if data else None)
        except ValueError:
            return None

    def keep(self, jobs: Iterable[EvaluationJob]) -> None:
        """Keep the sources and templates of `jobs` in the store, for locks of this machine."""
        for job in jobs:
            if self.store is not None:
                self.store.write(job.source.digest, source_bytes(job.source), _SOURCE)
                self.store.write(job.template.digest, template_bytes(job.template), _TEMPLATE)

    def _bytes(self, digest: str, suffix: str) -> bytes:
        path = self.store.get(digest, suffix) if self.store is not None else None
        try:
            return read_plain(path, _MOST_BYTES) if path is not None else b""
        except OSError:
            return b""

    def whole(self, lock: Lock) -> Bundle | None:
        """Return everything that the lock's kernels are made from; None when a source or template is not found."""
        choices = [choice for plan in lock.plan for choice in plan.choices if choice.use == "kernel"]
        sources = {choice.source: self.source(choice.source) for choice in choices}
        templates = {choice.template_digest: self.template(choice.template_digest) for choice in choices}
        if None in sources.values() or None in templates.values():
            return None
        return Bundle(
            sources={digest: found for digest, found in sources.items() if found},
            templates={digest: found for digest, found in templates.items() if found},
        )


def write_bundle(lock: Path, bundle: Bundle, out: Path) -> int:
    """Write the bundle of the lock at `lock` to `out`, atomically, and return its size in bytes.

    Raises:
        AgentCompileError: it cannot be written (environment).
    """
    commands = {digest: build_command(source, digest) for digest, source in bundle.sources.items()}
    data = render_bundle(lock_bytes(lock), bundle, Tools(commands=commands, nvrtc=NVRTC_SCRIPT))
    write_file(out, data)
    return len(data)
