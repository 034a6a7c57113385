"""How a session of `refine` is found, opened and followed in the app."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui.app import CompilerApp
from agentcompile.tui.cli import headless
from agentcompile.tui.finding import meaning, start_of
from agentcompile.tui.ink import Ink
from agentcompile.tui.opening import opened as opened_by
from agentcompile.tui.refine_session import RefineSession
from agentcompile.tui.scene import Dialog
from agentcompile.tui.start import command as start_command
from refine_folders import FINISHED, TREE, append, folder
from test_app import driven, settled, shown
from textual.pilot import Pilot

from agentcompile.agents.journal import Pruned
from agentcompile.errors import AgentCompileError
from agentcompile.options import Options


def test_sessions_are_found_named_and_opened_beside_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = folder(home / "runs" / "20260101-session", TREE, FINISHED).path
    (home / "runs" / "20260102-broken").mkdir()
    (home / "runs" / "20260102-broken" / "session.json").write_text("{}")
    options = Options(home=str(home))
    page = start_of(options, tmp_path)
    found = {one.name: (one.kind, one.about) for one in page.found if one.kind == "refine"}
    assert found["20260101-session"] == ("refine", "done, rmsnorm of sample")
    assert "version" in found["20260102-broken"][1]
    assert start_command(replace(page, chosen=str(path))) == f"agentcompile refine show {path}"
    assert meaning("20260101-session", options.runs) == meaning(str(path), options.runs) == ("refine", path)
    assert headless(str(path), {}, options.runs) == f"agentcompile refine show {path}"
    assert isinstance(opened_by("refine", path, options, {}), RefineSession)
    with pytest.raises(AgentCompileError, match="not shown again"):
        opened_by("refine", path, options, {}, speed=2.0)
    with pytest.raises(AgentCompileError, match="reads 1"):
        opened_by("refine", home / "runs" / "20260102-broken", options, {})


def test_the_app_opens_a_session_follows_it_asks_and_prunes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    one = folder(home / "runs" / "20260101-session", TREE[:3])
    options = Options(home=str(home))
    page = replace(start_of(options, tmp_path), chosen=str(one.path))
    app = CompilerApp(
        session=None, start=page, open=lambda page: opened_by("refine", Path(page.chosen), options, {}), ink=Ink()
    )

    async def until(pilot: Pilot[int], words: str) -> None:
        end = time.monotonic() + 60
        while words not in shown(app):
            assert time.monotonic() < end, shown(app)
            await asyncio.sleep(0.02)
            await pilot.pause()

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pilot.press("enter")
        await until(pilot, "2 of 12 attempts")
        append(one, *TREE[3:5])
        await until(pilot, "4 of 12 attempts, 1 refused")
        await pilot.press("j", "x")
        await settled(pilot)
        assert isinstance(app.session, RefineSession)
        assert isinstance(app.session.view.overlay, Dialog)
        assert "Close the branch of node 1" in shown(app)
        await pilot.press("enter")
        await until(pilot, "Node 1 is closed.")
        await until(pilot, "⊘ pruned")
        await pilot.press("q")

    driven(app, walk)
    assert app.return_value == 0
    assert one.entries()[-1] == Pruned(node=1)
