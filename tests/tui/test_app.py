"""The app itself, driven by keys through the toolkit's pilot."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui.app import CompilerApp
from agentcompile.tui.finding import start_of
from agentcompile.tui.ink import Ink
from agentcompile.tui.keys import acts, here
from agentcompile.tui.screens import SCREENS
from agentcompile.tui.session import Session
from agentcompile.tui.start import Start
from agentcompile.tui.trials import region_of
from recorded import BY_NAME, lines, run_directory, session
from textual.pilot import Pilot

from agentcompile.control.commands import Command, Reply
from agentcompile.events import Event, RoundsProgress, TrialStarted, Watched, encode
from agentcompile.options import Options
from agentcompile.runs.session import EVENTS

Walk = Callable[[Pilot[int], CompilerApp], Coroutine[None, None, None]]
ELSEWHERE = ("detach", "stop", "pause", "write", "check", "replay")
"""What starts and ends processes has tests of its own."""
NAMES = {"?": "question_mark", ":": "colon", "/": "slash", "[": "left_square_bracket", "]": "right_square_bracket"}


def app_of(one: Session | None, start: Start | None = None, ascii: bool = False) -> CompilerApp:
    def refuse(page: Start) -> Session | str:
        return "It cannot be opened here."

    return CompilerApp(session=one, start=start, open=refuse, ink=Ink(ascii=ascii))


def driven(app: CompilerApp, walk: Walk, size: tuple[int, int] = (80, 24)) -> CompilerApp:
    """Run the app at a size and walk through it; a defect of ours is raised here."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            await walk(pilot, app)

    asyncio.run(run())
    if app.fault is not None:
        raise app.fault
    return app


async def settled(pilot: Pilot[int]) -> None:
    """Wait until what was begun is done."""
    await pilot.pause()
    app = pilot.app
    assert isinstance(app, CompilerApp)
    while app._doing:
        await asyncio.sleep(0.01)
    await pilot.pause()


async def pressed(pilot: Pilot[int], *keys: str) -> None:
    await pilot.press(*(NAMES.get(key, key) for key in keys))
    await settled(pilot)


