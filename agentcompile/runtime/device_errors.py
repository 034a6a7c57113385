"""Errors of a CUDA device while a model is loaded or run, turned into errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from agentcompile.errors import AgentCompileError, ExitCode


@contextmanager
def on_device(what: str) -> Iterator[None]:
    """Turn GPU failures inside the `with` block into errors that name `what` was done; other exceptions pass through.

    Raises:
        AgentCompileError: the GPU is out of memory, or the device or its driver failed (environment).
        RuntimeError: any other error of PyTorch, passed through.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        text = f"{what}: the GPU is out of memory ({_first_line(error)})"
        hint = "close what else uses it (`agentcompile doctor` names it), or compile with a smaller --context"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    except RuntimeError as error:
        if "CUDA error" not in str(error) and "CUDA driver" not in str(error):
            raise
        text = f"{what}: the GPU failed ({_first_line(error)})"
        hint = "start again: a process cannot use a device on after such an error; `agentcompile doctor` shows it"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
