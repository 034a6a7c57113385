"""The header of a result file: the command that made it, the revision of the sources, the machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcompile.cli.render import Screen
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
"""The paths whose changes count as changed sources: a new file does, a written result file does not."""


def write_record(
    out: Path, words: Sequence[str], begun: Mapping[str, Any], target: Target, found: Mapping[str, Any]
) -> None:
    """Write what a recipe `found` as JSON, headed by the command (its `words`), the revision and the machine."""
    command = " ".join(["agentcompile", "bench", *nameless(words)])
    record = {"format": 1, "command": command, **begun, "machine": encode(target), **found}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def say_next(command: str) -> None:
    """Print to stderr which command follows a result."""
    Screen.standard().next(command)


def nameless(words: Sequence[str]) -> list[str]:
    """Return a command's words with every path cut to its last part, so that committed files name no user's folder.

    In a list of arms, such as ``halving@replay:folder/answers;mcts@openai:m@http://127.0.0.1:1/v1``, addresses stay.
    """
    shown = []
    for word in words:
        option, given, told = word.partition("=") if word.startswith("--") else ("", "", word)
        parts = re.split("([;@])", told) if {";", "@"} & set(told) else [told]
        shown.append(option + given + "".join(map(_last, parts)))
    return shown


def _last(text: str) -> str:
    """Return a text such as ``replay:folder/answers`` with its path cut to the last part; an address is none."""
    if "/" not in text or "://" in text:
        return text
    kind, colon, path = text.rpartition(":")
    return kind + colon + Path(path).name


def revision() -> dict[str, Any]:
    """Return the git revision of the sources and whether they changed since; empty for an installed package.

    Sources that were copied to another machine without their repository have the file bench/REVISION: a hash, followed
    by `+` if they were changed.
    """
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        ran = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
        return ran.stdout.strip() if ran.returncode == 0 else ""

    carried = here.parent / "REVISION"
    if carried.exists():  # a git repository around the copy is not that of the sources
        name = carried.read_text(encoding="utf-8").strip()
        return {"revision": name.rstrip("+"), "changed_since": name.endswith("+")}
    name = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=all", "--", *_SOURCES)
    return {"revision": name, "changed_since": bool(changed)}
