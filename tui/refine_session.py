"""A session of `refine` on the screen: a run whose tree is followed too, and that is steered as its verbs do."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from agentcompile.agents import sessions
from agentcompile.control.desk import deliver

from . import compiler
from .feed import Feed
from .refined import RefinedFeed
from .scene import Steer
from .screen import key_of, shown
from .screens import REFINE_SCREENS
from .session import Outcome, Session


class RefineSession(Session):
    """A session of `refine`: its events, its tree, and what a person asks of it."""

    def __init__(self, path: Path, *, written: Path, store: Path, run: compiler.RunVerb = compiler.run_verb) -> None:
        """Open a session whose kernels are promoted to the folder `written`.

        Raises:
            AgentCompileError: the folder holds none, or one of a newer version (usage).
        """
        self._tree = RefinedFeed(path, written)
        super().__init__(Feed(path), name=path.name, deliver=deliver, store=store, screens=REFINE_SCREENS, run=run)
        self.scene = replace(self.scene, refined=self._tree.now)

    def poll(self, budget_s: float = 0.03) -> bool:
        """Read what is new, and return whether the screen may have changed."""
        changed = super().poll(budget_s)
        if not self._tree.poll():
            return changed
        self.scene = replace(self.scene, refined=self._tree.now)
        return True

    def steer(self, steer: Steer) -> Outcome:
        """Do what the verb of that name does, and return what it says.

        Raises:
            AgentCompileError: it is refused (usage), or no process works on the session (environment).
        """
        folder = self._tree.folder
        match steer.what:
            case "pause" | "resume":
                return _told(f"the session {sessions.hold(folder, steer.what)}")
            case "stop":
                said = sessions.stop(folder, now=False)
                return _told(f"the session {said}; resume with: {sessions.resume_command(folder.path)}")
            case "stop-now":
                sessions.stop(folder, now=True)
                return Outcome(leave=True)
            case "prune":
                return _told(sessions.prune(folder, steer.node))
            case "promote":
                return self._promote(steer)

    def _promote(self, steer: Steer) -> Outcome:
        arguments = ["refine", "promote", str(self._tree.folder.path), str(steer.node), "--json"]
        code, out, err = self._run([*arguments, *([f"--name={steer.name}"] if steer.name else [])])
        if code:
            return Outcome(text=compiler.refused(code, err), ok=False)
        folder = json.loads(out)["template"]
        return _told(f"node {steer.node} is the template {folder}; `agentcompile compile` searches it")

    def farewell(self) -> tuple[str, ...]:
        """Return what a terminal shows after the app: the session's name, and the commands to attach and to go on."""
        attach = f"attach: agentcompile tui {shlex.quote(self.scene.path)}"
        return f"session {self.scene.run}: {self.standing()}", attach, f"resume: {self._tree.now.goes_on}"

    def command(self) -> str:
        """Return the command that shows without the app what the screen is about."""
        screen = shown(self.screens, self.view)
        key = key_of(self.scene, self.view, screen) if screen.lists == "candidates" else ""
        node = ["--node", key] if key.isdecimal() else []
        return shlex.join(["agentcompile", "refine", "show", self.scene.path, *node])


def _told(text: str) -> Outcome:
    return Outcome(text=f"{text[0].upper()}{text[1:]}.")
