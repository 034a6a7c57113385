"""The sample's corpus: a Python library's own source, split by file into three parts.

In: a `Lib` directory. Out: files for training, validation and the held-out measurement. Invariant: a file's part
depends on its relative path alone, and no training file is a near-duplicate of a file in another part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# Directories that hold installed packages, caches or machine-written settings.
SKIPPED_DIRECTORIES = frozenset({"site-packages", "__pycache__", "Icons", "pydoc_data"})
# Generated tables (code pages, build settings) and files that are broken on purpose.
SKIPPED_PREFIXES = ("_sysconfigdata", "bad", "nocaret")
SKIPPED_TEXT = ("decoding_table = (", "decoding_map = codecs.make_identity_dict")

HELDOUT_PERCENT = 4
VALIDATION_PERCENT = 2
WINDOW_LINES = 6
DUPLICATE_SHARE = 0.1


class SourceFile(NamedTuple):
    """One source file: its path below the library, with forward slashes, and its text."""

    path: str
    text: str


class Corpus(NamedTuple):
    """The three parts of the corpus, each ordered by path, and the paths of near-duplicates left out of training."""

    train: list[SourceFile]
    validation: list[SourceFile]
    heldout: list[SourceFile]
    dropped_duplicates: list[str]

    @property
    def digest(self) -> str:
        """The SHA-256 digest over the part, path and text of every file."""
        sha = hashlib.sha256()
        for part in self[:3]:
            sha.update(b"part\0")
            for file in part:
                sha.update(f"{file.path}\0{len(file.text)}\0{file.text}".encode())
        return sha.hexdigest()


def read_corpus(lib: Path) -> Corpus:
    """Read and split every UTF-8 source file below `lib`."""
    parts: dict[str, list[SourceFile]] = {"train": [], "validation": [], "heldout": []}
    for path in lib.rglob("*.py"):
        relative = path.relative_to(lib)
        if SKIPPED_DIRECTORIES & set(relative.parts) or path.name.startswith(SKIPPED_PREFIXES):
            continue
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip() and not any(mark in text for mark in SKIPPED_TEXT):
            parts[_part(relative.as_posix())].append(SourceFile(relative.as_posix(), text))
    train, validation, heldout = (sorted(part) for part in parts.values())
    kept = _without_duplicates(_without_duplicates(train, validation), heldout)
    dropped = [file.path for file in train if file not in kept]
    return Corpus(kept, _without_duplicates(validation, heldout), heldout, dropped)


def _part(path: str) -> str:
    bucket = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") % 100
    if bucket < HELDOUT_PERCENT:
        return "heldout"
    return "validation" if bucket < HELDOUT_PERCENT + VALIDATION_PERCENT else "train"


def _windows(text: str) -> frozenset[int]:
    """Return the digests of every run of WINDOW_LINES lines, ignoring indentation and blank lines."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return frozenset(
        int.from_bytes(hashlib.sha256("\n".join(lines[i : i + WINDOW_LINES]).encode()).digest()[:8])
        for i in range(max(1, len(lines) - WINDOW_LINES + 1))
    )


def _without_duplicates(files: Sequence[SourceFile], others: Sequence[SourceFile]) -> list[SourceFile]:
    """Return the files that share at most DUPLICATE_SHARE of the smaller file's windows with any of `others`."""
    other_windows, kept = [_windows(other.text) for other in others], []
    for file in files:
        own = _windows(file.text)
        if all(len(own & theirs) <= DUPLICATE_SHARE * min(len(own), len(theirs)) for theirs in other_windows):
            kept.append(file)
    return kept
