"""Shared by every test: no network, repeatable property tests, nothing of the settings and data of who runs them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FLOW = ("test_flow", "test_faults", "test_generate")
"""Files whose tests share one warm store and a few compiled locks."""

# A GPU machine may have little beyond pytest and torch: what is missing there is not needed by the tests run there.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
    settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, tests that share what is dear to make run in one of them; templates spread over all."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        name = item.path.name
        if name != "test_templates_cpu.py":
            group = "flow" if name.startswith(FLOW) else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def _sockets_closed() -> Iterator[None]:
    """Loopback and Unix sockets alone."""
    if not importlib.util.find_spec("pytest_socket"):
        yield
        return
    import pytest_socket

    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)
    yield
    pytest_socket._remove_restrictions()


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
