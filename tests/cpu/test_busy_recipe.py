"""What `bench busy` has measured is on disk before it goes on."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
from agentcompile.bench.busy import recipe
from agentcompile.bench.busy.recipe import Compiled


def compiled(spinning: int, seconds: float, speedup: float) -> Compiled:
    return Compiled(
        spinning=spinning,
        seconds=seconds,
        searched_s=seconds / 2,
        candidates=30,
        kernel_share=1.0,
        contended=spinning > 0,
        log_ratio=1.0,
        half_width=0.1,
        comparison="FASTER",
        speedup=speedup,
        tokens_per_s=100.0,
    )


def test_compiles_are_kept_when_the_generation_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "busy.json"
    kept: list[int] = []

    def compile_it(model: Path, folder: Path, spinning: int, asked: Namespace) -> Compiled:
        kept.append(len(json.loads(out.read_text())["compiles"]) if out.exists() else 0)
        return compiled(spinning, 100.0 if not spinning else 150.0, 4.0 if not spinning else 3.0)

    def no_generation(*_: object, **__: object) -> None:
        raise RuntimeError("other tokens")

    monkeypatch.setattr(recipe, "compiled", compile_it)
    monkeypatch.setattr(recipe, "measure_lock", no_generation)
    arguments: Sequence[str] = ["--model", "sample", "--target", "cpu", "--out", str(out)]
    with pytest.raises(RuntimeError, match="other tokens"):
        recipe.run(arguments)
    found = json.loads(out.read_text())
    assert kept == [0, 1]
    assert [one["spinning"] for one in found["compiles"]] == [0, 2]
    assert found["generation"] == {}
    assert found["figures"]["busy compile over quiet"] == pytest.approx(1.5)
    assert found["figures"]["busy lock's share of the quiet speed-up"] == pytest.approx(0.75)
