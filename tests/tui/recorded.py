"""Recorded runs of the sample checkpoint, and what the app makes of them without a terminal.

stopped     a first compile whose machine was too busy to time the whole step
finished    a compile from its first event to its lock
reviewed    one that waited for a person: approvals and an override, then its lock; with single times of measurements
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from agentcompile.tui.feed import Feed
from agentcompile.tui.frame import frame
from agentcompile.tui.ink import Ink
from agentcompile.tui.scene import Scene, View
from agentcompile.tui.screens import SCREENS
from agentcompile.tui.session import Session

from agentcompile.ir.codec import encode
from agentcompile.options import Options
from agentcompile.runs.session import EVENTS, OPTIONS, options_bytes

BY_NAME = {screen.name: screen for screen in SCREENS}
RUNS = Path(__file__).parent / "runs"
GOLDENS = Path(__file__).parent / "golden"


def lines(name: str) -> list[bytes]:
    """The lines of a recorded ``events.jsonl``."""
    return lzma.decompress((RUNS / f"{name}.jsonl.xz").read_bytes()).splitlines(keepends=True)


def event_dicts(name: str) -> list[dict[str, object]]:
    """Its events as plain tables."""
    return [json.loads(line)["event"] for line in lines(name)]


def run_directory(folder: Path, name: str, *, upto: int | None = None) -> Path:
    """A run directory that holds a recorded run, or its first `upto` events."""
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(model="bench/models/sample", out="sample.lock.toml")
    (folder / OPTIONS).write_bytes(options_bytes(encode(options)))
    (folder / EVENTS).write_bytes(b"".join(lines(name)[:upto]))
    return folder


def fed(path: Path) -> Feed:
    """A feed that has read all there is."""
    feed = Feed(path)
    while not feed.caught_up:
        feed.poll(1.0)
    return feed


def scene(path: Path) -> Scene:
    """What the app knows of a run, named so that it reads the same everywhere."""
    feed = fed(path)
    return Scene(
        run="a-run", path="RUN", state=feed.state, life=feed.life(), log=feed.log, advice=feed.advice,
        course=feed.course,
        elapsed_s=feed.elapsed_s, lock_path="sample.lock.toml",
    )  # fmt: skip


def session(path: Path, speed: float = 0.0, **more: object) -> Session:
    """A session on a run directory whose commands go nowhere unless `deliver` is given."""
    arguments = {"deliver": refuse, "store": path / "store", **more}
    return Session(Feed(path, speed=speed), name="a-run", **arguments)  # type: ignore[arg-type]


def refuse(path: Path, command: object) -> object:
    """A compiler that is not there."""
    raise AssertionError(f"{command} was sent to {path}")


def text(scene: Scene, view: View, *, ascii: bool = False) -> str:
    """A screen as text, without the blanks at the ends of lines."""
    return "\n".join(line.plain.rstrip() for line in frame(scene, view, Ink(ascii=ascii))) + "\n"
