"""The small process that enters a fence and becomes a program; started by path, with a fence in JSON and a command."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from agentcompile.sandbox.confine import launch

    sys.exit(launch(sys.argv[1:]))
