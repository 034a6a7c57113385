"""Sources and flags that attack while they are built: a compiler behind its fence reaches its own files alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentcompile.build import Binary, compile
from agentcompile.build.cxx import read_made
from agentcompile.build.toolchain import Toolchain
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.evaluator import Prepared, WorkerEvaluator
from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import BuildFailed
from agentcompile.sandbox import Run, WallTimeExceeded, for_build, for_worker, methods, run
from agentcompile.system.store import Store
from tests.cpu import jobs

SECRET = "a-secret-that-nobody-may-read"

pytestmark = pytest.mark.skipif(
    not all(method.works for method in methods()), reason="; ".join(method.problem for method in methods())
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an attack aims, and the tools that it brings."""

    outside: Path
    plugin: Path

    def built(self, folder: Path, text: str, *flags: str, fenced: bool) -> Binary | BuildFailed:
        launches = (Launch(entry="kernel", arguments=()),)
        source = Source(language="cpp", text=text, launches=launches, workspaces=(), flags=flags)
        made = compile(source, Store(folder), toolchain=toolchain(), limit_s=60, fenced=fenced)
        assert isinstance(made, (Binary, BuildFailed)), made
        return made

    def said(self, folder: Path, text: str, *flags: str, fenced: bool) -> str:
        """The compiler's words, or what the binary holds."""
        made = self.built(folder, text, *flags, fenced=fenced)
        return made.log if isinstance(made, BuildFailed) else Path(made.path).read_bytes().decode("latin-1")


def toolchain() -> Toolchain:
    """The compiler itself: what stands before it in tests is a script that writes to a folder of its own."""
    return jobs.toolchain(os.environ.get("CXX_REAL", ""))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("builds")
    made = Place(outside=root / "outside", plugin=root / "plugin.so")
    made.outside.mkdir()
    (made.outside / "secret").write_text(f"{SECRET}\n", encoding="ascii")
    go = f'fclose(fopen("{made.outside}/plug", "w"));'
    code = f"#include <cstdio>\n__attribute__((constructor)) static void go() {{ {go} }}"
    (root / "plugin.cpp").write_text(code, encoding="utf-8")
    command = [toolchain().compiler, "-shared", "-fPIC", "plugin.cpp", "-o", "plugin.so"]
    subprocess.run(command, cwd=root, check=True, timeout=60)
    script = root / "tools" / "as"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ntouch {made.outside}/as\nexec as "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_API_KEY", SECRET)
        yield made


KERNEL = 'extern "C" void kernel(const void*, int, int) {}\n'


@pytest.mark.parametrize(
    "line",
    [
        '#include "{outside}/secret"',
        'asm(".incbin \\"{outside}/secret\\"");',
        'asm(".include \\"{outside}/secret\\"");',
        '#include "../../outside/secret"',
    ],
)
def test_a_source_reads_no_file_outside(place: Place, tmp_path: Path, line: str) -> None:
    if "../" in line:
        line = line.replace("../../outside", os.path.relpath(place.outside, tmp_path / "f" / ".work-12345678"))
    text = KERNEL + line.format(outside=place.outside) + "\n"
    assert SECRET in place.said(tmp_path / "p", text.replace("/f/", "/p/"), fenced=False)
    said = place.said(tmp_path / "f", text, fenced=True)
    assert SECRET not in said
    assert "Permission denied" in said or "can't open" in said or "file not found" in said, said


def test_a_source_reads_no_environment(place: Place, tmp_path: Path) -> None:
    text = KERNEL + 'asm(".include \\"/proc/self/environ\\"");\n'
    assert "/proc/self/environ: Assembler messages" in place.said(tmp_path / "p", text, fenced=False)
    said = place.said(tmp_path / "f", text, fenced=True)
    assert "can't open /proc/self/environ for reading: Permission denied" in said
    shown = shutil.which("env")
    assert shown is not None
    fence = for_build(toolchain().compiler, tmp_path)
    ended = run([shown], replace(fence, executable=(*fence.executable, shown)), folder=tmp_path)
    assert isinstance(ended, Run)
    assert b"PATH=" in ended.log
    assert SECRET.encode() not in ended.log


