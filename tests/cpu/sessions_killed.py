"""Sessions of `refine` through its verb: their compiler, what they are asked, their trees, and how one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from agentcompile.agents.folder import SessionFolder
from agentcompile.agents.journal import Refused
from agentcompile.agents.spans import BEGINS, ENDS
from agentcompile.agents.tree import Node
from tests.cpu import flows

COMPILER = {"AGENTCOMPILE_COMPILER": os.environ.get("CXX_REAL", "")}
"""The compiler itself: what stands before it in tests is a script, which no fence lets run."""
LAUNCH = {
    "grid": [], "block": [], "shared_bytes": 0, "cooperative": False, "cluster": [], "pdl": False, "early": [],
    "in_place": [], "pitched": [],
}  # fmt: skip
MANIFEST = {
    "layouts": [], "params": [], "workspaces": [], "requires": [], "arch": [], "accumulation": "float32", "rounds": [],
}  # fmt: skip


def manifest(entry: str, *arguments: str) -> dict[str, Any]:
    """A manifest of one launch as agents answer it."""
    return {**MANIFEST, "launch": [{"entry": entry, "arguments": list(arguments), **LAUNCH}]}


def asked_of(request: dict[str, Any]) -> dict[str, Any]:
    """The data of a question."""
    data: dict[str, Any] = json.loads(request["messages"][1]["content"])
    return data


def marked(kernel: str, *parts: str) -> str:
    """A kernel in which these parts may be changed."""
    for part in parts:
        kernel = kernel.replace(part, f"{BEGINS}\n{part}\n{ENDS}")
    return kernel


def tree(run: Path) -> list[tuple[object, ...]]:
    """A session's tree without its times."""
    entries = SessionFolder(run).entries()
    grown = [one for one in entries if isinstance(one, (Node, Refused))]
    return [
        (one.id, one.parent, one.written.digest if one.written else "", one.repeats)
        if isinstance(one, Node)
        else (one.node, one.reason)
        for one in grown
    ]


def killed_when(home: Path, arguments: tuple[object, ...], root: Path, exchanges: int) -> int:
    """Run a session in `root`'s folder `run`, and kill it as soon as so many answers are kept."""
    with (root / "said").open("w") as said:
        process = subprocess.Popen(
            flows.command(*arguments), env=flows.environment(home, COMPILER), cwd=flows.ROOT, stdin=subprocess.DEVNULL,
            stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            if len(list((root / "run/exchanges").glob("*.json"))) >= exchanges:
                break
            time.sleep(0.02)
        process.kill()
        code = process.wait(60)
    assert code == -signal.SIGKILL, (root / "said").read_text()
    return code
