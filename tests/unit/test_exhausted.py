"""Memory and disk that ran out: told by errors and by logs, and never seen where nothing did."""

from __future__ import annotations

import errno

import pytest
import torch

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.system.exhausted import enough, exhausted, lacking, named


def test_the_hosts_memory_is_told_by_what_pytorch_and_python_raise() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert exhausted(caught.value) == "host"
    assert exhausted(MemoryError()) == "host"


def test_the_gpus_memory_is_told_also_where_another_error_came_of_it() -> None:
    error = AgentCompileError("loading x failed")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    assert exhausted(error) == "gpu"
    assert exhausted(RuntimeError("CUDA error: out of memory")) == "gpu"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_no_memory(number: int) -> None:
    assert exhausted(OSError(number, "no")) == "disk"


def test_other_errors_are_nothing_that_ran_out() -> None:
    for error in (
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("memory"),
        OSError(),
    ):
        assert exhausted(error) is None
    assert named("Segmentation fault") is None
    with pytest.raises(ValueError, match="shape"), enough("x"):
        raise ValueError("shape")


@pytest.mark.parametrize(("resource", "names"), [("host", "memory is"), ("gpu", "GPU's memory"), ("disk", "TMPDIR")])
def test_the_error_names_what_ran_out_and_what_to_do(resource: str, names: str) -> None:
    error = lacking("checking x", resource, "tried to allocate 3 bytes")  # type: ignore[arg-type]
    assert error.exit_code is ExitCode.ENVIRONMENT
    assert "tried to allocate 3 bytes" in error.message
    assert names in error.hint
