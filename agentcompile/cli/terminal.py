"""Whether a person sits at a terminal that can draw; only the standard library, because the app imports this module."""

from __future__ import annotations

import sys

from agentcompile.options import automation, terminal


def nobody() -> str:
    """Return why a screen cannot be drawn for a person here; empty when it can."""
    # The app's toolkit draws on standard error.
    streams = {"input": sys.__stdin__, "output": sys.__stdout__, "error": sys.__stderr__}
    piped = [name for name, stream in streams.items() if stream is None or not stream.isatty()]
    if piped:
        return f"standard {', '.join(piped)} {'is' if len(piped) == 1 else 'are'} no terminal"
    if not terminal()[0]:
        return "TERM is dumb, so the terminal cannot draw"
    name = automation()
    return f"{name} is set, so nobody is there to press keys" if name else ""
