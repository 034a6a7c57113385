"""Captured models, remembered as compiled texts are: for tests of what is done with a graph, not of how it is captured.

A name says all that a captured model depends on, the text of every module that has a part in it too: whoever changes
one of these captures anew. Tests of capture itself call `capture`, or ask for `captured_anew`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import agentcompile
from agentcompile.capture import Captured, cached, capture
from agentcompile.checkpoint import Checkpoint
from agentcompile.system.store import Store

PARTS = ("capture", "checkpoint", "ir", "ops")
"""The packages that make a graph of a checkpoint."""
_read, _write = cached._read, cached._write


@cache
def kept() -> Store:
    """What this run of the tests and the next ones share; or this process alone, where nothing is kept."""
    root, text = Path(agentcompile.__file__).parent, hashlib.sha256()
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")):
            text.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    folder = os.environ.get("CAPTURES_KEPT") or tempfile.mkdtemp()
    return Store(Path(folder) / text.hexdigest()[:16])


def captured(path: Path, context: int) -> Captured:
    """`capture(path, context=context)`, once for all checkpoints of one program."""
    key = cached._key(Checkpoint.open(path), context)
    if (found := _read(kept(), key)) is None:
        made = capture(path, context=context)
        _write(kept(), key, made)
        return made
    graphs, constants = found
    info = replace(graphs.info, name=path.resolve().name)
    return Captured(info=info, decode=graphs.decode, prefill=graphs.prefill, constants=constants, checkpoint=path)


def give(home: Path, path: Path, context: int) -> Path:
    """`home`, whose store knows the captured model of `path` as after an earlier run."""
    _write(Store(home / "cache/store"), cached._key(Checkpoint.open(path), context), captured(path, context))
    return home


@contextmanager
def remembered() -> Iterator[None]:
    """Meanwhile a store that does not have a captured model gets the one that is remembered, and writes it as ever."""

    def read(store: Store, key: str) -> object:
        found = _read(store, key)
        if found is None and (known := _read(kept(), key)) is not None:
            graphs, constants = known
            same = {"info": graphs.info, "decode": graphs.decode, "prefill": graphs.prefill}
            _write(store, key, Captured(**same, constants=constants, checkpoint=Path()))
            return known
        return found

    def write(store: Store, key: str, made: Captured) -> None:
        _write(kept(), key, made)
        _write(store, key, made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "_read", read)
        patch.setattr(cached, "_write", write)
        yield


@contextmanager
def anew() -> Iterator[None]:
    """Meanwhile every store is what it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "_read", _read)
        patch.setattr(cached, "_write", _write)
        yield
