"""Reading and writing locks: deterministic bytes, integrity hashes, atomic replacement, errors that name the key.

What a hash promises: a lock that was cut, damaged or edited by hand is refused (exit 3), whichever part it was, and the
same decisions have the same hash wherever they were made. A hash is not a signature: whoever can write the file can
write a fitting hash. So everything that binds a lock to its model, its templates and this machine is compared whenever
a lock is opened (`lockfile.sound`, `lockfile.drift`, `pinned`), and kernels are validated on a machine before they
first run there. A lock and a bundle from someone else are code from someone else.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode, lean
from agentcompile.ir.digest import Json, digest
from agentcompile.lockfile.schema import REVISION, VERSION, Lock
from agentcompile.lockfile.sound import LARGEST, unsound
from agentcompile.system.plain_files import destination, is_stream, read_plain, write_atomically
from agentcompile.system.tarball import MAGIC

_FREE = {"params", "layouts", "libraries", "graphs", "settings"}
"""Tables whose keys name other things and keep their spelling."""
_UNHASHED = ("evidence", "evidence_hash", "content_hash")
MOST_BYTES = 4 << 20
"""The most bytes of a lock file; the locks of the largest models have a tenth of it."""
_MOST_LINE = 1 << 16
_MOST_DOTS = 16
"""The most dots in a line outside of strings: the standard library takes hours to read a key of a million parts."""
_OPENERS = ('"', "'", '"""', "'''")
_QUOTED = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|"|\'|#.*')
"""The opening of a multi-line string, a whole string, an unmatched quote, or a comment."""


def content_hash(lock: Lock) -> str:
    """Hash everything but `[evidence]` and the hashes.

    The rule of choices and what a prompt is cut into count only where they are not the default, and a GGUF file only
    where there is one, so that locks from before there was such a choice keep their hashes.
    """
    body = encode(lock)
    assert isinstance(body, dict)
    policy = body["policy"]
    assert isinstance(policy, dict)
    if lock.policy.choose == "admitted":
        del policy["choose"]
    model = body["model"]
    assert isinstance(model, dict)
    if not lock.model.gguf:
        del model["gguf"], model["gguf_sha256"]
    _drop_usual_lengths(body)
    return "sha256:" + digest("lock/1", {k: v for k, v in body.items() if k not in _UNHASHED})


def _drop_usual_lengths(body: dict[str, Json]) -> None:
    """Leave out how prompts run where that is as usual: versions that know nothing of it read such a lock, too."""
    plans = body["plan"]
    assert isinstance(plans, list)
    for plan in plans:
        assert isinstance(plan, dict)
        for name in ("chunk", "steps_up_to"):
            if not plan[name]:
                del plan[name]


def evidence_hash(lock: Lock) -> str:
    """Hash `[evidence]`; fields with their default values do not count, so that a new field changes no hash."""
    return "sha256:" + digest("lock-evidence/1", lean(lock.evidence))


def render_lock(lock: Lock) -> bytes:
    """Return the bytes of the lock file: fixed key order, sorted tables, the hashes filled in."""
    import tomli_w

    sealed = replace(lock, content_hash=content_hash(lock), evidence_hash=evidence_hash(lock))
    told = encode(sealed)
    assert isinstance(told, dict)
    _drop_usual_lengths(told)
    body = _spell(told, "_", "-")
    assert isinstance(body, dict)
    head = "# Written by agentcompile. Change it with `agentcompile compile` or `agentcompile decide`, not by hand.\n"
    return (head + tomli_w.dumps(body, multiline_strings=False)).encode()


def reserve_lock(path: Path) -> None:
    """Check before the search that `write_lock` will succeed; it leaves the folder behind and nothing else.

    Raises:
        AgentCompileError: the path is a directory (usage), or the lock cannot be written there (environment).
    """
    with _explained(path):
        place = _place(path)
        if not is_stream(place):
            with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}."):
                pass


def write_lock(path: Path, lock: Lock) -> str:
    """Replace `path` atomically by the lock and return the content hash.

    Raises:
        AgentCompileError: the lock cannot be written there (environment).
    """
    write_file(path, render_lock(lock))
    return content_hash(lock)


def write_file(path: Path, data: bytes) -> None:
    """Replace `path` atomically; its folder is made when it is missing.

    Where it is a link, the file that it leads to is replaced; a pipe or a device is written to.

    Raises:
        AgentCompileError: the path is a directory (usage), or the file cannot be written there (environment).
    """
    with _explained(path):
        _place(path)
        write_atomically(path, data)


