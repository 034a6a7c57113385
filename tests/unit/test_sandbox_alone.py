"""A process that confines itself: with namespaces and without, it keeps its scratch, and what it lacks it says."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.sandbox import WallTimeExceeded, apart, confine, for_worker, methods, namespaces, require

pytestmark = pytest.mark.skipif(
    not all(method.works for method in methods()), reason="; ".join(method.problem for method in methods())
)


def said(work: Callable[[], object]) -> str:
    """The error that a call ends with; "worked" for none."""
    try:
        work()
    except OSError as error:
        return str(error.strerror)
    return "worked"


def looked(folder: Path, secret: Path) -> Callable[[], None]:
    """Work that notes in its scratch what it may do."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p

    def work() -> None:
        found = {
            "reads": said(secret.read_bytes),
            "writes": said(lambda: secret.with_name("new").write_bytes(b"")),
            "forks": said(os.fork),
            "signals": said(lambda: os.kill(1, 0)),
            "key": "PLANTED_API_KEY" in os.environ,
            "devices": ctypes.string_at(getenv(b"CUDA_VISIBLE_DEVICES")).decode(),
            "environ": "PLANTED_API_KEY" in Path("/proc/self/environ").read_text(encoding="utf-8"),
            "rights": next(line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line),
        }
        (folder / "found").write_text(json.dumps(found), encoding="utf-8")

    return work


@pytest.mark.parametrize("own", [True, False], ids=["namespaces", "no namespaces"])
def test_a_process_is_confined_with_namespaces_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    secret, folder = tmp_path / "outside" / "secret", tmp_path / "scratch"
    for path in (secret.parent, folder):
        path.mkdir()
    secret.write_bytes(b"secret")
    monkeypatch.setenv("PLANTED_API_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    if not own:

        def refused(kinds: int) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(namespaces, "enter", refused)
    assert apart(looked(folder, secret), for_worker(writable=[folder])) == 0
    found = json.loads((folder / "found").read_text(encoding="utf-8"))
    rights = int(found.pop("rights").split()[1], 16)
    assert rights & ~0b110 == 0  # at most those to reach root's files, in a namespace
    assert found == {
        "reads": "Permission denied",
        "writes": "Permission denied",
        "forks": "Operation not permitted",
        "signals": "Operation not permitted",
        "key": False,
        "devices": "3,1",
        "environ": False,
    }


def test_an_error_of_the_work_is_its_status_and_not_the_caller_s(tmp_path: Path) -> None:
    assert apart(lambda: 1 / 0, for_worker(writable=[tmp_path])) == 1
    assert apart(lambda: os.kill(os.getpid(), signal.SIGTERM), for_worker(writable=[tmp_path])) == -signal.SIGTERM
    assert apart(lambda: os._exit(7), for_worker(writable=[tmp_path])) == 7


def test_work_without_end_is_ended(tmp_path: Path) -> None:
    begin = time.monotonic()
    fence = replace(for_worker(writable=[tmp_path]), wall_s=0.3)
    assert apart(lambda: time.sleep(60), fence) == WallTimeExceeded(limit_s=0.3)
    assert time.monotonic() - begin < 10


def test_work_that_fills_its_scratch_is_ended(tmp_path: Path) -> None:
    def work() -> None:
        for number in range(64):
            (tmp_path / str(number)).write_bytes(b"x" * 65536)
            time.sleep(0.02)

    fence = replace(for_worker(writable=[tmp_path]), disk_bytes=1 << 20)
    assert apart(work, fence) == -signal.SIGXFSZ
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 << 20


def test_threads_count_with_processes(tmp_path: Path) -> None:
    def work() -> None:
        stop, made = threading.Event(), list[threading.Thread]()
        try:
            while len(made) < 100:
                made.append(threading.Thread(target=stop.wait, daemon=True))
                made[-1].start()
        except RuntimeError:
            (tmp_path / "made").write_text(str(len(made)), encoding="ascii")

    assert apart(work, replace(for_worker(writable=[tmp_path]), processes=16)) == 0
    assert int((tmp_path / "made").read_text(encoding="ascii")) <= 16


def test_a_process_with_other_threads_is_not_half_confined() -> None:
    child = os.fork()
    if child == 0:
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        try:
            confine(for_worker())
        except AssertionError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_machine_without_the_methods_is_refused_loudly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require()
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    for attempt in (require, lambda: apart(lambda: None, for_worker(writable=[tmp_path]))):
        with pytest.raises(AgentCompileError, match=r"cannot be confined .*landlock: .*; seccomp: ") as caught:
            attempt()
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
        assert "--unsafe" in caught.value.hint