def test_a_source_learns_nothing_of_the_system_s_accounts(place: Place, tmp_path: Path) -> None:
    assert "root:" in place.said(tmp_path / "p", '#include "/etc/passwd"\n', fenced=False)
    said = place.said(tmp_path / "f", '#include "/etc/passwd"\n', fenced=True)
    assert "Permission denied" in said
    assert "root:" not in said


@pytest.mark.parametrize(
    ("flags", "trace"),
    [
        (("-fplugin={plugin}",), "plug"),
        (("-B{tools}",), "as"),
        (("-wrapper", "/bin/sh,{tools}/as"), "as"),
        (("-fdump-tree-original={outside}/dump",), "dump"),
        (("-save-temps=obj", "-dumpdir", "{outside}/temp-"), "temp-kernel.s"),
    ],
)
def test_flags_start_no_program_and_write_no_file_outside(
    place: Place, tmp_path: Path, flags: tuple[str, ...], trace: str
) -> None:
    tools = place.plugin.parent / "tools"
    named = tuple(flag.format(plugin=place.plugin, tools=tools, outside=place.outside) for flag in flags)
    left = place.outside / trace
    left.unlink(missing_ok=True)
    place.built(tmp_path / "f", KERNEL, *named, fenced=True)
    assert not left.exists()
    place.built(tmp_path / "p", KERNEL, *named, fenced=False)
    assert left.exists()


