"""A stdout that takes nothing is an error of the environment, whatever was to be written to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize(
    ("line", "unbuffered"),
    [
        ("runs list --json", "1"),
        ("config show", ""),
        ("--help", ""),
        ("--help", "1"),
        ("--version", "1"),
        ("compile --help", ""),
        ("bench -h", ""),
        ("bench -h", "1"),
        ("bench campaign -h", ""),
        ("bench campaign -h", "1"),
    ],
)
def test_a_full_stdout_is_told_without_a_traceback(line: str, unbuffered: str) -> None:
    command = f"PYTHONUNBUFFERED={unbuffered} {sys.executable} -m agentcompile {line} > {FULL}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.splitlines()[0] == "error: cannot write to standard output: No space left on device"
    assert len(done.stderr.splitlines()) == 2, "one error, and what to do"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_an_error_keeps_its_code_where_stdout_is_full() -> None:
    command = f"{sys.executable} -m agentcompile explain x --json > {FULL}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no runs" in done.stderr
    assert "Traceback" not in done.stderr
