"""The recipe that measures the app, at a size that takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone


def test_the_recipe_measures_the_app_and_says_what_it_left_out(tmp_path: Path) -> None:
    out = tmp_path / "app.json"
    sizes = ["--seconds=3", "--events=2000", "--paints=3", "--pairs=0"]
    command = [sys.executable, "-m", "agentcompile", "bench", "app", *sizes, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    assert "first paint" in done.stdout
    found = json.loads(out.read_text())
    assert found["paint"]["screen_ms"] > found["paint"]["toolkit_ms"] > 0
    assert found["heartbeat"]["p50_ms"] >= 20
    assert found["heartbeat"]["torch"] is False
    assert found["opened"]["events"] == 2000
    assert found["attached"] == {"why": "left out by --pairs 0"}
