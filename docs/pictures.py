"""Pictures of the terminal app for docs/app.md: screens of a recorded run at three sizes, in four themes.

`just pictures` draws them anew; `--check` draws them too, and names the files that are not what the app shows now. The
run is the recorded one of the tests, so that a picture changes only when the app does.
"""

from __future__ import annotations

import asyncio
import lzma
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agentcompile.tui.app import CompilerApp
from agentcompile.tui.feed import Feed
from agentcompile.tui.ink import Ink
from agentcompile.tui.session import Session
from agentcompile.tui.start import Start

from agentcompile.control.commands import Command, Reply
from agentcompile.ir.codec import encode
from agentcompile.options import Options
from agentcompile.runs.session import EVENTS, OPTIONS, options_bytes

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
FIRST = ROOT / "tui" / "screen.svg"
"""The picture at the top of README.md and docs/app.md."""
RUN = ROOT / "tests" / "tui" / "runs" / "finished.jsonl.xz"

FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"


class Picture(NamedTuple):
    """A screen: the keys that lead to it, its columns and lines, and the theme."""

    name: str
    keys: Sequence[str]
    size: tuple[int, int]
    theme: str


PICTURES = (
    Picture("regions-160x48-dark", ("1",), (160, 48), "dark"),
    Picture("tune-120x36-dark", ("2",), (120, 36), "dark"),
    Picture("tune-120x36-light", ("2",), (120, 36), "light"),
    Picture("tune-120x36-ansi", ("2",), (120, 36), "ansi"),
    Picture("tune-120x36-contrast", ("2",), (120, 36), "contrast"),
    Picture("charts-120x36-dark", ("2", "p"), (120, 36), "dark"),
    Picture("review-120x36-light", ("3",), (120, 36), "light"),
    Picture("tune-80x24-contrast", ("2",), (80, 24), "contrast"),
)

SHOWN_FIRST = "tune-120x36-dark"
"""The picture that `FIRST` shows."""


def _refused(page: Start) -> Session | str:
    return "It cannot be opened here."


def _not_sent(path: Path, command: Command) -> Reply:
    return Reply(ok=False, text="the run has ended")


async def _drawn(picture: Picture, run: Path) -> str:
    """Return a picture as SVG, with everything that the run recorded on the screen."""
    feed = Feed(run)
    session = Session(feed, name="sample", store=run / "store", deliver=_not_sent)
    app = CompilerApp(session=session, start=None, open=_refused, ink=Ink(), theme=f"agentcompile-{picture.theme}")
    async with app.run_test(size=picture.size) as pilot:
        while not feed.caught_up:
            await pilot.pause(0.05)
        for key in picture.keys:
            await pilot.press(key)
            await pilot.pause(0.2)
        svg = app.export_screenshot(title="agentcompile")
    if app.fault is not None:
        raise app.fault
    return _with_fonts_here(svg)


def _with_fonts_here(svg: str) -> str:
    """Return a picture in the reader's own monospaced font, without the one that it would fetch from elsewhere."""
    own = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*Fira Code[^;]*;", f"font-family: {FONTS};", own)


def _all_drawn() -> dict[Path, str]:
    """Return every picture by its file."""
    found: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        options = Options(model="bench/models/sample", out="sample.lock.toml")
        (run / OPTIONS).write_bytes(options_bytes(encode(options)))
        (run / EVENTS).write_bytes(lzma.decompress(RUN.read_bytes()))
        for picture in PICTURES:
            found[FOLDER / f"{picture.name}.svg"] = asyncio.run(_drawn(picture, run))
    return {FIRST: found[FOLDER / f"{SHOWN_FIRST}.svg"], **found}


def main() -> int:
    """Write every picture, or with `--check` compare the files with what would be written; return an exit code."""
    os.environ.pop("NO_COLOR", None)
    drawn = _all_drawn()
    if "--check" in sys.argv[1:]:
        there = {path: path.read_text(encoding="utf-8") for path in {FIRST, *FOLDER.glob("*.svg")} if path.exists()}
        wrong = sorted(path for path in {*drawn, *there} if drawn.get(path) != there.get(path))
        for path in wrong:
            sys.stderr.write(f"{path.relative_to(ROOT)}: not what the app shows now; `just pictures` draws it\n")
        return int(bool(wrong))
    FOLDER.mkdir(exist_ok=True)
    for path, svg in drawn.items():
        path.write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
