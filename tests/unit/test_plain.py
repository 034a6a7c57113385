"""What is no plain file is refused at once: whoever names a FIFO makes nobody wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.lockfile.bundle import read_bundle
from agentcompile.lockfile.files import read_lock
from agentcompile.system.plain_files import NotPlainError, read_plain


def special(folder: Path, kind: str) -> Path:
    path = folder / "x.lock.toml"
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
    return path


@pytest.mark.parametrize("kind", ["FIFO", "device", "folder", "socket"])
def test_locks_and_bundles_that_are_no_files_are_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    path = special(tmp_path, kind)
    for read in (read_lock, read_bundle):
        with pytest.raises(AgentCompileError) as caught:
            read(path)
        assert caught.value.exit_code is ExitCode.USAGE
        assert caught.value.hint


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_a_checkpoint_that_holds_one_is_refused_without_waiting(kind: str, name: str, tmp_path: Path) -> None:
    special(tmp_path, kind).rename(tmp_path / name)
    with pytest.raises(AgentCompileError, match=f"{name} is a {kind}") as caught:
        Checkpoint.open(tmp_path)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert read_plain(tmp_path / "a", 100) == b"x" * 100
    with pytest.raises(NotPlainError, match="at most 99"):
        read_plain(tmp_path / "a", 99)
    with pytest.raises(NotPlainError):
        read_plain(Path("/proc/self/maps"), 10)
    assert read_plain(Path("/proc/self/status"), 1 << 20)
