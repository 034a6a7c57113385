"""A session of `refine` on the screen: a run whose tree is followed too, and that is steered as its verbs do."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agentcompile.agents import sessions
from agentcompile.control.desk import deliver
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import clean

from . import compiler, refining
from .feed import Feed
from .refined import RefinedFeed
from .scene import Steer
from .screen import key_of, shown
from .screens import REFINE_SCREENS
from .session import Outcome, Session

RunVerb = Callable[[Sequence[str]], "tuple[int, str, str]"]
"""Runs a verb of the command line in a process, and returns its exit code, stdout and stderr."""
_SAID = 2_000


def run_verb(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run a verb of this installation in a process of its own, because it may import what a screen does not.

    Raises:
        AgentCompileError: no process can be started (environment).
    """
    try:
        done = subprocess.run(
            compiler.headless(arguments), stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True
        )
    except OSError as error:
        text = f"no process can be started: {error.strerror or error}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="end other processes") from error
    return done.returncode, done.stdout, done.stderr


class RefineSession(Session):
    """A session of `refine`: its events, its tree, and what a person asks of it."""

    def __init__(self, path: Path, *, written: Path, store: Path, run: RunVerb = run_verb) -> None:
        """Open a session whose kernels are promoted to the folder `written`.

        Raises:
            AgentCompileError: the folder holds none, or one of a newer version (usage).
        """
        self._tree = RefinedFeed(path, written)
        self._run = run
        super().__init__(Feed(path), name=path.name, deliver=deliver, store=store, screens=REFINE_SCREENS)
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
            lines = [
                line for line in clean(err, _SAID, lines=True).splitlines() if line.startswith(("error: ", "hint: "))
            ]
            return Outcome(text="; ".join(lines) or f"it ended with exit code {code}", ok=False)
        folder = json.loads(out)["template"]
        return _told(f"node {steer.node} is the template {folder}; `agentcompile compile` searches it")

    def farewell(self) -> tuple[str, ...]:
        """Return what a terminal shows after the app: the session's name, and the commands to attach and to go on."""
        word = refining.life_of(self.scene)[0].partition(" ")[2]
        attach = f"attach: agentcompile tui {shlex.quote(self.scene.path)}"
        return f"session {self.scene.run}: {word}", attach, f"resume: {self._tree.now.goes_on}"

    def command(self) -> str:
        """Return the command that shows without the app what the screen is about."""
        screen = shown(self.screens, self.view)
        key = key_of(self.scene, self.view, screen) if screen.lists == "candidates" else ""
        node = ["--node", key] if key.isdecimal() else []
        return shlex.join(["agentcompile", "refine", "show", self.scene.path, *node])


def _told(text: str) -> Outcome:
    return Outcome(text=f"{text[0].upper()}{text[1:]}.")
