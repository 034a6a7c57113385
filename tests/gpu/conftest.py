"""What the tests on a device share: a tiny checkpoint, compiled for it once.

Side by side (`just gpu -n 8 --dist loadgroup`) each template's test goes to any process, everything else to one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentcompile.bench.models.presets import materialise

from agentcompile.lockfile.schema import Lock
from agentcompile.options import Options, resolve
from agentcompile.pipeline import compile_model

CONTEXT = 96


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name != "test_templates_gpu.py":
            item.add_marker(pytest.mark.xdist_group("device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """A process whose device has failed can test nothing any more: it ends, and another takes its place."""
    done = yield
    if "PYTEST_XDIST_WORKER" in os.environ and item.get_closest_marker("gpu") and _lost():
        os._exit(1)
    return done


def _lost() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Options:
    home = tmp_path_factory.mktemp("home")
    model = materialise("tiny-qwen3", home / "model")
    flags = {
        "model": str(model),
        "home": str(home),
        "target": "cuda:0",
        "context": CONTEXT,
        "budget": 30,
        "seconds": 30,
        "out": str(home / "tiny.lock.toml"),
    }
    return resolve(flags, environ={}).options


@pytest.fixture(scope="session")
def lock(settings: Options) -> Lock:
    return compile_model(settings)


@pytest.fixture(scope="session")
def lock_file(settings: Options, lock: Lock) -> Path:
    return Path(settings.out)
