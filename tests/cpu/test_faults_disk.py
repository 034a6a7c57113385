"""A disk that is full or cannot be written: exit 6, the file, a remedy; what was acknowledged stays readable."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentcompile.runs.session import RunDirectory
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.models import captures

Make = Callable[[str, str], Path]


@contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory; skips where mounting is not allowed."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mount is not allowed here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def arguments(model: Path, root: Path, run: Path) -> list[object]:
    return [
        "compile", model, "--context", CONTEXT, "--threads", flows.THREADS, "--budget", 4,
        "--out", root / "out.lock.toml", "--run-dir", run,
    ]  # fmt: skip


@pytest.mark.parametrize("size", ["8k", "64k", "600k"])
def test_a_full_disk_under_the_store_ends_the_run_and_loses_nothing(
    size: str, checkpoint: Make, tmp_path: Path
) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    with mounted(tmp_path / "home", f"size={size}") as home:
        late = size == "600k"
        if late:  # the model fits, the kernels do not: how it is captured is no part of that
            captures.give(home, model, CONTEXT)
        run = flows.cli if late else flows.verb
        run(home, *arguments(model, tmp_path, tmp_path / "run")).refuses(6, str(home), "space")
    assert RunDirectory.open(tmp_path / "run").state().status == "failed"


def test_a_full_disk_under_the_run_ends_it_and_loses_nothing(warm: Path, checkpoint: Make, tmp_path: Path) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    with mounted(tmp_path / "runs", "size=12k") as runs:
        flows.cli(warm, *arguments(model, tmp_path, runs / "run")).refuses(6, str(runs / "run"), "free some space")
        assert list(RunDirectory.open(runs / "run").events())


def test_a_read_only_folder_for_runs_is_named(warm: Path, checkpoint: Make, tmp_path: Path) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    with mounted(tmp_path / "runs", "ro") as runs:
        flows.verb(warm, *arguments(model, tmp_path, runs / "run")).refuses(6, str(runs / "run"), "read-only")


def test_a_read_only_store_is_named(checkpoint: Make, tmp_path: Path) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    with mounted(tmp_path / "home", "ro") as home:
        flows.verb(home, *arguments(model, tmp_path, tmp_path / "run")).refuses(6, str(home), "writable")


def test_a_limit_on_the_size_of_files_ends_the_run_as_a_full_disk_does(checkpoint: Make, tmp_path: Path) -> None:
    """Holds where nothing can be mounted."""
    limited = ["prlimit", f"--fsize={20_000}:{resource.RLIM_INFINITY}"]
    command = flows.command(*arguments(checkpoint("tiny-qwen3", "fp32"), tmp_path, tmp_path / "run"))
    done = subprocess.run(
        [*limited, *command], env=flows.environment(tmp_path / "home"), cwd=flows.ROOT, capture_output=True,
        text=True, timeout=200, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    flows.Ended(code=done.returncode, out=done.stdout, err=done.stderr).refuses(6, str(tmp_path))
