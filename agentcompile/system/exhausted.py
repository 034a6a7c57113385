"""Memory or disk that ran out while a whole model is checked: which of them it was, and what a user can do about it.

PyTorch raises a plain RuntimeError when the host's memory runs out, which is recognised by the words of its message.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from agentcompile.errors import AgentCompileError, ExitCode

Resource = Literal["host", "gpu", "disk"]
_WORDS: tuple[tuple[str, Resource], ...] = (
    ("cuda out of memory", "gpu"),
    ("gpu is out of memory", "gpu"),
    ("cuda error: out of memory", "gpu"),
    ("cuda_error_out_of_memory", "gpu"),
    ("cublas_status_alloc_failed", "gpu"),
    ("can't allocate memory", "host"),
    ("cannot allocate memory", "host"),
    ("not enough memory", "host"),
    ("bad_alloc", "host"),
    ("no space left on device", "disk"),
)
"""Words of libraries' messages in lower case, with the resource; a GPU's come first, as they contain general ones."""


def exhausted(error: BaseException) -> Resource | None:
    """Return the resource that ran out, by an error and its causes; None when no resource did."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return None
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return "disk"
        if (found := named(str(seen))) is not None:
            return found
        if isinstance(seen, MemoryError):
            return "host"
        seen = seen.__cause__ or seen.__context__
    return None


def named(text: str) -> Resource | None:
    """Return the resource that ran out, by the words of a message or a log; None when it names none."""
    lower = text.lower()
    return next((resource for words, resource in _WORDS if words in lower), None)


def lacking(what: str, resource: Resource, detail: str) -> AgentCompileError:
    """Return the error (environment) that says that `what` ran out of `resource`, with a hint and `detail`."""
    hints = {
        "host": f"the machine's memory is {_physical_gigabytes():.1f} GB: end what else uses it, or compile with a "
        "smaller --context, then run again: acknowledged trials are kept",
        "gpu": "the GPU's memory: end what else uses it (`agentcompile doctor` names it), or compile with a smaller "
        "--context, then run again: acknowledged trials are kept",
        "disk": "free space where temporary files go (TMPDIR), then run again: acknowledged trials are kept",
    }
    names = {"host": "the machine is out of memory", "gpu": "the GPU is out of memory", "disk": "the disk is full"}
    text = f"{what}: {names[resource]} ({detail[:200]})" if detail else f"{what}: {names[resource]}"
    return AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hints[resource])


@contextmanager
def enough(what: str) -> Iterator[None]:
    """Run the body, work that needs much memory or disk and that `what` names; other errors pass through.

    Raises:
        AgentCompileError: memory or disk ran out in the body (environment).
    """  # noqa: DOC501
    try:
        yield
    except Exception as error:
        if (resource := exhausted(error)) is None:
            raise
        raise lacking(what, resource, first_line(error)) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name when it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _physical_gigabytes() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
