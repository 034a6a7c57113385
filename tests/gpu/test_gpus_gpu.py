"""What NVML says of this machine's devices, beside what PyTorch says of them."""

from __future__ import annotations

import pytest
import torch

from agentcompile.cli.doctor import cuda_rows, find_cuda
from agentcompile.system.gpus import Driver, find_driver

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def driver() -> Driver:
    found = find_driver()
    assert found is not None
    assert not found.problem
    return found


def test_the_driver_tells_its_version_and_a_cuda_that_runs_pytorch(driver: Driver) -> None:
    assert driver.version.split(".")[0].isdigit()
    assert driver.cuda is not None
    assert torch.version.cuda is not None
    assert driver.cuda[0] >= int(torch.version.cuda.split(".")[0])


def test_pytorchs_first_device_is_among_the_drivers(driver: Driver) -> None:
    found = torch.cuda.get_device_properties(0)
    assert driver.gpus is not None
    same = [gpu for gpu in driver.gpus if gpu.name == found.name]
    assert same
    for gpu in same:
        assert gpu.capability == (found.major, found.minor)
        assert gpu.memory_bytes is not None
        assert gpu.free_bytes is not None
        # The driver keeps part of the memory for itself.
        assert 0.9 * gpu.memory_bytes <= found.total_memory <= gpu.memory_bytes
        assert 0 <= gpu.free_bytes <= gpu.memory_bytes
        assert gpu.clock_mhz is not None
        assert gpu.most_clock_mhz is not None
        assert 0 < gpu.clock_mhz <= gpu.most_clock_mhz


def test_a_machine_that_computes_lacks_nothing() -> None:
    torch.ones(1, device="cuda")
    assert [row for row in cuda_rows(find_cuda()) if row.state == "missing"] == []
