"""Where runs lie, and what they are called; light, because a shell's completion imports it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from agentcompile.system import hub

LATEST = "latest"
"""What the newest run is called, beside its own name."""
EVENTS, OPTIONS = "events.jsonl", "options.json"
"""The files of a run that readers need."""


def new_name(runs: Path, model: str, *, clock: Callable[[], float] = time.time) -> Path:
    """Return a folder for a new run below `runs`, named by the time and the model; it is not made yet."""
    stem = time.strftime("%Y%m%d-%H%M%S", time.gmtime(clock()))
    short = re.sub(r"[^A-Za-z0-9._]+", "-", hub.name_of(Path(model))).strip("-.")[:40] or "model"
    path = runs / f"{stem}-{short}"
    number = 2
    while path.exists():
        path = runs / f"{stem}-{short}-{number}"
        number += 1
    return path


def named(runs: Path, name: str) -> Path:
    """Return the folder that a person means by a run's folder, or by its name among `runs`; it need not exist."""
    return Path(name) if Path(name).is_dir() else runs / name


def standing(runs: Path, run_dir: str) -> Path:
    """Return the folder that the setting of a run directory means: where it is none, the run of that name in `runs`.

    It need not exist. A setting is an absolute path, so a name lies in the current folder.
    """
    path = Path(run_dir)
    if path.is_dir() or path.parent != Path.cwd():
        return path
    newest = runs_in(runs)[-1:] if path.name == LATEST else ()
    return next(iter(newest), runs / path.name) if newest or (runs / path.name).is_dir() else path


def runs_in(runs: Path) -> tuple[Path, ...]:
    """Return the run directories below `runs`, oldest first; empty when there are none."""
    if not runs.is_dir():
        return ()
    return tuple(sorted(path.parent for path in runs.glob(f"*/{OPTIONS}")))
