"""The entry point of `python -m agentcompile.bench.figures`."""

from __future__ import annotations

import sys

from agentcompile.cli.exits import guarded

from .recipe import run

if __name__ == "__main__":
    raise SystemExit(guarded(lambda: run(sys.argv[1:])))
