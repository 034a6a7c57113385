"""Small measured facts that are slow to find again (a fallback's time, an admitted plan), kept in the store as JSON."""

from __future__ import annotations

import json

from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.template import Source
from agentcompile.system.store import Store

_SUFFIX = ".note.json"
SOURCE = ".source"
"""The suffix of files that hold the source text of a candidate."""


class Notes:
    """Facts under the digest of everything they depend on; a note that does not decode counts as absent."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_json(self, key: str) -> Json:
        """Return the value noted under `key`, or None; a note that does not decode is deleted."""
        path = self._store.get(key, _SUFFIX)
        if path is None:
            return None
        try:
            found: Json = json.loads(path.read_bytes())
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None
        return found

    def get(self, key: str) -> int | None:
        """Return the integer noted under `key`, or None when nothing or something else was noted."""
        found = self.get_json(key)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def keep_source(self, source: Source) -> None:
        """Keep the source text that the compiler sees (or the library call with its settings) for people to read."""
        settings = ", ".join(f"{name}={value}" for name, value in source.settings)
        self._store.write(source.digest, (source.text or f"{source.call}({settings})\n").encode(), SOURCE)

    def renew(self, key: str, value: Json) -> None:
        """Note `value` under `key` in place of any other value."""
        if self.get_json(key) not in (None, value):
            self.drop(key)
        self.put(key, value)

    def drop(self, key: str) -> None:
        """Remove what is noted under `key`, if anything is."""
        self._store.path(key, _SUFFIX).unlink(missing_ok=True)

    def put(self, key: str, value: Json) -> None:
        """Note `value` under `key` atomically, unless a value is there already."""
        self._store.write(key, canonical(value), _SUFFIX)
