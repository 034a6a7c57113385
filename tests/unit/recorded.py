"""Small recorded spaces, as files of Kernel Tuner and of T4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.ablation.spaces import RecordedSpace, read_space

FAILED = "RuntimeFailedConfig"
TIMES: list[object] = [4.0, FAILED, 2.0, 3.0, 1.0, FAILED, 1.04, 5.0]


def cache(times: list[object], **changes: Any) -> dict[str, Any]:
    """A cache of Kernel Tuner: `A` counts the points from 0, `B` is always 7, and times are in ms."""
    return {
        "device_name": "a device", "kernel_name": "copy", "tune_params_keys": ["A", "B"],
        "tune_params": {"A": list(range(len(times))), "B": [7]},
        "cache": {f"{at},7": {"A": at, "B": 7, "time": time} for at, time in enumerate(times)},
        **changes,
    }  # fmt: skip


def result(
    settings: dict[str, Any], time: object = None, invalidity: str = "correct", **changes: Any
) -> dict[str, Any]:
    """One result of a T4 document."""
    measured = [] if time is None else [{"name": "time", "value": time, "unit": "ms"}]
    return {
        "configuration": settings, "times": {}, "invalidity": invalidity, "correctness": 1, "measurements": measured,
        **changes,
    }  # fmt: skip


def t4(*results: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A T4 results document."""
    return {"schema_version": "1.0.0", "results": list(results), **changes}


def write(path: Path, document: object) -> Path:
    """Write a document as JSON, or a text as it is."""
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def small(tmp_path: Path, times: list[object] = TIMES, name: str = "small") -> RecordedSpace:
    """Return a space whose points, in the order of the file, have these times in ms or texts of failures."""
    return read_space(write(tmp_path / f"{name}.json", cache(times)))
