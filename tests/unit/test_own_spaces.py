"""The recorded spaces that the repository ships: whole, narrow, and described by their data card."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.advice.prompt import prompt_of
from bench.ablation import recording
from bench.ablation.agreement import agreement
from bench.ablation.card import card
from bench.ablation.questions import ENDING, beside, read_question
from bench.ablation.spaces import read_space

FOLDER = Path(recording.__file__).parents[1] / "spaces"
CPU = FOLDER / "cpu"
"""The spaces of a CPU, whose second recordings are in a folder below."""
SPACES = sorted(
    path
    for folder in (FOLDER, CPU, CPU / "second")
    for path in folder.glob("*.json.gz")
    if not path.name.endswith(ENDING)
)


def test_there_are_spaces() -> None:
    assert len(SPACES) >= 5


@pytest.mark.parametrize("path", SPACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_space_is_large_and_few_of_its_points_are_near_the_best(path: Path) -> None:
    space = read_space(path)
    assert len(space.candidates) >= 500
    assert 0 < len(space.near) <= 0.05 * len(space.candidates)
    assert space.question is not None
    assert len({one.id for one in space.candidates}) == len(space.candidates)


@pytest.mark.parametrize("path", SPACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_an_adviser_is_asked_about_a_space_has_no_result(path: Path) -> None:
    asked = read_question(beside(path)).question
    assert not asked.history
    assert not asked.memories
    assert '"measured"' not in prompt_of([asked]).user


@pytest.mark.parametrize("folder", [FOLDER, CPU], ids=lambda folder: folder.name)
def test_the_data_card_has_the_table_of_the_files(folder: Path) -> None:
    command = f"agentcompile bench spaces --card bench/{folder.relative_to(FOLDER.parent)}"
    assert part_of_the_card(command) == list(card(folder))


def test_the_data_card_says_how_far_the_recordings_of_a_cpu_agree() -> None:
    pairs = [(path, path.parent / "second" / path.name) for path in SPACES if path.parent == CPU]
    assert len(pairs) >= 2
    said = [agreement(read_space(first), read_space(second)) for first, second in pairs]
    assert part_of_the_card("agentcompile bench spaces --agreement FIRST SECOND") == [f"- {one}." for one in said]


def part_of_the_card(command: str) -> list[str]:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    _, found, after = text.partition(f"<!-- begin: {command} -->\n")
    assert found, command
    return after.partition("<!-- end -->")[0].splitlines()


def test_the_command_prints_the_table_or_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert recording.run(["--card", str(FOLDER)]) == 0
    assert capsys.readouterr().out.splitlines() == list(card(FOLDER))
    with pytest.raises(Exception, match="needs MODEL"):
        recording.run([])


def test_the_command_says_how_far_two_recordings_agree(capsys: pytest.CaptureFixture[str]) -> None:
    first = next(path for path in SPACES if path.parent == CPU)
    assert recording.run(["--agreement", str(first), str(first)]) == 0
    assert "the same best" in capsys.readouterr().out