def shown(app: CompilerApp) -> str:
    """What stands on the canvas."""
    return "\n".join(
        "".join(segment.text for segment in app.canvas.render_line(y)) for y in range(len(app.canvas.lines))
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_directory(tmp_path / "run", "finished")


@pytest.mark.parametrize(("size", "modes"), [((80, 24), [*BY_NAME]), ((160, 48), ("tune",))], ids=["80x24", "160x48"])
def test_every_action_is_a_key_that_leaves_the_app_alive(
    run: Path, size: tuple[int, int], modes: Sequence[str]
) -> None:
    sent: list[Command] = []

    def deliver(path: Path, command: Command) -> Reply:
        sent.append(command)
        return Reply(ok=True, text="noted")

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        for mode in modes:
            number = [*BY_NAME].index(mode) + 1
            for act in acts(SCREENS):
                everywhere = all(here(act, screen, SCREENS) for screen in SCREENS)
                if act.name in ELSEWHERE or not here(act, BY_NAME[mode], SCREENS) or (everywhere and mode != "regions"):
                    continue
                await pilot.press(f"{number}", NAMES.get(act.keys[0], act.keys[0]))
                await settled(pilot)
                assert app.is_running, act.name
                assert shown(app).splitlines()[-1].rstrip().endswith("? help  q quit"), act.name
                await pilot.press("escape", "escape")
        await pressed(pilot, "q")

    app = driven(app_of(session(run, deliver=deliver)), walk, size)
    assert app.return_value == 0


def test_keys_are_answered_at_once_and_the_screen_follows_the_events(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=20)
    rest = lines("finished")[20:]

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        before = shown(app)
        with (run / EVENTS).open("ab") as file:
            file.write(b"".join(rest)[:-5])  # the last line is only half there
        while app.session is not None and app.session.scene.state.counts.total < 10:
            await pilot.pause(0.05)
        await pilot.pause(0.7)
        assert shown(app) != before
        assert "trials" in shown(app)
        await pressed(pilot, "3")
        assert "\u2192" in shown(app)

    driven(app_of(session(run)), walk)


def test_a_key_is_answered_by_what_has_happened_and_not_by_what_was_last_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcompile.tui.app.POLL_S", 3600.0)
    run = run_directory(tmp_path / "run", "finished", upto=-5)

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        assert app.session is not None
        while not app.session.scene.state.final:  # the last of it is read below
            app.session.poll(1.0)
        with (run / EVENTS).open("ab") as file:
            file.write(b"".join(lines("finished")[-5:]))
        assert app.session.scene.state.lock is None
        await pressed(pilot, "R")
        assert app.session.scene.state.lock is not None

    driven(app_of(session(run)), walk)


def test_what_a_person_decides_is_sent_and_the_answer_is_shown(run: Path) -> None:
    sent: list[Command] = []

    def deliver(path: Path, command: Command) -> Reply:
        sent.append(command)
        return Reply(ok=False, text="It changed meanwhile.")

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pressed(pilot, "3", "n", *"because", "enter")
        assert [command.kind for command in sent] == ["reject"]
        assert "It changed meanwhile." in shown(app)
        await pressed(pilot, "j")
        assert "It changed meanwhile." not in shown(app)

    driven(app_of(session(run, deliver=deliver)), walk)


def test_a_terminal_made_too_small_says_so_and_recovers(run: Path) -> None:
    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pilot.resize_terminal(59, 20)
        await pilot.pause()
        assert "60\u00d716" in shown(app)
        await pilot.resize_terminal(160, 48)
        await pilot.pause()
        assert "\u2502" in shown(app)
        await pressed(pilot, "q")

    driven(app_of(session(run)), walk)


def test_every_theme_can_be_looked_at(run: Path) -> None:
    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        seen = []
        for _ in range(4):
            await pressed(pilot, "t")
            seen.append(app.theme)
            assert app.export_screenshot()
        assert len(set(seen)) == 4

    driven(app_of(session(run)), walk)


def test_a_run_is_shown_again_at_a_speed(run: Path) -> None:
    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        while one.scene.state.status != "finished":
            await pilot.pause(0.05)
        await pilot.pause(0.7)
        assert "again at" in shown(app)
        await pressed(pilot, "3", "y")
        assert "past run" in shown(app)

    one = session(run, speed=5000.0)
    driven(app_of(one), walk)


def test_a_defect_of_ours_ends_the_app_in_order(run: Path) -> None:
    one = session(run)

    def broken(budget_s: float = 0.0) -> bool:
        raise RuntimeError("a planted defect")

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        one.poll = broken  # type: ignore[method-assign]
        await pilot.pause(0.3)

    app = app_of(one)
    with pytest.raises(RuntimeError, match="a planted defect"):
        driven(app, walk)
    assert app.return_code == 1 or app.return_value == 1


def test_a_run_that_is_no_run_says_so_and_the_app_lives(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=3)
    with (run / EVENTS).open("ab") as file:
        file.write(json.dumps({"seq": 3, "at_ms": 1, "event": {"kind": "from-the-future"}}).encode() + b"\n")

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pilot.pause(0.7)
        assert "no event" in " ".join(shown(app).split())  # it breaks lines where the folder's path ends
        await pressed(pilot, "5", "q")

    driven(app_of(session(run)), walk)


def test_nothing_is_drawn_between_events(run: Path) -> None:
    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pilot.pause(0.7)
        drawn = app.canvas.drawn
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            await pilot.pause(0.05)
        assert app.canvas.drawn == drawn

    driven(app_of(session(run)), walk)


def test_nothing_is_drawn_inside_a_timed_round_but_with_the_event_that_ends_it(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished", upto=150)
    one = session(run)

    def happens(event: Event) -> None:
        line = json.dumps({"at_ms": 1, "event": encode(event), "seq": 9}, separators=(",", ":"), sort_keys=True)
        with (run / EVENTS).open("ab") as file:
            file.write(line.encode() + b"\n")

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pilot.pause(0.7)
        region = region_of(one.scene, one.view)
        happens(TrialStarted(region=region, candidate="c", label="a(b=1)"))
        for number, more in enumerate([[], [Watched(ui_hz=2.0)]]):
            await pilot.pause(0.7)
            happens(RoundsProgress(region=region, done=10 * number, total=90))
            await pilot.pause(0.15)
            for event in (RoundsProgress(region=region, done=10 * number + 1, total=90), *more):
                happens(event)  # too soon after a drawing: it is read, and waits for the next one
                await pilot.pause(0.15)
            drawn = app.canvas.drawn
            await pilot.pause(0.9)
            assert app.canvas.drawn == drawn, f"drawn while nothing happened, {number}"
            happens(RoundsProgress(region=region, done=10 * number + 2, total=90))
            await pilot.pause(0.3)
            assert app.canvas.drawn == drawn + 1
            assert f"{10 * number + 2}/90" in shown(app)

    driven(app_of(one), walk, (160, 48))


def test_the_start_page_opens_what_is_chosen(tmp_path: Path, run: Path) -> None:
    model = tmp_path / "cwd" / "a-model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 6}')
    (model / "model.safetensors").write_bytes(b"")
    page = start_of(Options(home=str(tmp_path / "home")), tmp_path / "cwd")
    opened: list[str] = []

    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        assert "a-model" in shown(app)
        assert "$ agentcompile compile a-model --review" in shown(app)
        await pressed(pilot, "tab", "right")
        assert "--target=cpu" in shown(app)
        await pressed(pilot, "down", "down", "down", "enter", "ctrl+u", *"32", "enter")
        assert "--budget=32" in shown(app)
        await pressed(pilot, "tab", "enter")
        assert opened == ["a-model"]
        assert "Regions" in shown(app)
        await pressed(pilot, "q")

    def open_run(page: Start) -> Session | str:
        opened.append(page.chosen or page.found[0].argument)
        return session(run)

    app = CompilerApp(session=None, start=page, open=open_run, ink=Ink())
    driven(app, walk)


def test_the_start_page_says_why_something_cannot_be_opened(tmp_path: Path) -> None:
    async def walk(pilot: Pilot[int], app: CompilerApp) -> None:
        await pressed(pilot, "m", *"nowhere", "enter")
        assert "It cannot be opened here." in shown(app)
        await pressed(pilot, "?")
        assert "the settings of a new compile" in shown(app)
        await pressed(pilot, "?", "q")

    page = start_of(Options(home=str(tmp_path)), tmp_path)
    driven(app_of(None, replace(page, found=page.found[:2])), walk)
