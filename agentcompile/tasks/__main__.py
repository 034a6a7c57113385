"""The entry point of both processes, started by path with a role and the number of the parent's process."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Started with -P, so that no module of the user's working directory shadows the standard library's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from agentcompile.tasks.answering import main

    main(sys.argv[1], int(sys.argv[2]))
