"""A task's file on disk: what names one, and its digest. Nothing of it is executed here; standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode

SUFFIX = ".py"
MAX_BYTES = 1 << 20
HINT = "name a .py file in KernelBench's format: Model, get_inputs, get_init_inputs"


def names_task(name: str) -> bool:
    """Return whether what somebody names, instead of a checkpoint, is a task's file."""
    return name.endswith(SUFFIX)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a task's file, in hexadecimal digits.

    Raises:
        AgentCompileError: it is no file of that kind, or too large (usage), or cannot be read (environment).
    """
    if not names_task(path.name):
        raise AgentCompileError(f"{path}: not a {SUFFIX} file", hint=HINT)
    if path.is_dir():
        raise AgentCompileError(f"{path}: a folder, and no file", hint=HINT)
    try:
        if not path.is_file():
            raise AgentCompileError(f"{path}: no such file", hint=HINT)
        if (size := path.stat().st_size) > MAX_BYTES:
            raise AgentCompileError(f"{path}: {size} bytes; a task has at most {MAX_BYTES}", hint=HINT)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        text = f"{path}: cannot be read: {error.strerror}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="make the file readable") from error
