"""Prints the shell and Python blocks of a Markdown page as one script: `commands.py PAGE [HEADING]`.

Left out are what needs a download or a terminal, installing, and lines whose model is a placeholder in capitals.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = re.compile(
    r"^\s*(pip |unzip |python3 -m pip |just |source |agentcompile tui)|\b(MODEL|NAME|TASK\.py)\b|"
    r"<model>"
)


def blocks(page: str, heading: str = "") -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block, of one section where a heading is named."""
    if heading:
        page = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    yield from re.findall(r"^```(sh|python)\n(.*?)^```", page, re.M | re.S)


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a block, with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not LEFT_OUT.search(line):
            yield line


def script(page: str, heading: str = "") -> str:
    """Return the commands of a page as one script of bash."""
    made = []
    for language, text in blocks(page, heading):
        made += [f"python -c {shlex.quote(text)}"] if language == "python" else list(lines(text))
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    print(script(Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:3]), end="")
