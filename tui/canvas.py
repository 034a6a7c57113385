"""The one widget: it shows lines, and draws again only those that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from .ink import Line
from .themes import look


class Canvas(Widget):
    """The whole terminal; `show` takes exactly as many lines as it has rows."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"
    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[Line] = ()
        self.drawn = 0
        """How often something was drawn; for tests and for the bench."""

    def show(self, lines: Sequence[Line]) -> None:
        """Show `lines`; those that are as before are left alone."""
        old = self.lines
        self.lines = lines
        if not self.is_mounted:
            return
        if len(old) != len(lines):
            self.drawn += 1
            self.refresh()
            return
        changed = [Region(0, y, self.size.width, 1) for y, line in enumerate(lines) if line != old[y]]
        if changed:
            self.drawn += 1
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return one row as the toolkit's segments."""
        if y >= len(self.lines):
            return Strip.blank(self.size.width, look(self.app.theme, "", self.app.no_color))
        plain, theme = self.app.no_color, self.app.theme
        base = self.rich_style
        segments = [Segment(text, base + look(theme, style, plain)) for text, style in self.lines[y].spans if text]
        return Strip(segments).adjust_cell_length(self.size.width, base)
