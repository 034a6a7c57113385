"""examples/: each program runs as a user runs it; those on a lock share one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cpu import flows
from tests.cpu.templated import with_template

EXAMPLES = flows.ROOT / "examples"


def example(name: str, home: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one in a process of its own."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env=flows.environment(home, {"AGENTCOMPILE_THREADS": str(flows.THREADS), **more}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def lock(planted: Callable[[str, str], Path]) -> Path:
    return planted("sample", "bf16")


def test_the_python_api_completes_streams_and_chats(warm: Path, lock: Path, tmp_path: Path) -> None:
    ran = example("generate.py", warm, lock, "--model", with_template(tmp_path / "chat"))
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^completion: '.+', ended by \w+, \d+ tokens/s$", ran.stdout, re.M | re.S)
    assert re.search(r"^log-probability of the first token: -?\d+\.\d{3}$", ran.stdout, re.M)
    assert re.search(r"^two prompts: \['.*', '.*'\]$", ran.stdout, re.M)
    assert re.search(r"^chat: '", ran.stdout, re.M)


def test_what_is_no_lock_ends_an_example_with_one_line_and_a_hint(warm: Path, tmp_path: Path) -> None:
    ran = example("generate.py", warm, tmp_path / "gone.lock.toml")
    assert ran.returncode == 1
    assert "there is no such file" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_module_of_ones_own_is_compiled_and_gives_its_own_tokens(warm: Path, tmp_path: Path) -> None:
    ran = example("own_module.py", warm, tmp_path / "mine", AGENTCOMPILE_CHOOSE="first")
    assert ran.returncode == 0, ran.stderr
    assert "16 of 16 greedy tokens are PyTorch's" in ran.stdout
    assert not re.search(r": 0 choices are kernels", ran.stdout)


@pytest.mark.parametrize(("bound", "code"), [(0, 0), (1e9, 5)], ids=["held", "broken"])
def test_a_job_without_a_person_replays_a_lock_and_holds_it_to_a_bound(
    warm: Path, lock: Path, bound: float, code: int
) -> None:
    ran = example("headless.py", warm, flows.SAMPLE, lock, "--bound", bound)
    assert ran.returncode == code, ran.stderr
    assert re.search(rf"times as fast as PyTorch eager, bound {re.escape(format(bound, 'g'))}$", ran.stdout, re.M)


def test_a_job_ends_as_its_first_command_that_fails(warm: Path, lock: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "model.lock.toml"
    damaged.write_text(lock.read_text().replace("context = 96", "context = 95", 1))
    ran = example("headless.py", warm, flows.SAMPLE, damaged)
    assert ran.returncode == 3, ran.stderr
    assert "times as fast" not in ran.stdout
