"""A screen of the app is one row: one that the test brings along is opened, shown, moved in and acted on like any."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace
from pathlib import Path

from agentcompile.tui.app import CompilerApp
from agentcompile.tui.feed import Feed
from agentcompile.tui.grid import Column, Entry
from agentcompile.tui.ink import Ink, Line, line
from agentcompile.tui.scene import Scene, Step, View
from agentcompile.tui.screen import Act, ScreenSpec
from agentcompile.tui.screens import SCREENS
from agentcompile.tui.session import Session
from textual.pilot import Pilot

from agentcompile.control.commands import Reply
from tests.tui.recorded import run_directory


def entries(scene: Scene, view: View) -> list[Entry]:
    return [Entry(key=row.region, cells=((row.name, ""), (f"{row.sites} sites", "dim"))) for row in scene.state.rows]


def detail(scene: Scene, view: View, region: str, width: int, ink: Ink) -> list[Line]:
    return [line((f"a note on {region[:12]}", "title"))]


def noted(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    return Step(view=replace(view, message=f"noted on {screen.title}"))


NOTES = ScreenSpec(
    name="notes",
    title="Notes",
    about="what a person wrote down",
    columns=lambda scene, view: (Column(head="region", width=30, grow=1), Column(head="size", width=10)),
    entries=entries,
    detail=detail,
    keys=(Act("note", ("N",), "write something down", noted),),
    foot=("open", "note"),
)


async def after(pilot: Pilot[int], *keys: str) -> str:
    """What stands on the screen after some keys."""
    await pilot.press(*keys)
    await pilot.pause()
    assert isinstance(pilot.app, CompilerApp)
    return "\n".join(one.plain for one in pilot.app.canvas.lines)


async def walk(session: Session) -> None:
    app = CompilerApp(session=session, start=None, open=lambda page: "", ink=Ink())
    first, second, *_ = entries(session.scene, session.view)
    async with app.run_test(size=(120, 36)) as pilot:
        assert "6 Notes" in await after(pilot)
        shown = await after(pilot, "6")
        assert f"a note on {first.key[:12]}" in shown
        assert "size" in shown
        assert all(text in shown for entry in (first, second) for text, _ in entry.cells)
        assert "N note" in shown.splitlines()[-1]
        assert f"a note on {second.key[:12]}" in await after(pilot, "j")
        assert f"a note on {first.key[:12]}" in await after(pilot, "k")
        assert "Nothing matches 'zz'" in await after(pilot, "slash", *"zz", "enter")
        assert "noted on Notes" in await after(pilot, "escape", "N")
        assert "write something down" in await after(pilot, "colon", *"note")
        assert "works in 6 Notes" in await after(pilot, "escape", "1", "N")
    if app.fault is not None:
        raise app.fault


def test_a_screen_is_a_row(tmp_path: Path) -> None:
    feed = Feed(run_directory(tmp_path / "run", "finished"))
    session = Session(
        feed, name="a-run", deliver=lambda path, command: Reply(ok=True, text=""), store=tmp_path,
        screens=(*SCREENS, NOTES),
    )  # fmt: skip
    while not feed.caught_up:
        session.poll(1.0)
    asyncio.run(walk(session))


def _asks_which(text: str) -> list[str]:
    """Comparisons and matches of the name of the screen that is shown."""
    asked = [
        node.subject if isinstance(node, ast.Match) else node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Match, ast.Compare))
    ]
    return [ast.unparse(one) for one in asked if any(getattr(inner, "attr", "") == "mode" for inner in ast.walk(one))]


def test_only_the_look_up_in_the_table_asks_which_screen_is_shown(repository: Path) -> None:
    assert _asks_which('match view.mode:\n    case "tune" if view.mode in ("a", "b"): ...')
    found = {path.name: _asks_which(path.read_text(encoding="utf-8")) for path in (repository / "tui").glob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {"screen.py": ["screen.name == view.mode"]}
