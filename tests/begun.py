"""Python processes that begin with PyTorch imported: hundreds of tests start one, and to import it takes seconds.

In: `subprocess.Popen` of a process that this project starts (`WITH_TORCH`). Out: a child of the same process, with the
same number, pipes, folder, variables and signals, but forked from one that has imported what all of them import. Any
other command, and one whose environment says something else to Python or to numeric libraries, is started as ever. What
the kernel tells of a process from its execution (its command line, its first environment) is that of the other one: a
test that looks there names the `executable`, and so does one of how processes begin.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = tuple(str(ROOT / "agentcompile" / part / "__main__.py") for part in ("worker", "tasks"))
WITH_TORCH = (
    *(("-P", entry) for entry in ENTRIES),
    *(("-m", "agentcompile", verb) for verb in ("compile", "replay", "generate", "advise", "refine")),
    ("-m", "agentcompile", "bench", "refine"),
)  # fmt: skip
"""How the commands begin, after the interpreter; the app and other verbs may not import it."""
IMPORTED = (
    "torch", "sympy", "torch.fx.experimental.symbolic_shapes", "agentcompile.validate",
    "agentcompile.worker.zygote", "agentcompile.worker.timing", "agentcompile.worker.ceiling",
    "agentcompile.tasks.host", "agentcompile.tasks.runner", "agentcompile.cli.main", "agentcompile.cli.compiling",
    "agentcompile.pipeline", "agentcompile.capture.huggingface", "torch.export._trace",
    "torch.fx.experimental.validator", "transformers.models.auto.modeling_auto",
    "transformers.models.qwen3.modeling_qwen3", "transformers.models.llama.modeling_llama",
)  # fmt: skip
READ_AT_START = (
    "PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "CUDA", "TRITON", "HF_", "MALLOC_", "GLIBC_"
)  # fmt: skip
"""How variables begin that are read once, when a process starts or imports something."""
HARMLESS = {"PYTHONUNBUFFERED": None, "PYTHONDONTWRITEBYTECODE": None, "PYTHONPATH": str(ROOT / "tests/cpu/no_network")}
"""Those of Python that may be there: with any text, or with this one, which forbids what may be forbidden early."""
_MESSAGE_BYTES = 1 << 18
_PR_SET_CHILD_SUBREAPER = 36
_FILE = Path(__file__).resolve()
_started = subprocess.Popen
_lock = threading.Lock()
_sources: dict[tuple[int, tuple[tuple[str, str], ...]], socket.socket] = {}
"""Ends of the sockets to the processes that are forked, by the process that asks and what they read at their start."""
_running: list[subprocess.Popen[bytes]] = []
"""Those that this process started."""


def _key(env: Mapping[str, str]) -> tuple[int, tuple[tuple[str, str], ...]]:
    return os.getpid(), tuple(sorted((name, text) for name, text in env.items() if name.startswith(READ_AT_START)))


def _source(env: Mapping[str, str]) -> socket.socket:
    """The socket to a process that has this environment, which is started if there is none."""
    key = _key(env)
    if key not in _sources:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nobodys = {name: text for name, text in env.items() if not name.startswith("AGENTCOMPILE_")}
        _running.append(_started([sys.executable, str(_FILE)], stdin=theirs.fileno(), env=nobodys, cwd=ROOT))
        theirs.close()
        _sources[key] = ours
    return _sources[key]


@atexit.register
def _end() -> None:
    """End what this process started to fork from."""
    own = [source for (pid, _), source in _sources.items() if pid == os.getpid()]
    for source in own:  # all of them, before any is waited for: it ends with its socket
        source.close()
    while own and _running:
        _running.pop().wait()


def _adopting(adopts: bool) -> None:
    """Let orphans of our children be our children; only while a process is forked for us."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, for which processes with PyTorch are forked."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
        errread: int, errwrite: int, restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
        start_new_session: bool, process_group: Any,
    ) -> None:  # fmt: skip
        usual = not (shell or pass_fds) and close_fds and restore_signals and process_group == -1 and umask == -1
        plain = executable is preexec_fn is gid is gids is uid is None
        whole = {**os.environ} if env is None else {os.fsdecode(name): os.fsdecode(text) for name, text in env.items()}
        words = [os.fsdecode(word) for word in args] if isinstance(args, Sequence) and not isinstance(args, str) else []
        pid = 0
        if usual and plain and forked(words, whole) and (cwd is None or Path(cwd).is_dir()):
            job = {
                "words": words[1:], "env": whole, "cwd": str(Path(cwd or "").absolute()),
                "session": start_new_session, "parent": os.getpid(),
            }  # fmt: skip
            pid = _fork(job, [one if one != -1 else own for own, one in enumerate((p2cread, c2pwrite, errwrite))])
        if not pid:
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, p2cread,
                p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
                start_new_session, process_group,
            )  # fmt: skip
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def _fork(job: dict[str, Any], files: list[int]) -> int:
    """Fork a process for a job with these standard streams; return its number, 0 where none can be forked."""
    env = job["env"]
    with _lock:
        source = _source(env)
        _adopting(True)
        try:
            socket.send_fds(source, [json.dumps(job).encode()], files)
            return int(source.recv(64))
        except (OSError, ValueError):  # it could not import what it forks with: this environment is another
            _sources.pop(_key(env)).close()
            return 0
        finally:
            _adopting(False)


