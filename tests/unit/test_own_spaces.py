"""The recorded spaces that the repository ships: whole, narrow, and described by their data card."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.advice.prompt import prompt_of
from bench.ablation import recording
from bench.ablation.card import card
from bench.ablation.questions import ENDING, beside, read_question
from bench.ablation.spaces import read_space

FOLDER = Path(recording.__file__).parents[1] / "spaces"
SPACES = sorted(path for path in FOLDER.glob("*.json.gz") if not path.name.endswith(ENDING))


def test_there_are_spaces() -> None:
    assert len(SPACES) >= 5


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.name)
def test_a_space_is_large_and_few_of_its_points_are_near_the_best(path: Path) -> None:
    space = read_space(path)
    assert len(space.candidates) >= 500
    assert 0 < len(space.near) <= 0.05 * len(space.candidates)
    assert space.question is not None
    assert len({one.id for one in space.candidates}) == len(space.candidates)


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.name)
def test_what_an_adviser_is_asked_about_a_space_has_no_result(path: Path) -> None:
    asked = read_question(beside(path)).question
    assert not asked.history
    assert not asked.memories
    assert '"measured"' not in prompt_of([asked]).user


def test_the_data_card_has_the_table_of_the_files() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    _, _, after = text.partition("<!-- begin: agentcompile bench spaces --card bench/spaces -->\n")
    table, _, _ = after.partition("<!-- end -->")
    assert table.splitlines() == list(card(FOLDER))


def test_the_command_prints_the_table_or_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert recording.run(["--card", str(FOLDER)]) == 0
    assert capsys.readouterr().out.splitlines() == list(card(FOLDER))
    with pytest.raises(Exception, match="needs MODEL"):
        recording.run([])
