"""Each import contract is broken once on purpose: a contract that cannot fail protects nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOTS = ("agentcompile", "tui", "bench")

MOST_LAYERS = 12

PLANTED = {
    "the vocabulary may not import a stage": ("layers", "agentcompile/ir/planted.py", "import agentcompile.regions"),
    "a stage may not import another": ("layers", "agentcompile/regions/planted.py", "import agentcompile.catalog"),
    "a stage may not import the flow": (
        "layers",
        "agentcompile/space/planted.py",
        "import agentcompile.evaluation.evaluator",
    ),
    "the sandbox may not import a stage": ("layers", "agentcompile/sandbox/planted.py", "import agentcompile.build"),
    "the system may not import the sandbox": (
        "layers",
        "agentcompile/system/planted.py",
        "import agentcompile.sandbox",
    ),
    "tasks may not import the check of a whole model": (
        "layers",
        "agentcompile/tasks/planted.py",
        "import agentcompile.verification.oracle",
    ),
    "the search may not evaluate": ("proposers", "agentcompile/search/planted.py", "import agentcompile.measure"),
    "the adviser may not check": ("proposers", "agentcompile/advice/planted.py", "import agentcompile.check"),
    "the agents may not evaluate": (
        "proposers",
        "agentcompile/agents/planted.py",
        "import agentcompile.worker.launch",
    ),
    "the vocabulary may not import torch": ("vocabulary", "agentcompile/ir/planted.py", "import torch"),
    "the events may not import rich": ("vocabulary", "agentcompile/events.py", "import rich"),
    "a worker may not import pydantic": (
        "workers",
        "agentcompile/worker/planted.py",
        "import agentcompile.catalog.decode",
    ),
    "the terminal app may not import torch": ("terminal", "tui/planted.py", "import agentcompile.ops.reference"),
    "the compiler may not import a front end": ("fronts", "agentcompile/planted.py", "import tui.cli"),
    "files may not import in a circle": (
        "acyclic",
        "agentcompile/ir/digest.py",
        "import agentcompile.ir.codec",
    ),
    "packages may not import in a circle": (
        "acyclic",
        "bench/harness/planted.py",
        "import bench.suite.run",
    ),
    "a recipe may not import another": ("recipes", "bench/ladder/planted.py", "import bench.suite.bounds"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources and the settings."""
    repository = Path(__file__).resolve().parents[2]
    copy = tmp_path_factory.mktemp("tree")
    shutil.copy(repository / "pyproject.toml", copy)
    for root in ROOTS:
        shutil.copytree(repository / root, copy / root, ignore=lambda _, names: [n for n in names if not _kept(n)])
    return copy


def _kept(name: str) -> bool:
    return name.endswith(".py") or "." not in name


def lint(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    command += ["--no-logo", "--no-cache", "--contract", contract]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_import_breaks_its_contract(tree: Path, what: str) -> None:
    contract, file, line = PLANTED[what]
    path = tree / file
    before = path.read_text() if path.exists() else None
    path.write_text((before or "") + line + "\n")
    try:
        result = lint(tree, contract)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 broken" in result.stdout, result.stdout + result.stderr
    imported = line.removeprefix("import ")
    # Of a circle the report names the siblings that are on it.
    shown = imported if contract != "acyclic" else imported.rpartition(".")[0].partition(".")[0]
    assert shown in result.stdout, "another import broke it"


def test_the_layers_are_few(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    assert len(contract["layers"]) <= MOST_LAYERS


def test_every_contract_has_a_planted_import(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {one["id"] for one in settings["tool"]["importlinter"]["contracts"]}
    assert {contract for contract, _, _ in PLANTED.values()} == contracts


@pytest.mark.parametrize("contract", sorted({contract for contract, _, _ in PLANTED.values()}))
def test_the_sources_keep_the_contract(tree: Path, contract: str) -> None:
    result = lint(tree, contract)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "line", ["import agentcompile.tui", "from agentcompile.bench import cli", "from agentcompile import tui"]
)
def test_the_mapped_names_of_front_ends_are_banned(tree: Path, line: str) -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID251",
        "--stdin-filename",
        "agentcompile/planted.py",
        "-",
    ]
    result = subprocess.run(
        command, cwd=tree, input=line + "\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "banned-api" in result.stdout
