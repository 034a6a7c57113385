"""`python -m agentcompile.bench.figures`."""

from __future__ import annotations

import sys

from .recipe import run

if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
