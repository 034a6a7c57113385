"""Each recipe's help ends with lines that fit a terminal and name its own options."""

from __future__ import annotations

import re
import shlex

import pytest

from bench.cli import EXAMPLES, RECIPES, run
from tui.cli import EXAMPLES as TUI
from tui.cli import parser as tui


def test_every_recipe_has_examples() -> None:
    assert EXAMPLES.keys() == RECIPES.keys()


@pytest.mark.parametrize("recipe", RECIPES)
def test_examples_are_below_the_help_and_name_options_of_the_recipe(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        run([recipe, "--help"])
    assert not ended.value.code
    text, _, lines = capsys.readouterr().out.partition("\nExamples:\n")
    assert len(lines.splitlines()) == len(EXAMPLES[recipe])
    usage = " ".join(text.partition("\n\n")[0].split())
    asked = re.sub(r"\[[^\[\]]*(\[[^\[\]]*\])?[^\[\]]*\]", "", usage)
    for line in lines.splitlines():
        assert len(line) <= 80
        words = shlex.split(line)
        assert words[:3] == ["agentcompile", "bench", recipe]
        assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", text))
        assert set(re.findall(r"--[a-z-]+", asked)) <= set(words), "an option that must be given"


def test_the_app_takes_its_examples() -> None:
    for line in TUI:
        tui().parse_args(shlex.split(line)[2:])
    assert tui().format_help().rstrip().endswith(TUI[-1])
