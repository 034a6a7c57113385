"""Sessions and promotions whose process is killed by SIGKILL, at any step, go on to the same tree and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: what waits for a disk is not what is tested."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def test_what_sigkill_ends_at_any_step_goes_on_to_the_same_bytes(quick: Path) -> None:
    (quick / "scratch").mkdir()  # where a killed process leaves its temporary folders
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.killed_sessions", str(quick / "killed")],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(quick / "scratch")}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    entries = {f"{when} {kind}" for when in ("writing", "written") for kind in ("opened", "node", "refused", "pruned")}
    assert entries | {"asked", "answered", "judging", "judged", "open", "os.rename"} <= set(steps["session"])
    assert {"open", "os.mkdir", "os.chmod", "os.rename", "shutil.rmtree"} <= set(steps["promotion"])
