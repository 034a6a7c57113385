"""One run or lock on the screen: what is known of it, and what the app does for it outside.

In: keys and time. Out: a `Scene` and a `View` to draw. It knows nothing of the toolkit, so that it is tested without.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.control.actions import action
from agentcompile.control.client import send
from agentcompile.control.commands import Command, Reply, Stop, Watch
from agentcompile.errors import AgentCompileError
from agentcompile.lockfile.files import read_lock
from agentcompile.runs.folders import resuming
from agentcompile.runs.recorded_searches import RecordedSearches
from agentcompile.runs.status import Status, glance

from . import asks, chrome, compiler, source
from .feed import Feed
from .ink import Ink
from .locking import lock_facts
from .pointing import clicked, wheeled
from .scene import Call, Effect, Page, Replay, Scene, Send, Steer, View
from .screen import Screens, shown
from .screens import SCREENS
from .update import press

TELLS, TELL_S = 5, 0.5
"""How often a compiler is told that it is watched, and how long it may take to answer."""
Deliver = Callable[[Path, Command], Reply]
"""How a command reaches the compiler of a run directory, or its events when none works there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an effect: a sentence, or a page; `leave` ends the app; `copy` goes to the clipboard."""

    text: str = ""
    ok: bool = True
    page: Page | None = None
    leave: bool = False
    theme: bool = False
    copy: str = ""


class Session:
    """A run that is followed, shown again, or begun; or a lock without one."""

    def __init__(
        self,
        feed: Feed | None,
        *,
        name: str,
        lock: Path | None = None,
        process: subprocess.Popen[bytes] | None = None,
        deliver: Deliver,
        store: Path,
        recorded: RecordedSearches | None = None,
        authors: Mapping[str, str] | None = None,
        screens: Screens = SCREENS,
        run: compiler.RunVerb = compiler.run_verb,
    ) -> None:
        self.feed = feed
        self.screens = screens
        self.view = View(mode="lock" if feed is None else screens[0].name)
        self.process = process
        self.scene = Scene(
            run=name,
            path=str(feed.path) if feed else "",
            reading=feed is not None,
            lock_path=str(lock or ""),
            authors=authors or {},
            recorded=recorded,
        )
        self._deliver = deliver
        self._run = run
        self._store = store
        self._runner: compiler.LockRunner | None = None
        self._locked = ""
        self._told = 0
        if lock is not None and lock.exists():
            self._read(lock)

    def _read(self, path: Path) -> None:
        try:
            facts = lock_facts(read_lock(path)) if self.feed is None else ()
            text = compiler.lock_lines(path)
        except AgentCompileError as error:
            self.scene = replace(self.scene, fault=f"{error.message}; {error.hint}")
            return
        self.scene = replace(self.scene, lock_path=str(path), lock_text=text, lock_facts=facts)

    def poll(self, budget_s: float = 0.03) -> bool:
        """Read what is new for at most about `budget_s`, and return whether the screen may have changed."""
        before = self.scene
        if self._runner is not None:
            replay = self._runner.poll()
            if replay != self.scene.replay:
                self.scene = replace(self.scene, replay=replay)
            if replay.exit_code is not None:
                self._runner.end()
                self._runner = None
        feed = self.feed
        if feed is None:
            return self.scene is not before
        news = feed.poll(budget_s)
        ended = self.process is not None and self.process.poll() is not None
        life = feed.life(starting=self.process is not None and not ended)
        fault = feed.fault or (self._stillborn() if ended and feed.state.status == "waiting" else "")
        if life != self.scene.life:  # what was said of the compiler before is outdated
            self.view = replace(self.view, message="")
        reading = not feed.caught_up
        if news or (life, fault, reading) != (self.scene.life, self.scene.fault, self.scene.reading):
            self.scene = replace(
                self.scene,
                state=feed.state,
                log=feed.log,
                advice=dict(feed.advice),
                course=feed.course,
                life=life,
                reading=reading,
                elapsed_s=feed.elapsed_s,
                ending=compiler.why_gone(feed.path, self._said()) if life == "lost" else "",
                fault=fault,
                speed=feed.speed,
            )
        lock = feed.state.lock
        if lock is not None and lock.digest != self._locked:
            self._locked = lock.digest
            if Path(lock.path).exists():
                self._read(Path(lock.path))
            else:
                self.scene = replace(self.scene, lock_path=lock.path)
        return self.scene is not before

    def untold(self, ui_hz: float) -> bool:
        """Return whether a compiler works that may not know yet that it is watched; true a few times only."""
        feed = self.feed
        if feed is None or feed.speed or not feed.held or feed.state.ui_hz >= ui_hz or self._told >= TELLS:
            return False
        self._told += 1
        return True

    def tell(self, ui_hz: float) -> None:
        """Have the compiler write into the run how often a second this screen is drawn, and wait for it."""
        with contextlib.suppress(AgentCompileError):  # it is told again, or is one that nobody can steer
            send(Path(self.scene.path), Watch(ui_hz=ui_hz), timeout_s=TELL_S)

    def _stillborn(self) -> str:
        said = [text for text in self._said() if not text.startswith(compiler.BEGINS)]
        return "the compiler did not start: " + ("; ".join(said[-2:]) or "it said nothing")

    def _said(self) -> list[str]:
        return [line.text for line in (self.feed.log if self.feed else ()) if line.source == "stderr"]

    def key(self, key: str, character: str = "") -> tuple[Effect, ...]:
        """Take one key, and return the effects that `act` brings about."""
        step = press(self.scene, self.view, key, character, self.screens)
        self.view = step.view
        return step.effects

    def click(self, x: int, y: int, ink: Ink) -> tuple[Effect, ...]:
        """Take a click on a cell, and return the effects that `act` brings about."""
        step = clicked(self.scene, self.view, x, y, ink, self.screens)
        self.view = step.view
        return step.effects

    def wheel(self, x: int, y: int, by: int, ink: Ink) -> None:
        """Take one notch of the wheel over a cell, 1 downwards or -1 upwards."""
        self.view = wheeled(self.scene, self.view, x, y, by, ink, self.screens).view

    def act(self, effect: Effect) -> Outcome:
        """Bring an effect about; it may take seconds where a compiler must answer, so it runs beside the screen."""
        try:
            match effect:
                case Send(command=command):
                    reply = self._deliver(Path(self.scene.path), command)
                    return Outcome(text=reply.text, ok=reply.ok)
                case Call():
                    return self._call(effect)
                case Steer():
                    return self.steer(effect)
        except AgentCompileError as error:
            return Outcome(text=f"{error.message}{'; ' + error.hint if error.hint else ''}", ok=False)

    def steer(self, steer: Steer) -> Outcome:
        """Do something with a session of `refine`.

        Raises:
            AssertionError: this is a run of `compile`.
        """
        raise AssertionError(f"{steer.what}: this is no session of `refine`")

    def _call(self, call: Call) -> Outcome:
        match call.what:
            case "leave":
                return Outcome(leave=True)
            case "stop":
                return self._stop()
            case "theme":
                return Outcome(theme=True)
            case "report":
                return self._report()
            case "copy":
                text = self.command()
                return Outcome(text=f"copied: {text}", copy=text)
            case "source" | "diff":
                return self._source(call)
            case "lock-text":
                page = Page(title=self.scene.lock_path, kind="source", lines=self.scene.lock_text, language="toml")
                return Outcome(page=page)
            case "resume" | "write":
                return self._resume(call.what)
            case "check" | "replay":
                return self._replay(call.what)

    def _stop(self) -> Outcome:
        """End the compiler in good order, by a signal where it does not answer; either way the app leaves."""
        try:
            self._deliver(Path(self.scene.path), Stop())
        except AgentCompileError:
            compiler.end(self.process)
        return Outcome(leave=True)

    def _report(self) -> Outcome:
        """Write the run's report as it is now into its directory, and open it where a program opens files."""
        path = Path(self.scene.path) / compiler.REPORT
        code, _, said = self._run(["report", self.scene.path, "--out", str(path), "--json"])
        if code:
            return Outcome(text=compiler.refused(code, said), ok=False)
        return Outcome(
            text=f"{'Opened' if compiler.show(path) else 'No program opens files here; the report is'} {path}"
        )

    def _source(self, call: Call) -> Outcome:
        region = asks.target_of(self.scene, self.view, shown(self.screens, self.view))
        folder = Path(self.scene.path)
        page = source.page(self.scene.state, region, call.text, folder, self._store, diff=call.what == "diff")
        return Outcome(page=page) if isinstance(page, Page) else Outcome(text=page, ok=False)

    def _resume(self, what: str) -> Outcome:
        if self.process is not None and self.process.poll() is None:
            return Outcome(text="The compiler is at work already.", ok=False)
        path = Path(self.scene.path)
        self.process = compiler.start(path, ["compile", "--resume", "--run-dir", str(path), "--quiet"])
        return Outcome(
            text="The compiler checks the whole model, then writes the lock: its stages are above."
            if what == "write"
            else "The compiler resumes where it stopped."
        )

    def _replay(self, what: str) -> Outcome:
        self.end()
        kind: Replay = Replay(what="check" if what == "check" else "replay")
        arguments = ["replay", self.scene.lock_path, *compiler.model_flags(self.scene.state.model), "--events", "jsonl"]
        self._runner = compiler.LockRunner([*arguments, *(["--check"] if what == "check" else [])], kind)
        self.scene = replace(self.scene, replay=kind)
        return Outcome(text="")

    def command(self) -> str:
        """Return the command that does without the app what the screen is about."""
        scene, screen = self.scene, shown(self.screens, self.view)
        row = scene.state.row(asks.target_of(scene, self.view, screen))
        values = {"RUN": scene.path, "REGION": row.name if row else "REGION", "LOCK": scene.lock_path or "LOCK"}
        command = screen.headless if scene.path else action("replay").headless
        return re.sub("|".join(values), lambda found: values[found[0]], command)

    def farewell(self) -> tuple[str, ...]:
        """Return what a terminal shows after the app: the run's name, and the commands to attach and to go on."""
        scene = self.scene
        if not scene.path:
            return (f"lock {scene.lock_path}: agentcompile replay {shlex.quote(scene.lock_path)}",)
        path = shlex.quote(scene.path)
        word = self.standing()
        lines = [f"run {scene.run}: {word}", f"attach: agentcompile tui {path}"]
        if word != "done" and not scene.speed:
            lines.append(f"resume: {resuming(path)}")
        return tuple(lines)

    def standing(self) -> Status:
        """Return how the run or session stands, also where it was left before all of it was read."""
        if self.feed is not None and (self.scene.reading or self.scene.speed):
            with contextlib.suppress(AgentCompileError):  # a damaged event: what was read before it is known
                return glance(self.feed.run)
        return chrome.status(self.scene)

    def end(self) -> None:
        """End a check or replay that runs only for this screen; a compiler goes on."""
        if self._runner is not None:
            self._runner.end()
            self._runner = None
