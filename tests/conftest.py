"""Shared by every test: no network, repeatable property tests, nothing of the settings and data of who runs them."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import begun

if TYPE_CHECKING:
    from tests.templates.chunked import Workshop

TIMED = {"course", "moved", "gone_on"}
"""Fixtures that search with a clock: beside other work they would measure again and again what that disturbed."""

if "PYTEST_XDIST_WORKER" in os.environ:
    # Beside tests of other processes a second thread of PyTorch waits for its turn, and takes a processor to do so.
    os.environ |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}

# Hundreds of processes import the same modules, and each worker rewrites the same tests: once is enough, however a
# shell is set.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

COMPILERS = Path(__file__).with_name("cxx")
"""A folder whose `g++` remembers what it compiled."""
KEPT_S = 14 * 86_400.0
"""How long it does."""

# A GPU machine may have little beyond pytest and torch: what is missing there is not needed by the tests run there.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
    settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs a run that was timed is alone, too."""
    for item in items:
        if TIMED.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.alone)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no search for garbage need look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end everything goes: extensions complain of what is left."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: some tests wait for a terminal or a process."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """A file stays in one process, which makes its fixtures once; the templates' many builds are spread.

    They come in the order of their names: the last ones, `unit`, take seconds each, so that nobody waits for one.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file.startswith("tests/templates/") else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


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


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests: where they run in several processes, all of these have it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "common"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def sampled(common: Path) -> Path:
    """The home of all who compile the sample checkpoint, by command line or by keys, with one context and one thread:
    what one of them built and measured, whoever comes first, the others need not."""
    return common / "sampled"


@pytest.fixture
def process_itself() -> Iterator[None]:
    """Every process is started, and none is forked from one that has begun."""
    begun.remove()
    yield
    begun.install()


@pytest.fixture(scope="module")
def processes_themselves() -> Iterator[None]:
    """The same for all tests of a file."""
    begun.remove()
    yield
    begun.install()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A store for the kernels of a file, and what builds and launches them."""
    from tests.templates.chunked import Workshop  # imports PyTorch

    return Workshop(tmp_path_factory.mktemp("store"))


@pytest.fixture
def compiler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was compiled before is taken for what the compiler makes."""
    monkeypatch.delenv("CXX_KEPT", raising=False)


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted: what a shell starts in the background ignores SIGINT, and would pass that on. And
    let all of them, of this run of the tests and of the next, compile a text once."""
    real, cache = shutil.which("g++"), getattr(config, "cache", None)
    if real and cache and "CXX_KEPT" not in os.environ:
        version = subprocess.run([real, "--version"], capture_output=True, text=True, check=True).stdout
        kept = cache.mkdir("cxx")
        for path in kept.iterdir():
            if path.stat().st_mtime < time.time() - KEPT_S:
                path.unlink()
        os.environ |= {"CXX_REAL": real, "CXX_KNOWN": version, "CXX_KEPT": str(kept)}
        os.environ["PATH"] = f"{COMPILERS}:{os.environ['PATH']}"
    if cache and "CAPTURES_KEPT" not in os.environ:
        kept = cache.mkdir("captures")
        for path in kept.iterdir():
            if path.stat().st_mtime < time.time() - KEPT_S:
                shutil.rmtree(path)
        os.environ["CAPTURES_KEPT"] = str(kept)
    if importlib.util.find_spec("torch"):
        begun.install()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
