"""README.md and docs/benchmarks.md show the committed results and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError
from bench.ablation.advisers import read as read_ablation
from bench.figures.record import choices_of
from bench.readme import BEGIN, END, PAGES, RESULTS, updated

README = RESULTS.parents[1] / "README.md"
DOCS = README.parent / "docs"
BENCHMARKS = DOCS / "benchmarks.md"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_shows_the_committed_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert updated(path.name, text, PAGES[path](RESULTS)) == text, "run `just bench readme`"


def test_every_result_names_its_command_machine_and_revision() -> None:
    results = [*RESULTS.glob("*-figures*.json"), *RESULTS.glob("*-steps*.json")]
    assert len(results) >= 3
    for path in results:
        run = json.loads(path.read_text(encoding="utf-8"))
        assert run["command"].startswith("agentcompile bench "), path
        assert run["machine"]["device"], path
        assert len(run["revision"]) == 40, path


def test_a_number_changed_by_hand_shows() -> None:
    for path, old, new in ((BENCHMARKS, "reached", "surpassed"), (README, "**agentcompile**", "**theirs**")):
        text = path.read_text(encoding="utf-8")
        begin = text.index(BEGIN)
        forged = text[:begin] + text[begin:].replace(old, new, 1)
        assert updated(path.name, forged, PAGES[path](RESULTS)) == text != forged


def test_the_readme_stays_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 220


def test_what_the_docs_say_of_advisers_is_what_their_result_says() -> None:
    found = read_ablation(RESULTS / "cpu-ablation.json")
    text = " ".join((DOCS / "concepts.md").read_text(encoding="utf-8").split())
    share = {arm.partition(":")[0]: f"{found.median_share(arm):.1%}".replace("%", " %") for arm in found.arms}
    assert f"{share['heuristic']} for the heuristic, {share['replay']} for a language model" in text
    assert f"{share['none']} for the space's own order and {share['random']} for chance" in text


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(AgentCompileError, match=r"README\.md: the marks"):
        updated("README.md", f"# project\n{END}", ["a line"])


def test_two_checkpoints_choose_different_winners() -> None:
    """Cache-resident and memory-bound weights want other templates and parameters: that is what choosing is for."""
    run = json.loads((RESULTS / "cpu-figures-qwen3-0.6b.json").read_text(encoding="utf-8"))
    large = {name.partition("@")[0]: choice for name, choice in run["models"]["qwen3-0.6b"]["choices"].items()}
    chosen = choices_of(RESULTS / "sample.lock.toml")
    small = {name.partition("@")[0]: choice for name, choice in chosen.items()}
    hot = {"rmsnorm-linear-argmax", "linear-residual"}
    assert hot <= large.keys() & small.keys()
    assert all(large[kind] != small[kind] for kind in hot)
