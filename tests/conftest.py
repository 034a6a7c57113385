"""Shared by every test: repeatable property tests, and no settings or data folders of the person who runs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data and settings in a folder of the test's own."""
    for name in [name for name in os.environ if name.startswith("AGENTCOMPILE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return Path(__file__).resolve().parent.parent
