"""The socket of a run: its owner's alone, there while a compiler works, and no caller can hold it up for long."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcompile.control.client import PATH_BYTES, SOCKET, NoCompilerError, address, send
from agentcompile.control.commands import Approve, Command, Pause, Reply, Stop
from agentcompile.control.server import PATIENCE_S, Server
from agentcompile.errors import AgentCompileError, ExitCode


class Obeys:
    """Says yes, and remembers what it was asked; `slow_s` is how long it thinks."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.asked: list[Command] = []
        self.afterwards = 0
        self.slow_s = slow_s

    def __call__(self, command: Command) -> tuple[Reply, Callable[[], None]]:
        self.asked.append(command)
        time.sleep(self.slow_s)
        return Reply(ok=True, text=f"{command.kind} done"), self._after

    def _after(self) -> None:
        self.afterwards += 1


@pytest.fixture
def obeys() -> Obeys:
    return Obeys()


@pytest.fixture
def run(tmp_path: Path, obeys: Obeys) -> Iterator[Path]:
    path = tmp_path / "run"
    path.mkdir()
    with Server(path, obeys):
        yield path


def test_a_command_is_obeyed_and_answered(run: Path, obeys: Obeys) -> None:
    assert send(run, Pause()) == Reply(ok=True, text="pause done")
    assert send(run, Approve(region="r")).text == "approve done"
    assert obeys.asked == [Pause(), Approve(region="r")]
    until = time.monotonic() + 10
    while obeys.afterwards < 2 and time.monotonic() < until:  # what comes after an answer may come after it is heard
        time.sleep(0.01)
    assert obeys.afterwards == 2


def test_the_socket_is_its_owners_alone(run: Path) -> None:
    mode = (run / SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_socket_goes_with_the_compiler(tmp_path: Path, obeys: Obeys) -> None:
    with Server(tmp_path, obeys):
        assert (tmp_path / SOCKET).exists()
    assert not (tmp_path / SOCKET).exists()
    with pytest.raises(NoCompilerError, match="no compiler") as caught:
        send(tmp_path, Pause())
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert f"--run-dir {tmp_path}" in caught.value.hint


def test_the_socket_of_a_compiler_that_died_is_noticed_and_replaced(tmp_path: Path, obeys: Obeys) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / SOCKET))
    dead.close()
    with pytest.raises(NoCompilerError):
        send(tmp_path, Pause())
    with Server(tmp_path, obeys):
        assert send(tmp_path, Pause()).ok


def test_a_path_longer_than_the_system_takes_is_no_hindrance(tmp_path: Path, obeys: Obeys) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    assert len(str(deep / SOCKET)) > PATH_BYTES
    with Server(deep, obeys):
        assert (deep / SOCKET).exists()
        assert send(deep, Pause()).ok
        with address(deep) as path:
            assert len(path) <= PATH_BYTES


def told(run: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(run / SOCKET))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(65536)


@pytest.mark.parametrize("data", [b"hello\n", b"{}\n", b'{"kind":"stop"', b"\x00\xff\n", b'{"kind":"stop","x":1}\n'])
def test_what_is_no_command_is_answered_and_obeyed_by_nobody(run: Path, obeys: Obeys, data: bytes) -> None:
    assert b'"ok":false' in told(run, data)
    assert obeys.asked == []
    assert send(run, Pause()).ok


def test_a_caller_who_says_nothing_holds_others_up_for_a_moment_only(run: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(run / SOCKET))
        begin = time.monotonic()
        assert send(run, Pause(), timeout_s=PATIENCE_S + 20).ok
        assert time.monotonic() - begin < PATIENCE_S + 15


def test_a_caller_who_leaves_does_no_harm(run: Path) -> None:
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.connect(str(run / SOCKET))
            gone.sendall(b'{"kind":"pa')
    assert send(run, Stop(), timeout_s=20).ok


def test_a_compiler_that_does_not_answer_is_an_error_that_says_so(tmp_path: Path) -> None:
    with (
        Server(tmp_path, Obeys(slow_s=1.0)),
        pytest.raises(AgentCompileError, match=r"no reply within 0\.2 s") as caught,
    ):
        send(tmp_path, Pause(), timeout_s=0.2)
    assert not isinstance(caught.value, NoCompilerError)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_many_callers_at_once_are_all_answered(run: Path, obeys: Obeys) -> None:
    replies: list[Reply] = []
    callers = [threading.Thread(target=lambda: replies.append(send(run, Pause(), timeout_s=30))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [reply.ok for reply in replies] == [True] * 8
    assert len(obeys.asked) == 8
