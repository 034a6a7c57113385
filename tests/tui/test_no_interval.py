"""A run of which no ratio has an interval, as on a busy machine: every screen and every verb shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from agentcompile.tui.scene import View
from recorded import BY_NAME, run_directory, scene, text

from agentcompile.cli.main import main
from agentcompile.ir.trial import NO_INTERVAL
from agentcompile.runs.session import EVENTS

WIDTHS = (NO_INTERVAL, 600.0)
"""No interval, and one that is wider than a float can say."""
RUNS = ("finished", "reviewed", "stopped")


@pytest.fixture(scope="module", params=[(run, width) for run in RUNS for width in WIDTHS], ids=str)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of which every half width is another."""
    name, width = request.param
    path = run_directory(tmp_path_factory.mktemp("wide") / "run", name)
    events = (path / EVENTS).read_bytes()
    wide, count = re.subn(rb'"half_width":\s*[-+.0-9e]+', b'"half_width":%g' % width, events)
    assert count > 10
    (path / EVENTS).write_bytes(wide)
    return path


@pytest.mark.parametrize("mode", BY_NAME)
def test_every_screen_shows_it(run: Path, mode: str) -> None:
    assert text(scene(run), View(mode=mode))


@pytest.mark.parametrize(
    "words",
    [("decide",), ("decide", "--json"), ("runs", "status"), ("runs", "status", "--all"), ("runs", "status", "--json")],
    ids=" ".join,
)
def test_every_verb_shows_it(run: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words[:-1], words[-1], str(run)]) == 0
    shown = capsys.readouterr().out
    assert "NaN" not in shown
    assert "Infinity" not in shown
    if "--json" in words:
        json.loads(shown)


def test_a_report_shows_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.html"
    assert main(["report", str(run), "--out", str(out)]) == 0
    assert out.read_text().rstrip().endswith("</html>")
