"""Pictures of the terminal app for docs/app.md: screens of a recorded run at three sizes, in four themes.

`just pictures` draws them anew in docs/pictures; `--check` says whether one of them is missing. The run is the recorded
one of the tests, so that a picture changes only when the app does.
"""

from __future__ import annotations

import asyncio
import lzma
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


def main() -> int:
    """Draw every picture, or with `--check` only look for them; return an exit code."""
    if "--check" in sys.argv[1:]:
        return int({f"{one.name}.svg" for one in PICTURES} != {path.name for path in FOLDER.glob("*.svg")})
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        options = Options(model="bench/models/sample", out="sample.lock.toml")
        (run / OPTIONS).write_bytes(options_bytes(encode(options)))
        (run / EVENTS).write_bytes(lzma.decompress(RUN.read_bytes()))
        for picture in PICTURES:
            (FOLDER / f"{picture.name}.svg").write_text(asyncio.run(_drawn(picture, run)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
