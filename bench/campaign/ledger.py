"""The results of a campaign so far, one line each in a file beside its result, so that a stopped one can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import agentcompile
from agentcompile.catalog import default_root
from agentcompile.ir.digest import Json, digest, digest_files

Told = dict[str, object]


def package_digest() -> str:
    """Return the digest of the whole compiler with its templates; results under another digest do not count."""
    roots = (Path(agentcompile.__file__).resolve().parent, default_root())
    files = [
        path for root in roots for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
    ]
    return digest_files("package/1", files)


class Ledger:
    """The results of attempts by key, of a campaign under the same `terms`; lines under other terms are ignored.

    Without a path the results are lost when the process ends.
    """

    def __init__(self, path: Path | None, terms: tuple[Json, ...]) -> None:
        self._path, self._terms = path, digest("campaign/1", list(terms))
        self._found: dict[str, Told] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            return
        if isinstance(row, dict) and row.get("terms") == self._terms:
            self._found[str(row["key"])] = row["told"]

    def known(self, key: str) -> Told | None:
        """Return the result for `key`; None when there is none."""
        return self._found.get(key)

    def keep(self, key: str, told: Mapping[str, object]) -> None:
        """Record a result, and append it to the file if there is one."""
        self._found[key] = dict(told)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"terms": self._terms, "key": key, "told": dict(told)}) + "\n")
