"""A job without a person: make a lock if there is none, replay it as it is, and hold it to a bound.

    python examples/headless.py preset:sample model.lock.toml --bound 1.5

The exit code is that of the first command that fails (3: drift, 4: a kernel is wrong here, 6: no compiler …), or 5
where the step is less than `--bound` times as fast as PyTorch eager in the same process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

SLOWER = 5
"""The exit code of a performance gate."""


def main() -> int:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint directory, a GGUF file, or preset:NAME")
    parser.add_argument("lock", type=Path, help="the lock, which belongs into version control")
    parser.add_argument("--bound", type=float, default=1.0, help="least speedup over PyTorch eager")
    parser.add_argument("--seconds", type=int, default=120, help="seconds for search and step tuning")
    asked = parser.parse_args()
    try:
        if not asked.lock.exists():
            verb("compile", asked.model, "--out", asked.lock, "--seconds", asked.seconds, "--quiet")
        verb("replay", asked.lock, "--model", asked.model, "--locked", "--quiet")
        flags = ("--prompt", "def main():", "--max-new-tokens", 32, "--beside-eager", "--json", "--quiet")
        found = json.loads(verb("generate", asked.lock, "--model", asked.model, *flags))
    except subprocess.CalledProcessError as error:
        return error.returncode
    return gate(found["ratio"], asked.bound)


def gate(ratio: float, bound: float) -> int:
    """Say how fast the lock is, and return the exit code that follows."""
    print(f"{ratio:.2f} times as fast as PyTorch eager, bound {bound:g}")
    return SLOWER if ratio < bound else 0


def verb(*arguments: object) -> str:
    """Run a verb of agentcompile and return what it printed; it says itself what is wrong."""
    command = [sys.executable, "-m", "agentcompile", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
