"""`just test`: tests beside one another, then those that need the processors to themselves.

A few tests that fail are run once more, one by one, since beside others, on a busy machine, a limit of time may be too
short for what it is to hold. A fault fails both times. Whatever passes the second time alone is named at the end: the
test is unsteady, or what it tests is, and either is to be mended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    ("-m", "not gpu and not alone", "-n", "auto", "--maxprocesses", "4", "--dist", "loadscope"),
    ("-m", "alone and not gpu"),
)
MOST = 5
"""So many failures may be the machine's; more are not run again."""
_FAILED, _INTERRUPTED = 1, 2


def run(*arguments: str) -> int:
    """Run pytest in the checkout, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


def last_failed() -> Path:
    """The file in which pytest keeps what failed last."""
    return ROOT / ".pytest_cache/v/cache/lastfailed"


def failed() -> list[str]:
    """The tests that failed last, as pytest's cache has them."""
    path = last_failed()
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def part(arguments: tuple[str, ...], unsteady: list[str]) -> int:
    """Run a part, and what failed of it again; add to `unsteady` what passed then."""
    # Only this file: `--cache-clear` also takes what running processes of the tests keep in the cache, at any moment.
    last_failed().unlink(missing_ok=True)
    code = run(*arguments, "--durations", "12")
    first = failed()
    if code != _FAILED or not 0 < len(first) <= MOST:
        return code
    print(f"== {len(first)} failed: once more, one by one", flush=True)
    again = run("--last-failed", "--last-failed-no-failures", "none", "-v")
    unsteady += set(first) - set(failed())
    return again


def main() -> int:
    """Run both parts, and return the exit code of the first that failed."""
    unsteady, codes = list[str](), list[int]()
    for arguments in PARTS:
        codes.append(part(arguments, unsteady))
        if codes[-1] == _INTERRUPTED:
            break
    for name in sorted(unsteady):
        print(f"UNSTEADY: {name} failed, and passed the second time")
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
