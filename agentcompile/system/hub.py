"""Checkpoints in the local cache of Hugging Face's hub: from `ORG/NAME` to the folder of its snapshot.

The cache has ``models--ORG--NAME/refs/main`` with a commit, and ``models--ORG--NAME/snapshots/COMMIT`` with the files.
Nothing is downloaded. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def is_id(text: str) -> bool:
    """Return whether `text` has the form of a checkpoint's id on the hub."""
    return _ID.fullmatch(text) is not None


def cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of the hub's cache by the rules of `huggingface_hub`; it need not exist."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if found := environ.get(name):
            return Path(os.path.expandvars(found)).expanduser()
    home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def snapshot(text: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the newest snapshot of a checkpoint's id; None when there is none, or `text` is no id."""
    if not is_id(text):
        return None
    folder = cache(environ) / f"models--{text.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
        found = folder / "snapshots" / commit
        return found if _COMMIT.fullmatch(commit) and found.is_dir() else None
    except (OSError, ValueError):
        return None


def name_of(path: Path) -> str:
    """Return what a checkpoint at `path` is called: its folder's name, or for a snapshot that of its id."""
    stored = path.parent.parent.name
    snapshot = path.parent.name == "snapshots" and stored.startswith("models--")
    return stored.rpartition("--")[2] if snapshot else path.name


def missing(path: Path, cwd: Path) -> str:
    """Return how to download the id that a path below `cwd` may stand for; empty when it has not the form of one."""
    text = path.relative_to(cwd).as_posix() if path.is_relative_to(cwd) else ""
    return f"for a checkpoint of Hugging Face's hub: hf download {text}" if is_id(text) else ""
