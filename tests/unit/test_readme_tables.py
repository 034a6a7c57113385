"""The tables of the README and the page of benchmarks: what is shown as a result, and what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.harness.result import Interval
from bench.readme import BEFORE, NOTES, RESULTS, details, headline, ratio


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high, rounds=3)


def test_a_ratio_with_a_narrow_interval_is_bold() -> None:
    assert ratio(interval(16, 12, 20), bold="**", ends=True) == "**16×** (12–20)"
    assert ratio(interval(2, 1.5, 3), bold="**") == "**2×**", "a factor of two is still told"


def test_a_ratio_with_a_wide_interval_is_not_bold_and_says_that_its_size_is_inconclusive() -> None:
    wide = interval(33, 5.59, 195)
    assert ratio(wide, bold="**", ends=True) == "33× (5.59–195), inconclusive"
    assert ratio(wide) == "33×, inconclusive"


def test_ours_is_bold_among_first_tokens_only_where_it_is_the_earliest(tmp_path: Path) -> None:
    results = Path(
        shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("*.xz", "*.svg", "*.png"))
    )
    (slow, *_) = sorted(results.glob("cuda-firsts-*.json"))
    found = json.loads(slow.read_text(encoding="utf-8"))
    for arms in found["prompts"].values():
        arms["agentcompile"]["median_ms"] *= 3
    slow.write_text(json.dumps(found), encoding="utf-8")
    rows = [line.split(" | ") for line in headline(results) if " ms " in line and line.startswith("| ")]
    assert {row[4].startswith("**") for row in rows} == {True, False}
    for row in rows:
        times = [float(cell.strip("* ms").replace(",", "")) for cell in row[2:5] if cell != "-"]
        assert row[4].startswith("**") == (times[-1] == min(times)), row


def test_every_table_of_the_page_has_a_heading_of_its_own() -> None:
    lines = list(details(RESULTS))
    titles = [line for line in lines if line.startswith("### ")]
    commands = [line for line in lines if line.startswith("`agentcompile bench ")]
    assert len(titles) == len(set(titles)) == len(commands)


def test_a_study_from_before_a_mended_fault_is_on_no_page() -> None:
    assert list((RESULTS / "refine").glob(f"tasks*{BEFORE}*.json"))
    assert "none, 0 of 3" not in "\n".join(details(RESULTS))


@pytest.mark.parametrize("name", NOTES)
def test_a_note_is_about_a_result_and_shown(name: str) -> None:
    assert NOTES[name] in "\n".join(details(RESULTS))
    isa = json.loads((RESULTS / name).read_text(encoding="utf-8"))["machine"]["isa"]
    assert ("no instructions for bf16" in NOTES[name]) == ("avx512_bf16" not in isa)


def test_no_time_of_the_page_has_an_exponent() -> None:
    tables = [line for line in details(RESULTS) if line.startswith("| ") and "perplexity" not in line]
    assert not [line for line in tables if "e+" in line or "e-0" in line]
