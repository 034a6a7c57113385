"""The verb `agentcompile tui [MODEL | RUN | LOCK]`, an entry point of the group ``agentcompile.verbs``."""

from __future__ import annotations

import argparse
import locale
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.cli.paragraphs import Paragraphs, below
from agentcompile.cli.render import Screen
from agentcompile.cli.terminal import nobody
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import SETTINGS, Options, resolve, terminal
from agentcompile.runs.folders import LATEST

from .flags import Flags, as_arguments

if TYPE_CHECKING:
    from agentcompile.runs.recorded_searches import RecordedSearches

    from .session import Session
    from .start import Start

USAGE = "agentcompile tui [MODEL | RUN | LOCK]"
EXAMPLES = (
    "agentcompile tui",
    "agentcompile tui bench/models/sample --seconds 120",
    "agentcompile tui latest --speed 10",
)
"""Lines below the help."""
_SIGNALLED = 128
"""Exit codes from here on are of signals."""
_LAST_LOOK_S = 0.3
"""How long a run is read on before its state is shown for the last time."""
THEMES = ("dark", "light", "ansi", "contrast")
_FLAGS = (
    "target", "context", "batch", "threads", "advisor", "strategy", "budget", "seconds", "seed", "out", "templates",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override] # it never returns
        """Refuse an argument as the rest of the command line does.

        Raises:
            AgentCompileError: always (usage).
        """
        raise AgentCompileError(f"tui: {message}", hint="see `agentcompile tui --help`")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments; settings of a new compile are handed on as they are."""
    made = _Parser(
        prog="agentcompile tui",
        usage=f"{USAGE} [OPTIONS]",
        description="Watch a compile, steer it, decide on its plan, and lock what is faster. "
        "Without an argument: a page to choose from.",
        epilog=below(EXAMPLES),
        formatter_class=Paragraphs,
        allow_abbrev=False,
    )
    made.add_argument(
        "what",
        nargs="?",
        default="",
        metavar="MODEL | RUN | LOCK",
        help="a checkpoint directory, a GGUF file, preset:NAME, a lock, or a run: its name, its folder, or latest",
    )
    made.add_argument(
        "--speed", type=float, default=0.0, metavar="X", help="show a past run again, X times as fast as it was"
    )
    made.add_argument(
        "--curves",
        type=Path,
        metavar="FILE",
        help="draw the curves of a study's strategies faint behind a search, from the FILE that "
        "`agentcompile ablate --space ... --out FILE` wrote; those of the region's own space, else the mean of all",
    )
    made.add_argument("--theme", choices=THEMES, default="dark", help="the colours; t changes them")
    made.add_argument(
        "--ascii", action="store_true", help="no glyphs beyond ASCII; the default where the locale is not UTF-8"
    )
    made.add_argument("--run-dir", metavar="DIR", help="run directory of a new run")
    for setting in SETTINGS:
        if setting.name in _FLAGS:
            more = {"action": "append"} if setting.kind == "paths" else {}
            made.add_argument(f"--{setting.key}", metavar="X", help=setting.about, **more)  # type: ignore[arg-type]
    return made


def run(arguments: Sequence[str]) -> int:
    """Open the app, and return an exit code once it was left.

    Raises:
        AgentCompileError: the speed is not allowed, a file of curves cannot be read, or there is no terminal to draw
            on; the hint then is the headless command (usage).
    """
    asked = parser().parse_args(list(arguments))
    if not 0 <= asked.speed < math.inf:
        raise AgentCompileError(
            f"--speed: {asked.speed:g} is not allowed", hint="10 is ten times as fast; without it the run is followed"
        )
    recorded = _recorded(asked.curves) if asked.curves is not None else None
    flags = {name: getattr(asked, name) for name in _FLAGS if getattr(asked, name) is not None}
    options = resolve({**flags, "run_dir": asked.run_dir}).options
    if why := nobody():
        raise AgentCompileError(f"tui: {why}", hint=f"headless: {headless(asked.what, flags, options.runs)}")
    return _show(asked, options, flags, recorded)


def _recorded(path: Path) -> RecordedSearches:
    from agentcompile.runs.recorded_searches import read_recorded

    return read_recorded(path)


def headless(what: str, flags: Flags, runs: Path) -> str:
    """Return the command that does the same without a screen; `what` may be the name of a run among `runs`."""
    from .finding import meaning

    compiles = ["compile", what or "MODEL", *as_arguments(flags)]
    try:
        kind = meaning(what, runs)[0] if what else "model"
    except AgentCompileError:  # the command says what is wrong with the name
        kind = "run" if what == LATEST else "model"
    commands = {"run": ["runs", "status", what], "refine": ["refine", "show", what], "lock": ["replay", what]}
    return shlex.join(["agentcompile", *commands.get(kind, compiles)])


def speaks_unicode() -> bool:
    """Return whether the locale's characters are UTF-8."""
    try:
        locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        return False
    return locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8"


def _show(asked: argparse.Namespace, options: Options, flags: Flags, recorded: RecordedSearches | None) -> int:
    from .finding import meaning, start_of
    from .opening import opened

    start: Start | None = None
    session: Session | None = None
    if asked.what:
        what, path = meaning(asked.what, options.runs)
        session = opened(what, path, options, flags, speed=asked.speed, recorded=recorded)
    else:
        start = start_of(options, Path.cwd())

    from .app import CompilerApp
    from .ink import Ink

    def choose(page: Start) -> Session | str:
        try:
            what, path = meaning(page.chosen or page.found[0].argument, options.runs)
            return opened(what, path, options, {**flags, **_settings(page)}, recorded=recorded)
        except AgentCompileError as error:
            return f"{error.message}{'; ' + error.hint if error.hint else ''}"

    ink = Ink(ascii=asked.ascii or not speaks_unicode())
    app = CompilerApp(
        session=session, start=start, open=choose, ink=ink, theme=f"agentcompile-{asked.theme}", plain=not terminal()[1]
    )
    code = app.run()
    if app.fault is not None:
        raise app.fault
    ended = int(code or app.return_code or ExitCode.OK)
    if app.session is not None and ended < _SIGNALLED:  # a terminal that is gone takes no farewell
        app.session.poll(_LAST_LOOK_S)  # a key may come before all of a run was read
        screen = Screen.standard()
        for line in app.session.farewell():
            screen.say(line)
    return ended


def _settings(page: Start) -> dict[str, str]:
    defaults = dict(page.defaults)
    return {name: value for name, value in page.settings if value != defaults[name]}
