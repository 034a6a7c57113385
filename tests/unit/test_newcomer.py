"""The cheap half of `just newcomer`: the commands of pages are found, and each is one that the command line takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.newcomer.commands import script
from tests.newcomer.taking import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [("README.md", "Five minutes", 9), ("docs/tutorial.md", "", 6)]


def commands(page: str, heading: str) -> list[list[str]]:
    """The words of each command of ours that a page names."""
    text = script((ROOT / page).read_text(encoding="utf-8"), heading)
    return [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("agentcompile ")]


@pytest.mark.parametrize(("page", "heading", "least"), PAGES, ids=["readme", "tutorial"])
def test_every_command_of_a_page_is_one_that_the_command_line_takes(page: str, heading: str, least: int) -> None:
    found = commands(page, heading)
    assert len(found) >= least - 1
    assert all(parsed(words[1:]) for words in found)


def test_a_command_that_is_wrong_is_told() -> None:
    for words in (["compile", "--no-such-flag"], ["no-such-verb"], ["replay"], ["cache", "no-such-verb"]):
        with pytest.raises(Exception, match=r"[Nn]o such|[Mm]issing"):
            parsed(words)


def test_what_needs_a_download_a_terminal_or_a_model_of_ones_own_is_left_out() -> None:
    page = (
        "## Other\n```sh\nagentcompile doctor\n```\n## Mine\n```sh\npip install x\nagentcompile compile MODEL\n"
        "agentcompile tui\nagentcompile replay \\\n  a.lock.toml\n```\n```python\nprint('a')\n```\n## More\n"
    )
    assert script(page, "Mine").splitlines() == [
        "agentcompile replay    a.lock.toml",
        "python -c 'print('\"'\"'a'\"'\"')",
        "'",
    ]
