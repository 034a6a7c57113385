"""The entry point of `python -m agentcompile`."""

from __future__ import annotations

import sys

from agentcompile.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
