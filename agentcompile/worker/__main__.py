"""`python agentcompile/worker BOX PARENT`: started by `agentcompile.worker.process`, speaks frames on stdin and stdout."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Started by path with -P, so that no module of the user's working directory shadows the standard library's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from agentcompile.worker.serve import main

    main(box=int(sys.argv[1]), parent=int(sys.argv[2]))
