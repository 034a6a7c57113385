"""Where runs lie, and what they are called; light, because a shell's completion imports it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote

from agentcompile import arguments
from agentcompile.system import hub

LATEST = "latest"
"""What the run that was started last is called, beside its own name."""
EVENTS, OPTIONS = "events.jsonl", "options.json"
"""The files of a run that readers need."""
_STAMP = "%Y%m%d-%H%M%S"
_STAMPED = re.compile(r"(\d{8}-\d{6})-")
_FIRST = re.compile(rb'\{"at_ms":(\d+),')
"""How the first record of `EVENTS` begins."""


def new_name(runs: Path, model: str, *, clock: Callable[[], float] = time.time) -> Path:
    """Return a folder for a new run below `runs`, named by the time and the model; it is not made yet."""
    stem = time.strftime(_STAMP, time.gmtime(clock()))
    short = re.sub(r"[^A-Za-z0-9._]+", "-", hub.name_of(Path(model))).strip("-.")[:40] or "model"
    path = runs / f"{stem}-{short}"
    number = 2
    while path.exists():
        path = runs / f"{stem}-{short}-{number}"
        number += 1
    return path


def resuming(run: Path | str, verb: str = "compile") -> str:
    """Return the command that goes on with a run, as a shell takes it."""
    return f"agentcompile {verb} --resume --run-dir {quote(str(run))}"


def named(runs: Path, name: str) -> Path:
    """Return the folder that a person means by a run's folder, by its name among `runs`, or by `LATEST`.

    It need not exist.

    Raises:
        AgentCompileError: no file system takes such a name (usage).
    """
    path = Path(arguments.path("run", name))
    if _is_folder(path):
        return path
    newest = runs_in(runs)[-1:] if name == LATEST and not _is_folder(runs / name) else ()
    return next(iter(newest), runs / name)


def standing(runs: Path, run_dir: str) -> Path:
    """Return the folder that the setting of a run directory means: where it is none, the run of that name in `runs`.

    It need not exist. A setting is an absolute path, so a name lies in the current folder.
    """
    path = Path(run_dir)
    if _is_folder(path) or path.parent != Path.cwd():
        return path
    found = named(runs, path.name)
    return found if _is_folder(found) else path


def runs_in(runs: Path) -> tuple[Path, ...]:
    """Return the run directories below `runs`, in the order in which they were started; empty when there are none."""
    if not _is_folder(runs):
        return ()
    return tuple(sorted((path.parent for path in runs.glob(f"*/{OPTIONS}")), key=started))


def started(path: Path) -> tuple[str, float, int, str]:
    """Return what sorts runs by their start: the second, then the time of the first event, then the name.

    A name that `new_name` made has the second, which a copy keeps; for any other it is that of the first event.
    """
    first_s = _first_event_s(path)
    stamp = _STAMPED.match(path.name)
    second = stamp[1] if stamp is not None else time.strftime(_STAMP, time.gmtime(first_s))
    return second, first_s, len(path.name), path.name


def _first_event_s(path: Path) -> float:
    """Return when a run wrote its first event, or its options where it has none; 0 where neither can be read."""
    with suppress(OSError), (path / EVENTS).open("rb") as stream:
        if (first := _FIRST.match(stream.read(64))) is not None:
            return int(first[1]) / 1000
    with suppress(OSError):
        return (path / OPTIONS).stat().st_mtime
    return 0.0


def _is_folder(path: Path) -> bool:
    """Return whether there is such a folder, and it may be looked at."""
    with suppress(OSError):
        return path.is_dir()
    return False
