"""What the tests on a device share: a tiny checkpoint, compiled for it once."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentcompile.bench.models.presets import materialise

from agentcompile.lockfile import Lock
from agentcompile.options import Options, resolve
from agentcompile.pipeline import compile_model

CONTEXT = 96


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
