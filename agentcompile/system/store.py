"""A content-addressed directory of immutable files, written atomically and shared by several processes.

A file is either whole or absent: it is written under a private name, synced, then renamed. Two processes that write
one digest write the same bytes, so the last rename wins and no process waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.digest import digest_bytes

_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_PROOF_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Store:
    """Files below `root` by digest: ``root/ab/abcdef….so``. Constructing a store makes the directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with self._explained("create"):
            root.mkdir(parents=True, exist_ok=True)

    def put(self, domain: str, data: bytes, suffix: str = "") -> Path:
        """Keep `data` under the digest of its content in `domain` and return its path; an existing file is left alone.

        Raises:
            AgentCompileError: the disk is full or the directory cannot be written (environment).
        """
        return self.write(digest_bytes(domain, data), data, suffix)

    def write(self, digest: str, data: bytes, suffix: str = "") -> Path:
        """Keep `data` under a digest of how it was made (a binary: its source, flags and toolchain); return its path.

        An existing file is left alone.

        Raises:
            AgentCompileError: the disk is full or the directory cannot be written (environment).
        """
        path = self.path(digest, suffix)
        if path.exists():
            return path
        with self._explained("write"):
            path.parent.mkdir(exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        return path

    def get(self, digest: str, suffix: str = "") -> Path | None:
        """Return the path of the file kept under `digest`, or None when there is none."""
        path = self.path(digest, suffix)
        return path if path.is_file() else None

    def path(self, digest: str, suffix: str = "") -> Path:
        """Return the path at which the file of `digest` is or would be.

        Raises:
            ValueError: `digest` is not a digest.
        """
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a digest")
        return self.root / digest[:2] / f"{digest}{suffix}"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a private directory on the store's own disk, removed at the end.

        Raises:
            AgentCompileError: the disk is full or the directory cannot be written (environment).
        """
        with self._explained("write"):
            path = Path(tempfile.mkdtemp(dir=self.root, prefix=".work-"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def prove(self) -> None:
        """Check that a binary could be written, by writing and removing a file of 1 MiB.

        Raises:
            AgentCompileError: the disk has no room for a binary or cannot be written (environment).
        """
        with self.scratch() as folder, self._explained("write"), (folder / "proof").open("wb") as file:
            file.write(bytes(_PROOF_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def size_bytes(self) -> int:
        """Return the size of all files in bytes, unfinished ones included."""
        return sum(size for _, size in self._files())

    def prune(self, keep_bytes: int) -> int:
        """Delete the least recently written files until at most `keep_bytes` remain, and return the bytes freed.

        Raises:
            AgentCompileError: a file cannot be deleted (environment).
        """
        files = sorted(self._files(), key=lambda item: _mtime_ns(item[0]))
        excess = sum(size for _, size in files) - keep_bytes
        freed = 0
        for path, size in files:
            if freed >= excess:
                break
            with contextlib.suppress(FileNotFoundError), self._explained("delete from"):
                path.unlink()
                freed += size
        return freed

    def _files(self) -> Iterator[tuple[Path, int]]:
        for path in self.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    yield path, path.stat().st_size

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """Turn an OSError of the body into an error that says what the user can do about it.

        Raises:
            AgentCompileError: the body raised OSError (environment).
        """
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                hint = "free some space, or point the cache to another disk"
            else:
                hint = "make the directory writable, or point the cache to another directory"
            message = f"{self.root}: cannot {verb} the store: {error.strerror}"
            raise AgentCompileError(message, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
