"""A run that goes on: which one it is, and the options that it was started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode
from agentcompile.options import Options
from agentcompile.runs import session

Spelled = Callable[[str], str]
"""Returns a setting's name as the caller writes it, such as ``--run-dir``."""


def run_to_resume(options: Options, flags: Mapping[str, object], spelled: Spelled) -> session.RunDirectory:
    """Return the run to resume: the one that `options` name, or the newest of their model that has not finished.

    Raises:
        AgentCompileError: there is none, or it cannot be read (usage).
    """
    if options.run_dir:
        return session.RunDirectory.open(session.standing(options.runs, options.run_dir))
    for path in reversed(session.runs_in(options.runs)):
        run = session.RunDirectory(path)
        with suppress(AgentCompileError):  # a run of another version cannot be resumed
            same = not flags.get("model") or stored_options(run).model == options.model
            if same and run.state().status != "finished" and not run.alive():
                return run
    hint = f"`agentcompile runs list` names the runs; {spelled('run_dir')} takes one"
    raise AgentCompileError(f"{spelled('resume')}: no unfinished run", hint=hint)


def stored_options(run: session.RunDirectory) -> Options:
    """Return the options that the run was started with.

    Raises:
        AgentCompileError: this version does not understand them (usage).
    """
    try:
        stored: Options = decode(Options, run.options(), "options")
    except CodecError as error:
        raise AgentCompileError(
            f"{run.path / session.OPTIONS}: {error}", hint="start the run again in another folder"
        ) from error
    return stored


def resumed_options(
    run: session.RunDirectory, asked: Options, flags: Mapping[str, object], spelled: Spelled
) -> Options:
    """Return the run's own options, with what may change: whether its lock waits for a person.

    Raises:
        AgentCompileError: one of `flags` differs, and the trials were made with the old value (usage).
    """
    stored = stored_options(run)
    for name, value in flags.items():
        if value is not None and name not in ("run_dir", "review") and getattr(asked, name) != getattr(stored, name):
            raise AgentCompileError(
                f"{spelled(name)}: {getattr(asked, name)!r}, but the run to resume has {getattr(stored, name)!r}",
                hint="leave it out, or start a new run: what was measured is reused from the database",
            )
    return replace(stored, review=stored.review or asked.review)
