"""Help texts: every setting is a flag, lines fit a terminal, no option names a type of Python."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from agentcompile.cli import main as cli
from agentcompile.options import SETTINGS
from tests.newcomer.helps import verbs

VERBS = [" ".join(words) for words in verbs(get_command(cli.app))]


def shown(verb: str, columns: int) -> str:
    found = CliRunner().invoke(cli.app, [*verb.split(), "-h"], env={"COLUMNS": str(columns)})
    assert found.exit_code == 0, found.output
    return found.stdout


def test_every_setting_of_a_compile_is_a_flag_of_it_by_its_name() -> None:
    elsewhere = {"model", "compiler", "home"}  # an argument; places of this machine, set in a file or a variable
    flags = {f"--{setting.name.replace('_', '-')}" for setting in SETTINGS if setting.name not in elsewhere}
    text = shown("compile", 200)
    assert {flag for flag in flags if not re.search(rf"{flag}\b(?!-)", text)} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_a_help_text_is_wider_than_a_terminal_and_no_option_names_a_python_type(verb: str) -> None:
    text = shown(verb, 80)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert re.findall(r"--\S+ <(?:str|int|float|list|path)[^>]*>", text) == []
