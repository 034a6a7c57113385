"""The entry point of the zygote process, started by path; descriptor 0 is a socket to the parent."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Started with -P, so that no module of the user's working directory shadows the standard library's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from agentcompile.worker.zygote import main

    main()