def forked(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command with these variables is one for which a process is forked."""
    if words[:1] != [sys.executable] or not any(tuple(words[1 : 1 + len(some)]) == some for some in WITH_TORCH):
        return False
    told = {name: text for name, text in env.items() if name.startswith("PYTHON")}
    return all(name in HARMLESS and HARMLESS[name] in (None, text) for name, text in told.items())


def install() -> None:
    """From now on processes with PyTorch are forked for this one."""
    subprocess.Popen = Popen  # type: ignore[misc]


def remove() -> None:
    """Start every process as ever."""
    subprocess.Popen = _started  # type: ignore[misc]


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork a process for each job that comes; return the job in that one."""
    while True:
        message, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        told, tells = os.pipe()
        if middle := os.fork():
            os.close(tells)
            number = os.read(told, 64)
            os.close(told)
            os.waitpid(middle, 0)  # whoever asked is the parent now
            for file in files:
                os.close(file)
            control.send(number)
            continue
        between = os.getpid()
        if number := os.fork():
            os.write(tells, str(number).encode())
            os._exit(0)
        os.close(told)
        os.close(tells)
        control.close()
        while os.getppid() == between:
            time.sleep(0.0005)
        job: dict[str, Any] = json.loads(message)
        if os.getppid() != job["parent"]:
            os._exit(1)
        _become(job, files)
        return job


def _become(job: Mapping[str, Any], files: Sequence[int]) -> None:
    """Take over files, folder and variables as one that was started."""
    if job["session"]:
        os.setsid()
    high = [os.dup(file) for file in files]  # above the three that are overwritten
    for at, file in enumerate(high):
        os.dup2(file, at)
    for file in (*files, *high):
        os.close(file)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # type: ignore[misc]  # noqa: SIM115


def _own_source() -> None:
    """Leave a copy of this process behind, from which those that it starts itself are forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        _sources[_key(os.environ)] = ours
        install()
        return
    ours.close()
    null = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(null, file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _run(_serve(theirs))


def _run(job: Mapping[str, Any]) -> NoReturn:
    """Run the job's words, and end as an interpreter does, but for the teardown of all that is imported."""
    code = 0
    try:
        _called(*job["words"], cwd=job["cwd"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - said as an interpreter says it
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _called(switch: str, name: str, *rest: str, cwd: str) -> None:
    sys.argv = [name, *rest]
    if switch == "-m":
        _own_source()
        sys.path.insert(0, cwd)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def main() -> None:
    """Import, and fork until the socket at descriptor 0 ends."""
    from agentcompile.worker.zygote import control_socket

    control = control_socket()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _run(_serve(control))


if __name__ == "__main__":
    sys.path.pop(0)
    main()
