"""The content-addressed store: whole files or none, whoever writes and however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.digest import digest_bytes
from agentcompile.system.store import Store


def test_equal_content_is_kept_once_under_its_digest(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    path = store.put("note/1", b"abc", ".txt")
    assert path == store.put("note/1", b"abc", ".txt")
    assert path.read_bytes() == b"abc"
    assert store.get(digest_bytes("note/1", b"abc"), ".txt") == path
    assert store.size_bytes() == 3


def test_one_content_in_two_domains_is_two_files(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.put("a/1", b"x") != store.put("b/1", b"x")


def test_what_is_not_there_is_none_and_what_is_no_digest_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.get("0" * 64) is None
    with pytest.raises(ValueError, match="not a digest"):
        store.get("../../etc/passwd")


def test_scratch_is_removed_even_when_the_work_fails(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail() -> None:
        with store.scratch() as folder:
            (folder / "half").write_text("x", encoding="utf-8")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_directory_should_be_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("", encoding="utf-8")
    with pytest.raises(AgentCompileError) as caught:
        Store(tmp_path / "store")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert caught.value.hint


FULL = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from agentcompile.errors import AgentCompileError
from agentcompile.system.store import Store
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.put("note/1", b"x" * 5000)
except AgentCompileError as error:
    print(int(error.exit_code), error.message, error.hint)
"""


def test_a_disk_that_takes_no_more_is_an_environment_error_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("6 ")
    assert "space" in done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_place_that_cannot_be_written_is_an_environment_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    denied = Path("/sys") if os.geteuid() == 0 else tmp_path  # permissions do not bind root, but sysfs does
    with pytest.raises(AgentCompileError) as caught:
        Store(denied / "agentcompile")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "writable" in caught.value.hint


WRITER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from agentcompile.system.store import Store
store = Store(Path(sys.argv[1]))
print("started", flush=True)
while True:
    for i in range(50):
        store.put("blob/1", bytes([i]) * 3_000_000)
    for path in store.root.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            path.unlink(missing_ok=True)
"""


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    for delay_s in (0.02, 0.05, 0.09):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        for path in tmp_path.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                assert digest_bytes("blob/1", path.read_bytes()) == path.name


def _put_many(root: Path) -> None:
    store = Store(root)
    for i in range(100):
        assert store.put("blob/1", bytes([i]) * 1000).read_bytes() == bytes([i]) * 1000


def test_several_processes_write_the_same_files_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_put_many, args=(tmp_path,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert Store(tmp_path).size_bytes() == 100_000


def test_pruning_deletes_the_oldest_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    paths = [store.put("blob/1", bytes([i]) * 100) for i in range(5)]
    for age, path in enumerate(paths):
        os.utime(path, ns=(age, age))
    assert store.prune(250) == 300
    assert [path.exists() for path in paths] == [False, False, False, True, True]
    assert store.prune(250) == 0
