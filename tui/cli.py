"""`agentcompile tui`: an entry point of the group ``agentcompile.verbs``."""

from __future__ import annotations

from collections.abc import Sequence

from agentcompile.errors import AgentCompileError, ExitCode


def run(arguments: Sequence[str]) -> int:
    """Say that the terminal app is not there yet, and which command shows the same facts; returns an exit code."""
    raise AgentCompileError(
        f"agentcompile tui{''.join(f' {a}' for a in arguments)}: the terminal app is not built yet",
        exit_code=ExitCode.USAGE,
        hint="`agentcompile compile` shows progress, `agentcompile runs status` a past or present run",
    )
