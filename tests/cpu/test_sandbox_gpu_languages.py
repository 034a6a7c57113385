"""CUDA C++ and Triton are compiled in a fork behind a fence: the same code, and nothing else is reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentcompile.build import Binary, compile
from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import BuildFailed, Disturbed, TimedOut
from agentcompile.sandbox import methods
from agentcompile.system.store import Store

pytestmark = pytest.mark.skipif(
    not all(method.works for method in methods()), reason="; ".join(method.problem for method in methods())
)
TOOLCHAIN = Toolchain(compiler="", name="none")
FLAGS = ("--gpu-architecture=sm_90",)
CUDA = """
struct args { const float* x; float* y; };
extern "C" __global__ void twice(const __grid_constant__ args a) { a.y[threadIdx.x] = 2 * a.x[threadIdx.x]; }
"""
TRITON = """
import triton
import triton.language as tl
twice_args = {"x": "*fp32", "y": "*fp32"}
@triton.jit
def twice(x, y):
    tl.store(y, 2 * tl.load(x))
"""


def source(language: str, text: str) -> Source:
    launch = Launch(entry="twice", arguments=("x", "y"), grid=("1",), block=("32",))
    return Source(language=language, text=text, launches=(launch,), workspaces=(), flags=FLAGS)  # type: ignore[arg-type]


def built(
    folder: Path, language: str, text: str, *, fenced: bool, limit_s: float = 60
) -> Binary | BuildFailed | TimedOut | Disturbed:
    return compile(source(language, text), Store(folder), toolchain=TOOLCHAIN, limit_s=limit_s, fenced=fenced)


@pytest.mark.parametrize(("language", "text"), [("cuda", CUDA), ("triton", TRITON)])
def test_the_code_is_the_same_on_both_sides(tmp_path: Path, language: str, text: str) -> None:
    fenced, plain = (built(tmp_path / str(fenced), language, text, fenced=fenced) for fenced in (True, False))
    assert isinstance(fenced, Binary), fenced
    assert isinstance(plain, Binary), plain
    assert fenced.digest == plain.digest


def test_a_cuda_text_reads_no_file_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("planted secret\n", encoding="ascii")
    text = f'#include "{tmp_path}/secret"\n{CUDA}'
    plain = built(tmp_path / "p", "cuda", text, fenced=False)
    assert isinstance(plain, BuildFailed)
    assert "planted" in plain.log
    fenced = built(tmp_path / "f", "cuda", text, fenced=True)
    assert isinstance(fenced, BuildFailed)
    assert "could not open source file" in fenced.log or "Permission denied" in fenced.log, fenced.log
    assert "planted secret" not in fenced.log.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("open('{outside}/secret').close()", "Permission denied"),
        ("open('{outside}/new', 'w').close()", "Permission denied"),
        ("import socket; socket.socket().close()", "Operation not permitted"),
        ("import subprocess; subprocess.run(['/bin/sh', '-c', ':'], check=True)", "Permission denied"),
        ("import os; os.kill(os.getppid(), 0)", "Operation not permitted"),
    ],
)
def test_a_python_text_reaches_nothing_outside(tmp_path: Path, line: str, word: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("planted", encoding="ascii")
    text = line.format(outside=outside) + "\n" + TRITON
    assert isinstance(built(tmp_path / "p", "triton", text, fenced=False), Binary)
    (outside / "new").unlink(missing_ok=True)
    found = built(tmp_path / "f", "triton", text, fenced=True)
    assert isinstance(found, BuildFailed), found
    assert word in found.log
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_python_text_that_leaves_children_behind_is_ended_with_them(tmp_path: Path) -> None:
    left = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(20)\n"
    found = built(tmp_path, "triton", left + "        os._exit(0)\n" + TRITON, fenced=True)
    assert isinstance(found, Binary), found
    assert forks() == {os.getpid()}


def forks() -> set[int]:
    """This process and what was forked from it: they have one command line."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == Path("/proc/self/cmdline").read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_python_text_without_end_has_timed_out(tmp_path: Path) -> None:
    found = built(tmp_path, "triton", "while True:\n    pass\n", fenced=True, limit_s=1.0)
    assert found == TimedOut(stage="build", limit_s=1.0)