def test_a_build_that_makes_a_file_too_large_fails(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text('asm(".fill 4194304, 1, 1");\n', encoding="ascii")
    compiler = toolchain().compiler
    fence = for_build(compiler, tmp_path)
    command = [compiler, "-c", "-pipe", "k.cpp", "-o", "k.o"]
    assert run(command, fence, folder=tmp_path) == Run(status=0, log=b"")
    (tmp_path / "k.o").unlink()
    ended = run(command, replace(fence, file_bytes=1 << 20), folder=tmp_path)
    assert isinstance(ended, Run)
    assert ended.status != 0
    assert not (tmp_path / "k.o").exists() or (tmp_path / "k.o").stat().st_size <= 1 << 20


def test_a_build_that_fills_its_scratch_is_killed(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x" * (1 << 20))
    command = endless(tmp_path)
    fence = replace(for_build(command[0], tmp_path), disk_bytes=1 << 16, memory_bytes=512 << 20)
    ended = run(command, fence, folder=tmp_path)
    assert isinstance(ended, Run)
    assert ended.status == -signal.SIGXFSZ


CLANG = ["-fconstexpr-steps=4294967295"]
OTHERS = ["-fconstexpr-loop-limit=2147483647", "-fconstexpr-ops-limit=9000000000000"]
"""The flags with which a compiler calculates for so long."""


def endless(folder: Path) -> list[str]:
    """A command whose compiler calculates for hours, in memory that hardly grows."""
    inner = "for (unsigned long j = 0; j < 100000; ++j) x = x * 3 + j;"
    outer = f"unsigned long x = 1; for (unsigned long i = 0; i < n; ++i) {inner}"
    text = f"constexpr unsigned long f(unsigned long n) {{ {outer} return x; }}\nstatic_assert(f(100000) != 1);\n"
    (folder / "k.cpp").write_text(text, encoding="ascii")
    compiler = toolchain().compiler
    clang = "clang" in subprocess.check_output([compiler, "--version"], text=True)
    return [compiler, *(CLANG if clang else OTHERS), "-c", "k.cpp", "-o", "k.o"]


def bomb() -> str:
    """A text that takes a compiler all memory that it is given: gigabytes in a second."""
    lines = ["#define A0 x = x * 3 + 1;", *(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}" for n in range(1, 16))]
    return "\n".join([*lines, "int f(int x) { A15 return x; }", ""])


def test_a_build_without_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    command = endless(tmp_path)
    fence = replace(for_build(command[0], tmp_path), wall_s=0.5, memory_bytes=512 << 20)
    begin = time.monotonic()
    assert run(command, fence, folder=tmp_path) == WallTimeExceeded(limit_s=0.5)
    assert time.monotonic() - begin < 5.0
    time.sleep(0.1)
    assert str(tmp_path) not in working()


def working() -> set[str]:
    """The working directories of all processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found.add(str(path.readlink()))
        except OSError:
            continue
    return found


def test_a_build_over_its_memory_fails(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text(bomb(), encoding="ascii")
    compiler = toolchain().compiler
    fence = replace(for_build(compiler, tmp_path), memory_bytes=64 << 20, wall_s=20.0)
    ended = run([compiler, "-c", "k.cpp", "-o", "k.o"], fence, folder=tmp_path)
    assert isinstance(ended, Run)
    assert b"out of memory" in ended.log or b"cannot allocate" in ended.log.lower(), ended


def test_another_program_does_not_start(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    ended = run([shell, "-c", ":"], for_build(toolchain().compiler, tmp_path), folder=tmp_path)
    assert isinstance(ended, Run)
    assert ended.status == 126
    assert b"Permission denied" in ended.log


def test_what_a_build_leaves_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET, encoding="ascii")
    (tmp_path / "kernel.so").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="a link"):
        read_made(tmp_path / "kernel.so", 1 << 20)
    (tmp_path / "fifo").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a file"):
        read_made(tmp_path / "fifo", 1 << 20)
    assert read_made(tmp_path / "secret", 1 << 20) == SECRET.encode()
    with pytest.raises(OSError, match="at most"):
        read_made(tmp_path / "secret", 4)


def test_a_fenced_build_makes_the_same_binary(place: Place, tmp_path: Path) -> None:
    fenced, plain = (place.built(tmp_path / str(n), KERNEL, fenced=n == 0) for n in (0, 1))
    assert isinstance(fenced, Binary)
    assert isinstance(plain, Binary)
    assert fenced.digest == plain.digest


def test_an_attack_at_build_time_is_a_failed_build_for_the_evaluator(place: Place, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    with WorkerEvaluator(
        jobs.target(), store=tmp_path / "s", toolchain=toolchain(), workers=1, fence=for_worker(tmp_path / "scratch")
    ) as evaluator:
        attack = jobs.job(before=f'#include "{place.outside}/secret"\n')
        ((_, found),) = evaluator.prepare([attack])
        assert isinstance(found, BuildFailed), found
        assert "Permission denied" in found.log
        assert SECRET not in found.log
        ((_, right),) = evaluator.prepare([jobs.job()])
        assert isinstance(right, Prepared), right


def test_where_nothing_can_confine_the_evaluator_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(AgentCompileError, match=r"landlock: .*seccomp: not Linux on x86-64") as caught:
        WorkerEvaluator(jobs.target(), store=tmp_path, toolchain=toolchain(), workers=1, fence=for_worker())
    assert "--unsafe" in caught.value.hint


def test_a_compiler_that_is_a_script_is_refused_with_its_remedy(tmp_path: Path) -> None:
    real, script = toolchain(), tmp_path / "g++"
    script.write_text(f'#!/bin/sh\nexec {real.compiler} "$@"\n', encoding="ascii")
    script.chmod(0o755)
    wrapped = replace(real, compiler=str(script))
    with (
        WorkerEvaluator(
            jobs.target(), store=tmp_path / "s", toolchain=wrapped, workers=1, fence=for_worker()
        ) as evaluator,
        pytest.raises(AgentCompileError, match="does not work behind a fence") as caught,
    ):
        list(evaluator.prepare([jobs.library()]))
    assert "AGENTCOMPILE_COMPILER" in caught.value.hint
