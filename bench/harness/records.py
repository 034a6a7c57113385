"""What a result file says of how it was made: the command, the revision of the sources, the machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcompile.ir.codec import encode
from agentcompile.ir.target import Target

_SOURCES = (
    ":/agentcompile",
    ":/bench",
    ":/templates",
    ":/pyproject.toml",
    ":/constraints.txt",
    ":(top,exclude)bench/results",
)
"""What a result comes from: a new file there is a change too, and a result that is written there is none."""


def write_record(
    out: Path, words: Sequence[str], begun: Mapping[str, Any], target: Target, found: Mapping[str, Any]
) -> None:
    """Write what a recipe found as JSON, after the command (the recipe and its `words`), the revision, the machine."""
    command = " ".join(["agentcompile", "bench", *nameless(words)])
    record = {"format": 1, "command": command, **begun, "machine": encode(target), **found}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def nameless(words: Sequence[str]) -> list[str]:
    """A command's words without this machine's paths: a file that is committed names no folder of whoever made it."""
    return [_nameless(word) for word in words]


def _nameless(word: str) -> str:
    option, given, path = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + given + (Path(path).name if "/" in path else path)


def revision() -> dict[str, Any]:
    """The git revision of the sources, and whether they were changed since; nothing for an installed package.

    Sources that were carried to another machine without their repository have it from the file bench/REVISION, a hash
    with a `+` behind it when they were changed.
    """
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        ran = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
        return ran.stdout.strip() if ran.returncode == 0 else ""

    carried = here.parent / "REVISION"
    if carried.exists():  # a repository around the copy is not theirs
        name = carried.read_text(encoding="utf-8").strip()
        return {"revision": name.rstrip("+"), "changed_since": name.endswith("+")}
    name = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=all", "--", *_SOURCES)
    return {"revision": name, "changed_since": bool(changed)}
