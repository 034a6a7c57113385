"""examples/: each program runs as a user runs it; those on a lock share one."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cpu import flows
from tests.cpu.templated import with_template

EXAMPLES = flows.ROOT / "examples"
Example = Callable[..., str | int | None]


@pytest.fixture(scope="module")
def lock(planted: Callable[[str, str], Path]) -> Path:
    return planted("sample", "bf16")


@pytest.fixture
def example(warm: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Runs one by name and arguments, in this process, which has imported PyTorch; returns what it exits with."""
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    monkeypatch.setenv("AGENTCOMPILE_THREADS", str(flows.THREADS))

    def run(name: str, *arguments: object) -> str | int | None:
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            return end.code
        return 0

    return run


def test_the_python_api_completes_streams_and_chats(
    example: Example, lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example("generate.py", lock, "--model", with_template(tmp_path / "chat")) == 0
    out = capsys.readouterr().out
    assert re.search(r"^completion: ['\"].+, ended by \w+, \d+ tokens/s$", out, re.M)
    assert re.search(r"^log-probability of the first token: -?\d+\.\d{3}$", out, re.M)
    assert re.search(r"^stream: .+", out, re.M)
    assert re.search(r"^two prompts: \[['\"].*, ['\"].*\]$", out, re.M)
    assert re.search(r"^chat: ['\"]", out, re.M)


def test_what_is_no_lock_ends_an_example_with_what_is_wrong_and_a_hint(example: Example, tmp_path: Path) -> None:
    said = str(example("generate.py", tmp_path / "gone.lock.toml"))
    assert "there is no such file" in said
    assert "give a lock" in said


def test_a_module_of_ones_own_is_compiled_and_gives_its_own_tokens(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_CHOOSE", "first")
    assert example("own_module.py", tmp_path / "mine") == 0
    found = re.search(r"(\d+) choices are kernels; (\d+) of 16 greedy tokens are PyTorch's", capsys.readouterr().out)
    assert found is not None
    assert int(found[1]) > 0
    assert int(found[2]) == 16


def test_a_job_without_a_person_replays_a_lock_and_times_it(
    example: Example, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example("headless.py", flows.SAMPLE, lock, "--bound", 0) == 0
    assert re.search(r"^\d+\.\d\d times as fast as PyTorch eager, bound 0$", capsys.readouterr().out, re.M)


def test_a_job_fails_below_its_bound() -> None:
    gate = runpy.run_path(str(EXAMPLES / "headless.py"))["gate"]
    assert [gate(ratio, 1.5) for ratio in (1.49, 1.5, 2.0)] == [5, 0, 0]


def test_a_job_ends_as_its_first_command_that_fails(
    example: Example, lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = tmp_path / "model.lock.toml"
    edited.write_text(lock.read_text().replace("context = 96", "context = 95", 1))
    assert edited.read_text() != lock.read_text()
    assert example("headless.py", flows.SAMPLE, edited) == 3
    assert "times as fast" not in capsys.readouterr().out
