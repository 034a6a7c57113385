"""GGUF files as Hugging Face directories in the cache: converted once, found again by the digest of the file.

A directory is whole or absent: it is written under a private name and renamed. Its `gguf.json` says which file it was
made from.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from agentcompile.checkpoint.gguf_file import open_gguf
from agentcompile.checkpoint.gguf_parts import check_plain
from agentcompile.checkpoint.hashes import remembered, sha256_of_all
from agentcompile.checkpoint.names import ENDING, PART, parts_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.system.exhausted import exhausted

FORMAT = 1
"""The version of the conversion; it is raised when the same file gives other bytes."""
FOLDER = "checkpoints"
RECEIPT = "gguf.json"
PACE_S = 1.0
"""Seconds between two words on how far a conversion is."""
STALE_S = 86_400.0
"""Age of what a killed process left half-written."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The GGUF file that a directory was converted from: its name when it was last opened, its SHA-256 in hex.

    Of a split model, the name of the first part and the digest of all (`hashes.sha256_of_all`).
    """

    file: str
    sha256: str
    format: int = FORMAT


def receipt_of(directory: Path) -> Receipt | None:
    """Return the receipt of a converted directory; None for any other checkpoint."""
    try:
        said = json.loads((directory / RECEIPT).read_text(encoding="utf-8"))
        return Receipt(file=str(said["file"]), sha256=str(said["sha256"]), format=int(said["format"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def name_of(directory: Path) -> str:
    """Return what a checkpoint is called: its directory's name, or that of the GGUF file that it was converted from."""
    receipt = receipt_of(directory)
    return directory.resolve().name if receipt is None else Path(PART.sub(ENDING, receipt.file)).stem


def converted(file: Path, cache: Path, say: Say = lambda _: None) -> Path:
    """Return the Hugging Face directory of a GGUF file: the one below `cache`, made now if there is none.

    `file` may be any part of a split model. `say` gets the progress of a conversion, at most once in `PACE_S`, and
    nothing where there is nothing to convert.

    Raises:
        AgentCompileError: the file cannot be converted (usage), the package `gguf` is missing or the disk is full
            (environment).
    """
    parts = parts_of(file)
    for part in parts:
        check_plain(part)
    try:
        with remembered(cache / "weights.json") as known:
            sha256 = sha256_of_all(parts, known)
    except OSError as error:
        raise AgentCompileError(f"{error.filename}: {error.strerror}", hint="make the file readable") from None
    out = cache / FOLDER / sha256
    receipt = Receipt(file=parts[0].name, sha256=sha256)
    if not _serves(out, receipt):
        try:
            _convert(file, out, receipt, say)
        except OSError as error:
            full = exhausted(error) == "disk"
            hint = f"{'free some space' if full else 'make the folder writable'}, or set AGENTCOMPILE_HOME"
            text = f"{out}: cannot be written: {error.strerror or error}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    with contextlib.suppress(OSError):  # its name now, and when it was used last, which decides what is pruned first
        _write(receipt, out)
    return out


def _write(receipt: Receipt, directory: Path) -> None:
    fresh = directory / f"{RECEIPT}.{os.getpid()}"
    fresh.write_text(json.dumps(asdict(receipt), indent=2) + "\n", encoding="utf-8")
    fresh.replace(directory / RECEIPT)


def _serves(directory: Path, receipt: Receipt) -> bool:
    found = receipt_of(directory)
    return found is not None and (found.sha256, found.format) == (receipt.sha256, receipt.format)


def _convert(file: Path, out: Path, receipt: Receipt, say: Say) -> None:
    say(f"{file.name}: reads the metadata")
    opened = open_gguf(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{receipt.sha256[:12]}.", dir=out.parent))
    try:
        fresh.chmod(0o755)
        write(opened.path, fresh, say)
        _write(receipt, fresh)
        if out.exists() and not _serves(out, receipt):  # of an earlier version, or damaged
            _remove(out)
        try:
            fresh.rename(out)
        except OSError as error:
            # Two processes converted it at once: the other's directory serves as well.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _serves(out, receipt):
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write(file: Path, out: Path, say: Say = lambda _: None) -> None:
    """Write a GGUF file to the existing directory `out` as config.json, model.safetensors and the tokenizer's files.

    Raises:
        AgentCompileError: the file cannot be converted (usage), or the package `gguf` is missing (environment).
        OSError: a file cannot be written.
    """
    from agentcompile.checkpoint.gguf_model import config_of, stops_of, write_weights
    from agentcompile.checkpoint.gguf_text import write_tokenizer

    opened, last = open_gguf(file), time.monotonic()

    def paced(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PACE_S:
            last = time.monotonic()
            say(text)

    config = config_of(opened)
    write_weights(opened, config, out / "model.safetensors", paced)
    config.save_pretrained(str(out))
    stops = {"eos_token_id": stops} if (stops := stops_of(opened)) else {}
    (out / "generation_config.json").write_text(json.dumps(stops, indent=2) + "\n", encoding="utf-8")
    why = write_tokenizer(opened, out)
    held = f"{len(opened.tensors)} tensors{f' of {opened.parts} parts' if opened.parts > 1 else ''}"
    say(f"{opened.path.name}: {held} as bfloat16" + (f"; token ids only: {why}" if why else ""))


def kept(cache: Path) -> list[tuple[Path, int]]:
    """Return the converted checkpoints below `cache` with their bytes, the least recently used first."""
    folder = cache / FOLDER
    found = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [(path, _bytes(path)) for path in sorted(found, key=_used)]


def prune(cache: Path, keep_bytes: int) -> int:
    """Delete the least recently used converted checkpoints until at most `keep_bytes` remain; return the bytes freed.

    What a conversion is writing now stays.
    """
    found = [(path, size) for path, size in kept(cache) if not _under_way(path)]
    excess = sum(size for _, size in found) - keep_bytes
    freed = 0
    for path, size in found:
        if freed >= excess:
            break
        _remove(path)
        freed += size
    return freed


def _under_way(path: Path) -> bool:
    return path.name.startswith(".") and time.time() - max(map(_mtime, (path, *path.iterdir()))) < STALE_S


def _remove(path: Path) -> None:
    """Remove a directory so that nobody sees half of it."""
    gone = path.with_name(f".gone-{path.name.lstrip('.')}")
    with contextlib.suppress(OSError):
        path = path.rename(gone)
    shutil.rmtree(path, ignore_errors=True)


def _used(path: Path) -> float:
    return _mtime(path / RECEIPT if (path / RECEIPT).exists() else path)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
