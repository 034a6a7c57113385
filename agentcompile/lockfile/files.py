"""Reading and writing locks: deterministic bytes, an integrity hash, atomic replacement, errors that name the key."""

from __future__ import annotations

import errno
import os
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, digest
from agentcompile.lockfile.schema import REVISION, VERSION, Lock

_FREE = {"params", "layouts", "libraries", "graphs", "settings"}
"""Tables whose keys are names of other things and keep their spelling."""


def content_hash(lock: Lock) -> str:
    """Hash everything but `[evidence]`, the hash itself, and the rule of choices where it is the usual one: locks that
    were written before there was another keep theirs."""
    body = encode(lock)
    assert isinstance(body, dict)
    policy = body["policy"]
    assert isinstance(policy, dict)
    if lock.policy.choose == "admitted":
        del policy["choose"]
    return "sha256:" + digest("lock/1", {k: v for k, v in body.items() if k not in ("evidence", "content_hash")})


def render_lock(lock: Lock) -> bytes:
    """The file's bytes: fixed key order, sorted tables, the hash filled in."""
    import tomli_w

    sealed = replace(lock, content_hash=content_hash(lock))
    body = _spell(encode(sealed), "_", "-")
    assert isinstance(body, dict)
    head = "# Written by agentcompile. Change it with `agentcompile compile` or `agentcompile decide`, not by hand.\n"
    return (head + tomli_w.dumps(body, multiline_strings=False)).encode()


def reserve_lock(path: Path) -> None:
    """Raise before the search what `write_lock` would raise after it; leaves the folder behind and nothing else."""
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass


def write_lock(path: Path, lock: Lock) -> str:
    """Replace `path` atomically and return the content hash; AgentCompileError when the folder cannot be written."""
    data = render_lock(lock)
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        fresh = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.chmod(0o644)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    return content_hash(lock)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "free some space, or give another place with --out"
        raise AgentCompileError(f"{path}: {reason}", exit_code=ExitCode.ENVIRONMENT, hint=hint) from error


def read_lock(path: Path) -> Lock:
    """Read and decode a lock.

    Raises AgentCompileError: USAGE for a file that is missing, cut off, malformed or of a newer version; DRIFT
    for one whose content does not match its hash.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        hint = "make one with `agentcompile compile MODEL`"
        raise AgentCompileError(f"{path}: there is no such lock", hint=hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise AgentCompileError(f"{path}: unreadable ({error})", hint="restore it from version control") from error
    try:
        raw: Json = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "the file is cut off or damaged: restore it, or compile again"
        raise AgentCompileError(f"{path}: not valid TOML ({error})", hint=hint) from error
    assert isinstance(raw, dict)
    _check_version(path, raw)
    try:
        lock: Lock = decode(Lock, _spell(raw, "-", "_"))
    except CodecError as error:
        where = str(error).removeprefix("$.").replace("_", "-")
        raise AgentCompileError(f"{path}: {where}", hint="restore the lock, or compile again") from error
    expected = content_hash(lock)
    if lock.content_hash != expected:
        raise AgentCompileError(
            f"{path}: content-hash: the file says {lock.content_hash[:19]}…, its content gives {expected[:19]}…",
            exit_code=ExitCode.DRIFT,
            hint="it was edited by hand: restore it, or change it with `agentcompile compile`",
        )
    return lock


def _check_version(path: Path, raw: dict[str, Json]) -> None:
    version = raw.get("lock-version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise AgentCompileError(f"{path}: lock-version: missing", hint="this is not an agentcompile lock")
    if version != VERSION:
        hint = "use a newer agentcompile" if version > VERSION else "compile again"
        text = f"{path}: lock-version: {version} is not {VERSION}, which this version reads"
        raise AgentCompileError(text, hint=hint)
    revision = raw.get("revision", 0)
    if isinstance(revision, int) and revision > REVISION:
        for key in set(raw) - {k.replace("_", "-") for k in Lock.__dataclass_fields__}:
            del raw[key]


def _spell(value: Json, old: str, new: str, free: bool = False) -> Json:
    """Respell table keys between Python's underscores and TOML's dashes."""
    if isinstance(value, dict):
        return {
            (key if free else key.replace(old, new)): _spell(item, old, new, key in _FREE)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_spell(item, old, new) for item in value]
    return value
