"""The places of an axis's ticks and the format of their labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis


def log_ticks(axis: Axis, scale: Callable[[str], None], span: float) -> None:
    """Make a log axis with plain numbers, at 1, 2 and 5 of each decade where `span` is below 300."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def plain_ticks(axis: Axis) -> None:
    """Set a few ticks at round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
