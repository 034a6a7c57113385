"""Detection of tensors that hold NaN or an infinity: each file is read once, at the speed of memory, and remembered.

Called right after the files were hashed, so that they are read from the page cache where they fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from agentcompile.checkpoint import Checkpoint, TensorInfo
from agentcompile.ir.graph import ITEM_BYTES, DType

EXPONENTS: dict[DType, tuple[str, int]] = {
    "bf16": ("<u2", 0x7F80),
    "fp16": ("<u2", 0x7C00),
    "fp32": ("<u4", 0x7F80_0000),
    "fp64": ("<u8", 0x7FF0_0000_0000_0000),
}
"""By element type: how its bits are read, and the least value (sign bit cleared) that is not a finite number."""
CHUNK_BYTES = 1 << 20
"""Bytes read at a time: a piece that stays in a core's cache between reading and checking."""


def unfit(checkpoint: Checkpoint, known: MutableMapping[str, str]) -> frozenset[str]:
    """Return the names of the floating-point tensors that hold NaN or an infinity.

    `known` keeps the result for a file under its path, size and time of change.

    Raises:
        OSError: a file cannot be read.
    """
    files: dict[Path, list[TensorInfo]] = {}
    for info in checkpoint.tensors().values():
        files.setdefault(info.file, []).append(info)
    found: set[str] = set()
    for file, tensors in sorted(files.items()):
        stat = file.stat()
        key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|not finite"
        if (said := known.get(key)) is None:
            said = known[key] = json.dumps(sorted(info.name for info in _unfit(file, tensors)))
        found.update(map(str, json.loads(said)))
    return frozenset(found)


def _unfit(file: Path, tensors: list[TensorInfo]) -> Iterator[TensorInfo]:
    room = bytearray(CHUNK_BYTES)
    with file.open("rb", buffering=0) as source:
        for info in sorted(tensors, key=lambda info: info.offset):
            if info.dtype not in EXPONENTS:
                continue
            source.seek(info.offset)
            left = info.nbytes
            while left > 0:
                got = source.readinto(memoryview(room)[: min(left, CHUNK_BYTES)]) or 0
                if got % ITEM_BYTES[info.dtype] or got == 0:
                    break  # the file shrank since its header was read: its next reader reports that
                if not _is_finite(memoryview(room)[:got], info.dtype):
                    yield info
                    break
                left -= got


def _is_finite(raw: memoryview, dtype: DType) -> bool:
    """Return whether every number is finite, which is when no exponent has the largest value."""
    import numpy as np

    kind, exponent = EXPONENTS[dtype]
    bits = np.frombuffer(raw, dtype=kind)
    return bool((bits & (2 ** (8 * bits.itemsize - 1) - 1)).max() < exponent)