def _place(path: Path) -> Path:
    """Return where a file at `path` lies; its folder is made when it is missing.

    Raises:
        IsADirectoryError: it is one.
    """
    place = destination(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError as error:
        raise AgentCompileError(f"{path}: a directory, not a file", hint="name a file in it with --out") from error
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "free some space, or give another place with --out"
        raise AgentCompileError(f"{path}: {reason}", exit_code=ExitCode.ENVIRONMENT, hint=hint) from error


def read_lock(path: Path) -> Lock:
    """Read, decode and check a lock, or the one inside a bundle.

    Raises:
        AgentCompileError: the file is missing, cut off, malformed, of a newer version, or says what no compiler writes
            (usage); its content does not match its hashes (drift).
    """
    return lock_of(lock_bytes(path), path)


def lock_bytes(path: Path) -> bytes:
    """Return the bytes of a lock file, or of the lock inside a bundle.

    Raises:
        AgentCompileError: the file is missing, unreadable or too large (usage).
    """
    from agentcompile.lockfile.bundle import LIMITS, LOCK, members

    hint = "restore it from version control"
    try:
        data = read_plain(path, max(MOST_BYTES, LIMITS.packed_bytes))
    except FileNotFoundError as error:
        hint = "make one with `agentcompile compile MODEL`"
        raise AgentCompileError(f"{path}: there is no such lock", hint=hint) from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise AgentCompileError(f"{path}: unreadable ({reason})", hint=hint) from error
    if data.startswith(MAGIC):
        data = members(data, path)[LOCK]
    if len(data) > MOST_BYTES:
        raise AgentCompileError(f"{path}: {len(data)} bytes, and a lock has at most {MOST_BYTES}", hint=hint)
    return data


def lock_of(data: bytes, path: Path) -> Lock:
    """Return the lock in `data`; `path` is its name in messages.

    Raises:
        AgentCompileError: as in `read_lock` (usage or drift).
    """
    hint = "the file is cut off or damaged: restore it, or compile again"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AgentCompileError(f"{path}: unreadable ({error})", hint="restore it from version control") from error
    if why := _overgrown(text):
        raise AgentCompileError(f"{path}: not valid TOML of a lock ({why})", hint=hint)
    try:
        raw: Json = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        raise AgentCompileError(f"{path}: not valid TOML ({error})", hint=hint) from error
    assert isinstance(raw, dict)
    _check_version(path, raw)
    try:
        lock: Lock = decode(Lock, _spell(raw, "-", "_"))
        _match(path, "content-hash", lock.content_hash, content_hash(lock))
        if lock.revision >= 1 or lock.evidence_hash:
            _match(path, "evidence-hash", lock.evidence_hash, evidence_hash(lock))
    except CodecError as error:
        where = str(error).removeprefix("$.").replace("_", "-")
        raise AgentCompileError(f"{path}: {where}", hint="restore the lock, or compile again") from error
    except (ValueError, RecursionError) as error:
        raise AgentCompileError(f"{path}: no content of a lock ({error})", hint=hint) from error
    if (fault := unsound(lock)) is not None:
        raise AgentCompileError(f"{path}: {fault.key}: {fault.text}", hint="restore the lock, or compile again")
    return lock


def _match(path: Path, key: str, told: str, expected: str) -> None:
    if told != expected:
        raise AgentCompileError(
            f"{path}: {key}: the file says {told[:19]}…, its content gives {expected[:19]}…",
            exit_code=ExitCode.DRIFT,
            hint="it was edited by hand: restore it, or change it with `agentcompile compile`",
        )


def _overgrown(text: str) -> str:
    """Return what in a text would take the TOML reader too long; "" for nothing.

    A lock has no multi-line strings, so every line begins outside of a string.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _MOST_LINE:
            return f"line {number} has {len(line)} characters"
        bare = _QUOTED.sub(lambda found: found[0] if found[0] in _OPENERS else "", line)
        if '"' in bare or "'" in bare:
            return f"line {number} has a string that does not end there"
        if bare.count(".") > _MOST_DOTS:
            return f"line {number} has a key of more than {_MOST_DOTS} parts"
    return ""


def _check_version(path: Path, raw: dict[str, Json]) -> None:
    version = raw.get("lock-version")
    if not isinstance(version, int) or isinstance(version, bool) or not abs(version) < LARGEST:
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
    """Rename table keys between Python's underscores and TOML's dashes."""
    if isinstance(value, dict):
        return {
            (key if free else key.replace(old, new)): _spell(item, old, new, key in _FREE)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_spell(item, old, new) for item in value]
    return value
