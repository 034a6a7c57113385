"""What an import costs and drags along, seen in fresh processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "pydantic",
    "rich",
    "typer",
    "textual",
    "tomli_w",
    "openai",
    "triton",
    "scipy",
    "sklearn",
}


def imported(module: str, cwd: Path) -> set[str]:
    """Top-level packages that importing `module` brings along."""
    code = f"import sys, json, {module}; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(run.stdout))


@pytest.mark.parametrize(
    "module",
    [
        "agentcompile",
        "agentcompile.lockfile",
        "agentcompile.tui.app",
        "agentcompile.tui.cli",
        "agentcompile.control",
        "agentcompile.control.desk",
        "agentcompile.events",
        "agentcompile.runs.progress",
        "agentcompile.runs.session",
        "agentcompile.options",
        "agentcompile.cli.exits",
        "agentcompile.bench",
        "agentcompile.templates",
    ],
)
def test_an_import_brings_nothing_heavy_along(module: str, tmp_path: Path) -> None:
    extra = {"textual", "rich"} if module == "agentcompile.tui.app" else set()
    assert imported(module, tmp_path) & HEAVY <= extra


def test_the_command_line_starts_without_torch_or_pydantic(tmp_path: Path) -> None:
    assert not imported("agentcompile.cli", tmp_path) & (HEAVY - {"typer", "rich"})


def run(code: str, cwd: Path) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True).stdout


def test_importing_the_package_is_quick(tmp_path: Path) -> None:
    code = "import time; t = time.perf_counter(); import agentcompile; print(time.perf_counter() - t)"
    assert statistics.median(float(run(code, tmp_path)) for _ in range(5)) <= 0.100


def test_load_and_compile_are_there_without_being_imported(tmp_path: Path) -> None:
    code = "import agentcompile, sys; print('load' in agentcompile.__all__, 'torch' in sys.modules)"
    assert run(code, tmp_path).split() == ["True", "False"]
