"""The compilation of our own arm's lock within a run, with the times that a user waits for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .partial import FIRST_COMPILE, PartialFile, digest_of_lock
from .times import Build, Took, compile_once, first_token, replay_once
from .trial import Setup


def build_of(
    name: str,
    model: Path,
    setup: Setup,
    file: PartialFile,
    *,
    context: int = 0,
    seconds: float = 0,
    waits: bool = True,
    fresh: bool = True,
    **more: Any,
) -> Build | None:
    """Time up to four commands on the checkpoint `model`, called `name`, each in a process; return the lock's `Build`.

    They are a compile with an empty store, a replay, on a CPU a second compile with the full store, and with a
    tokenizer a `generate`. The result is None when the first compile made no lock. What `file` has already is not
    repeated; a folder beside it holds its lock and its store. `context` is the lock's number of tokens (0: the
    default), `seconds` bounds the search. Without `waits` only the first compile is done; without `fresh` it uses the
    user's store. `more` are other fields of the `Build`.

    Raises:
        AgentCompileError: lock or store are not as the first compile left them (usage).
    """
    progress, above = file.progress(name), file.folder
    if FIRST_COMPILE not in progress.times:
        setup.pause()
        # A fresh folder: a compiler that outlived a killed run may still write to that run's folder.
        progress.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=above)).name
    folder = above / progress.folder
    given: dict[str, Any] = {"lock": folder / "first.lock.toml", "home": folder / "home" if fresh else None, **more}
    build = Build(model=model, threads=setup.threads, target=setup.device, context=context, seconds=seconds, **given)
    if build.home is not None and FIRST_COMPILE not in progress.times:
        build.home.mkdir(exist_ok=True)
    steps: dict[str, Callable[[], Took]] = {FIRST_COMPILE: lambda: compile_once(build, build.lock)}
    if waits:
        steps["replay"] = lambda: replay_once(build)
    if waits and setup.kind == "cpu":
        steps["second compile"] = lambda: compile_once(build, folder / "second.lock.toml")
    if waits and (model / "tokenizer.json").is_file():
        steps["replay to first token"] = lambda: first_token(build)
    if FIRST_COMPILE in progress.times:
        progress.check(build)
    for what, step in steps.items():
        if what not in progress.times:
            setup.pause()
            with setup.quiet():
                took = progress.times[what] = step()
            progress.lock = digest_of_lock(build.lock)
            setup.keep()
            setup.say(f"{name}: {what}: {took.reason or f'{took.seconds:.1f} s'}")
        if not build.lock.is_file():
            break
    return build if build.lock.is_file() else None
