"""What a long run has found so far, line by line in a file, so that a stopped run can resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentcompile.ir.digest import Json, digest


class Ledger:
    """The results of attempts by key, a line each in a file beside the result, so that a stopped run can resume.

    Lines under other `terms` are ignored. Without a path the results are lost when the process ends.
    """

    def __init__(self, path: Path | None, terms: tuple[Json, ...]) -> None:
        self._path, self._terms = path, digest("campaign/1", list(terms))
        self._found: dict[str, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if isinstance(row, dict) and row.get("terms") == self._terms:
                self._found[str(row["key"])] = row["told"]

    def known(self, key: str) -> dict[str, Any] | None:
        """Return the result for `key`; None when there is none."""
        return self._found.get(key)

    def keep(self, key: str, told: dict[str, Any]) -> None:
        """Record a result, and append it to the file if there is one."""
        self._found[key] = told
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"terms": self._terms, "key": key, "told": told}) + "\n")
