"""A GGUF file from the command line to a lock that generates, moved, replaced and pruned."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

import agentcompile
from agentcompile.cli.exits import ExitCode
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.runs.session import RunDirectory
from bench.models.gguf_file import write_gguf
from tests.cpu import flows
from tests.cpu.conftest import BUDGET, CONTEXT, SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A checkpoint, the GGUF file of the same bits, and the lock that was compiled from the file."""

    checkpoint: Path
    file: Path
    lock: Path
    home: Path
    said: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    @property
    def converted(self) -> Path:
        """The directory that the file became."""
        return Options(home=str(self.home)).cache / "checkpoints" / self.digest


@pytest.fixture(scope="module")
def made(warm: Path, checkpoint: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, model = tmp_path_factory.mktemp("gguf"), checkpoint("tiny-qwen3", "bf16")
    file, lock = folder / "tiny.gguf", folder / "tiny.lock.toml"
    write_gguf(model, file)
    # Without kernels to build and validate, a compile is a matter of seconds.
    settings = ("--context", CONTEXT, "--threads", flows.THREADS, "--budget", BUDGET, "--seconds", SECONDS)
    # The directory stands for its only file.
    done = flows.verb(
        warm, "compile", folder, *settings, "--choose", "pytorch", "--out", lock, "--run-dir", folder / "run"
    )
    assert done.code == 0, done.err
    return Made(checkpoint=model, file=file, lock=lock, home=warm, said=done.err)


def test_the_file_is_converted_once_to_the_bits_that_it_was_written_from(made: Made) -> None:
    assert "convert" in made.said
    assert "tiny.gguf: 24 tensors as bfloat16; token ids only" in made.said
    original = load_file(str(made.checkpoint / "model.safetensors"))
    stored = load_file(str(made.converted / "model.safetensors"))
    assert set(stored) == set(original)
    assert all(stored[name].equal(original[name]) for name in original)
    again = flows.verb(made.home, "replay", made.lock, "--check", "--threads", flows.THREADS)
    assert again.code == 0, again.err
    assert "convert" not in again.err
    stages = [row.stage for row in RunDirectory.open(made.file.parent / "run").state().stages]
    assert stages[:2] == ["convert", "capture"]


def test_the_lock_names_the_file_and_its_digest(made: Made) -> None:
    model = read_lock(made.lock).model
    assert (model.name, model.gguf, model.gguf_sha256) == ("tiny", "tiny.gguf", made.digest)
    assert model.location == "tiny.gguf"
    assert f'gguf-sha256 = "{made.digest}"' in made.lock.read_text()


def test_a_file_that_was_moved_generates_what_eager_does(made: Made, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    moved = shutil.copy(made.file, tmp_path / "there/elsewhere.gguf")
    lock = shutil.copy(made.lock, tmp_path / "moved.lock.toml")
    options = Options(model=str(moved), home=str(made.home), threads=flows.THREADS)
    prompt = [5, 17, 300, 2, 9]
    tokens = list(agentcompile.load(lock, options=options).generate(prompt, max_new_tokens=8).tokens)
    assert tokens == flows.eager(made.checkpoint, prompt, len(tokens))
    gone = flows.verb(made.home, "replay", lock, "--check", "--threads", flows.THREADS)
    assert gone.code == ExitCode.USAGE
    assert "GGUF file with --model" in gone.err


def test_another_file_of_the_same_name_is_drift_with_both_digests(made: Made, tmp_path: Path) -> None:
    from bench.models.presets import materialise

    other = tmp_path / made.file.name
    write_gguf(materialise("tiny-qwen3", tmp_path / "other", dtype="bf16", seed=1), other)
    done = flows.verb(made.home, "replay", made.lock, "--model", other, "--threads", flows.THREADS)
    digest = hashlib.sha256(other.read_bytes()).hexdigest()
    done.refuses(3, "model.gguf-sha256", made.digest[:12], digest[:12], "--model")


def test_the_cache_lists_and_prunes_converted_files(made: Made, tmp_path: Path) -> None:
    copy = Options(home=str(tmp_path)).cache / "checkpoints" / made.digest
    shutil.copytree(made.converted, copy)
    rows = {row["what"]: row for row in json.loads(flows.verb(tmp_path, "cache", "ls", "--json").out)}
    assert rows["checkpoints"]["bytes"] > 100_000
    assert flows.verb(tmp_path, "cache", "prune").code == 0
    assert not copy.exists()
