"""Help texts: every setting is a flag, lines fit a terminal, no option names a type of Python."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from agentcompile.cli import main as cli
from agentcompile.cli.examples import EXAMPLES
from agentcompile.cli.refine_verbs import START
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


def test_a_flag_shows_its_default_where_it_has_one() -> None:
    text = " ".join(shown("compile", 200).split())
    for setting in SETTINGS:
        if setting.name in ("seconds", "budget", "strategy", "threads", "out", "batch"):
            value = ",".join(map(str, setting.default)) if isinstance(setting.default, tuple) else setting.default
            assert re.search(rf"--{setting.key} \S+ [^\[]*\[default: {re.escape(str(value))}\]", text), setting.name
    assert "[default: --memory]" in text
    assert "[default: --no-review]" in text
    assert not re.search(r"--(?:context|run-dir|templates) \S+ [^\[]*?\[default", text.split("--batch")[0])


def test_a_verb_with_its_own_defaults_shows_those() -> None:
    text = " ".join(shown("refine MODEL", 200).split())
    assert re.search(r"--advisor-calls N Request limit for all models\. \[default: 200\]", text)
    assert re.search(r"--seconds S [^\[]*\[default: 0\]", text)
    assert not re.search(r"--advisor ADVISER [^\[]*\[default", text.split("--advisor-key")[0])


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_a_help_text_is_wider_than_a_terminal_and_no_option_names_a_python_type(verb: str) -> None:
    text = shown(verb, 80)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert re.findall(r"--\S+ <(?:str|int|float|list|path)[^>]*>", text) == []


def test_the_help_of_every_verb_has_examples_that_the_verb_takes() -> None:
    root = get_command(cli.app)
    front_ends = {info.name for info in cli.app.registered_commands if info.cls is not None}
    groups = {"", "runs", "cache", "config"}
    for verb in VERBS:
        if verb in groups or verb in front_ends:
            continue
        assert "Examples:" in shown(verb, 80), verb
    for verb, lines in EXAMPLES.items():
        for line in lines:
            name, *words = shlex.split(line.partition(" < ")[0])
            assert name == "agentcompile"
            named = verb.removesuffix(f" {START}").split()
            assert words[: len(named)] == named, line
            with root.make_context("agentcompile", words) as context:
                assert _parsed(root, context), line


def _parsed(command: Any, context: Any) -> bool:
    """Whether a line's words are taken to the last, by the group and then by its verb."""
    while getattr(command, "commands", None):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return not context.args


def test_a_list_of_verbs_says_what_each_does() -> None:
    cli._add_verbs()
    assert "See `agentcompile" not in shown("", 80)
