"""The app: one canvas, keys in, lines out. `frame` and `start` make what is shown, `update` says what keys do.

It draws when a key comes, and when events come, at most `HZ` times a second; it draws nothing inside a timed round.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from textual import events
from textual.app import App, ComposeResult
from textual.screen import Screen

from . import start as start_page
from .canvas import Canvas
from .editing import pasted, typed
from .frame import frame
from .ink import Ink
from .pointing import NOTCH
from .scene import Effect, View
from .session import Outcome, Session
from .start import Start
from .themes import ANSI, PALETTES, textual_themes

POLL_S = 0.1
"""How often the run directory is looked at: one `stat` when nothing is new."""
HZ = 2.0
"""How often a second the screen follows events; keys are answered at once."""
YIELD_S = 0.001
SLICE_S = 0.02
"""How long events may be read before keys are looked at again."""

Open = Callable[[Start], "Session | str"]
"""Opens what was chosen on the start page, or returns the sentence that says why it cannot."""


class Whole(Screen[None], inherit_bindings=False):
    """The toolkit's only screen; its keys are the app's own."""

    BINDINGS = []  # noqa: RUF012 - the toolkit's own declaration; empty, so that no key is taken before ours

    def __init__(self, canvas: Canvas) -> None:
        super().__init__()
        self._canvas = canvas

    def compose(self) -> ComposeResult:
        """Yield the one canvas."""
        yield self._canvas


class CompilerApp(App[int], inherit_bindings=False):
    """The app: it shows a session, or the start page that opens one."""

    BINDINGS = []  # noqa: RUF012 - as above
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    TITLE = "agentcompile"
    CSS = "Whole { layers: base; overflow: hidden; } Canvas { layer: base; }"

    def __init__(
        self,
        *,
        session: Session | None,
        start: Start | None,
        open: Open,
        ink: Ink,
        theme: str = "",
        plain: bool = False,
    ) -> None:
        """Make the app; `plain` draws without any colour, with weight, reversal, glyphs and words alone."""
        # Only a filter made for the terminal's own colours takes colours out; the other one turns them grey.
        super().__init__(ansi_color=True if plain or theme == ANSI else None)
        for one in textual_themes():
            self.register_theme(one)
        self.session = session
        self.start = start
        self.ink = ink
        self.canvas = Canvas()
        self.fault: Exception | None = None
        self.first_paint_s = 0.0
        self._begin = time.perf_counter()
        self._open = open
        self._plain = plain
        self._wanted = theme or PALETTES[0].name
        self._place = View()
        self._drawn_at = float("-inf")
        self._dirty = True
        self._doing: set[asyncio.Task[None]] = set()
        self._terminal = -1

    def get_default_screen(self) -> Screen[None]:
        """Return the only screen, which the toolkit asks for here."""
        return Whole(self.canvas)

    def on_mount(self) -> None:
        """Paint what there is, then begin to follow."""
        self.theme = ANSI if self._plain else self._wanted
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._signalled, int(number))
            except (ValueError, RuntimeError):  # not in the main thread: a test
                break
        self._terminal = _terminal()
        self.set_interval(POLL_S, self._tick)
        self.call_after_refresh(self._guard, self._first)

    def on_unmount(self) -> None:
        """End what ran for the screen alone."""
        if self.session is not None:
            self.session.end()

    def _signalled(self, number: int) -> None:
        self.exit(128 + number)

    def on_resize(self, event: events.Resize) -> None:
        """Lay everything out again for another size."""
        self._place = replace(self._place, width=event.size.width, height=event.size.height)
        if self.session is not None:
            self.session.view = replace(self.session.view, width=event.size.width, height=event.size.height)
        self._guard(self.draw)

    def on_key(self, event: events.Key) -> None:
        """Answer one key at once."""
        event.stop()
        event.prevent_default()
        character = event.character if event.is_printable and event.character else ""
        self._guard(lambda: self._key(event.key, character))

    def on_click(self, event: events.Click) -> None:
        """Answer a click as the keys for what is drawn there would be."""
        event.stop()
        self._guard(lambda: self._clicked(event.screen_x, event.screen_y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move down through what is drawn under the pointer."""
        event.stop()
        self._guard(lambda: self._wheeled(event.screen_x, event.screen_y, 1))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move up through what is drawn under the pointer."""
        event.stop()
        self._guard(lambda: self._wheeled(event.screen_x, event.screen_y, -1))

    def on_paste(self, event: events.Paste) -> None:
        """Put pasted text where typing goes; ignore it elsewhere."""
        event.stop()
        self._guard(lambda: self._pasted(event.text))

    def _key(self, key: str, character: str) -> None:
        if self.session is not None:
            if key in ("ctrl+c", "ctrl+q"):
                self.exit(0)
                return
            self.session.poll(SLICE_S)  # what a key may do is decided by what is known now, not when last looked
            for effect in self.session.key(key, character):
                self._begin_effect(effect)
        elif self.start is not None:
            self._start_key(key, character)
        self.draw()

    def _clicked(self, x: int, y: int) -> None:
        if self.session is not None:
            self.session.poll(SLICE_S)
            for effect in self.session.click(x, y, self.ink):
                self._begin_effect(effect)
        elif self.start is not None:
            for key in start_page.clicked(self.start, self._place, x, y, self.ink):
                self._start_key(key, key if len(key) == 1 else "")
        self.draw()

    def _wheeled(self, x: int, y: int, by: int) -> None:
        if self.session is not None:
            self.session.wheel(x, y, by, self.ink)
        elif self.start is not None:
            for _ in range(NOTCH):
                self._start_key("down" if by > 0 else "up", "")
        self.draw()

    def _pasted(self, text: str) -> None:
        if self.session is not None:
            self.session.view = replace(self.session.view, overlay=pasted(self.session.view.overlay, text))
        elif self.start is not None and self.start.ask is not None:
            self.start = replace(self.start, ask=typed(self.start.ask, text))
        self.draw()

    def _start_key(self, key: str, character: str) -> None:
        assert self.start is not None
        self.start, does = start_page.press(self.start, key, character, self._place.height)
        match does:
            case "leave":
                self.exit(0)
            case "theme":
                self._next_theme()
            case "copy":
                text = start_page.command(self.start)
                self.copy_to_clipboard(text)
                self.start = replace(self.start, message=f"copied: {text}")
            case "open":
                opened = self._open(self.start)
                if isinstance(opened, str):
                    self.start = replace(self.start, message=opened)
                    return
                self.session = opened
                self.session.view = replace(opened.view, width=self._place.width, height=self._place.height)
                self._tick()
            case "":
                pass

    def _begin_effect(self, effect: Effect) -> None:
        task = asyncio.get_running_loop().create_task(self._effect(effect))
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _effect(self, effect: Effect) -> None:
        """Bring an effect about beside the screen, because a compiler may take a while to answer."""
        session = self.session
        assert session is not None
        try:
            outcome = await asyncio.to_thread(session.act, effect)
        except Exception as error:  # noqa: BLE001 - a defect of ours ends the app in order, with the terminal restored
            self._fail(error)
            return
        self._guard(lambda: self._came(session, outcome))

    def _came(self, session: Session, outcome: Outcome) -> None:
        if outcome.leave:
            self.exit(0)
            return
        if outcome.theme:
            self._next_theme()
        if outcome.copy:
            self.copy_to_clipboard(outcome.copy)
        view = session.view
        if outcome.page is not None:
            view = replace(view, overlay=outcome.page)
        if outcome.text:
            view = replace(view, message=outcome.text, tone="good" if outcome.ok else "bad")
        session.view = view
        session.poll(SLICE_S)
        self.draw()

    def _next_theme(self) -> None:
        names = [palette.name for palette in PALETTES]
        if self._plain:
            text = "NO_COLOR is set: there is one theme, without colour."
        else:
            after = PALETTES[(names.index(self.theme) + 1) % len(PALETTES)] if self.theme in names else PALETTES[0]
            self.ansi_color = after.ansi
            self.theme = after.name
            text = f"Theme: {after.label}"
        if self.session is not None:
            self.session.view = replace(self.session.view, message=text, tone="dim")
        elif self.start is not None:
            self.start = replace(self.start, message=text)
        self.canvas.refresh()

    def _first(self) -> None:
        if self.session is not None:
            self.session.poll(SLICE_S)
        self.draw()

    def _tick(self) -> None:
        if _hung_up(self._terminal):
            self._signalled(signal.SIGHUP)
            return
        self._guard(self._follow)

    def _follow(self) -> None:
        """Read what is new; draw it now, or with the next event where candidates are being timed."""
        session = self.session
        if session is None:
            return
        news = session.poll(SLICE_S)
        self._dirty = self._dirty or news
        now = time.monotonic()
        feed = session.feed
        if feed is not None and not feed.caught_up:
            # Through the loop and not the toolkit's queue, which would leave no turn to keys and timers.
            asyncio.get_running_loop().call_later(YIELD_S, self._tick)
        quiet = feed is not None and feed.timing and not news
        if self._dirty and not quiet and now - self._drawn_at >= 1 / HZ:
            self.draw()
            if session.untold(HZ):  # where it would draw anyway: never inside a timed round
                asyncio.get_running_loop().run_in_executor(None, session.tell, HZ)

    def draw(self) -> None:
        """Lay the screen out and draw what changed of it."""
        if self.session is not None:
            lines = frame(self.session.scene, self.session.view, self.ink, self.session.screens)
        elif self.start is not None:
            lines = start_page.frame(self.start, self._place, self.ink)
        else:
            return
        self.canvas.show(lines)
        self._drawn_at, self._dirty = time.monotonic(), False
        self.first_paint_s = self.first_paint_s or time.perf_counter() - self._begin

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a defect of ours ends the app in order, with the terminal restored
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.fault = error
        self.exit(1)

    def _fatal_error(self) -> None:
        """End the app in order after a defect inside the toolkit's own calls, which would print pages of locals."""
        self.fault = self._exception
        self._close_messages_no_wait()


def _terminal() -> int:
    """Return the descriptor of the terminal that keys come from; -1 where there is none, as in tests."""
    try:
        found = sys.__stdin__.fileno() if sys.__stdin__ is not None else -1
    except (OSError, ValueError):
        return -1
    return found if found >= 0 and os.isatty(found) else -1


def _hung_up(terminal: int) -> bool:
    """Return whether the terminal is gone.

    A process whose terminal is not its controlling one gets no signal when that goes, and the toolkit would read its
    end again and again.
    """
    if terminal < 0:
        return False
    looked = select.poll()
    looked.register(terminal, 0)  # errors and hang-ups are told whatever is asked for
    return bool(looked.poll(0))
