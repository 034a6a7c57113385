"""A lock with its sources as one file, from the lock's own sources or from the templates here."""

from __future__ import annotations

from pathlib import Path

from agentcompile.lockfile.bundle import Bundle
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.replay.open import open_lock
from agentcompile.replay.sources import LockSources, write_bundle
from agentcompile.system.store import Store


def bundle_lock(lock: Path, options: Options, out: Path) -> tuple[int, int]:
    """Write the bundle of the lock at `lock` to the file `out`; return its number of kernels and its bytes.

    Raises:
        AgentCompileError: sources are missing and the templates here give others, or the file cannot be written.
    """
    found = LockSources.of(lock, Store(options.store)).whole(read_lock(lock))
    if found is None:  # then the templates here must give the same sources
        jobs = open_lock(lock, options).jobs
        found = Bundle(
            sources={job.source.digest: job.source for job in jobs},
            templates={job.template.digest: job.template for job in jobs},
        )
    return len(found.sources), write_bundle(lock, found, out)
