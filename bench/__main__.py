"""The entry point of `python -m agentcompile.bench`."""

from __future__ import annotations

import sys

from agentcompile.cli.exits import guarded

from .cli import run

if __name__ == "__main__":
    sys.exit(guarded(lambda: run(sys.argv[1:])))
