"""What an installed agentcompile holds, seen in a wheel that is built from a copy of the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

MAPPED = {
    "agentcompile": "agentcompile",
    "bench": "agentcompile.bench",
    "templates": "agentcompile.templates",
    "tui": "agentcompile.tui",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    repository = Path(__file__).resolve().parents[2]
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, copy)
    for root in MAPPED:
        shutil.copytree(repository / root, copy / root, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", str(out), str(copy)], check=True, capture_output=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "site")
    return out / "site"


def test_every_package_is_named_and_every_named_package_exists(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = set()
    for root, name in MAPPED.items():
        for init in (repository / root).rglob("__init__.py"):
            found.add(".".join((name, *init.parent.relative_to(repository / root).parts)))
    assert found == set(settings["packages"])


def test_nothing_but_the_package_reaches_site_packages(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"agentcompile"}


@pytest.mark.parametrize(
    "name", ["agentcompile", "agentcompile.tui.cli", "agentcompile.bench.cli", "agentcompile.templates"]
)
def test_the_mapped_names_are_imported_from_the_wheel(installed: Path, tmp_path: Path, name: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); import {name}; print(sys.modules[{name!r}].__file__)"
    # Without the site's own hooks an editable install cannot answer instead.
    command = [sys.executable, "-S", "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith(str(installed))


@pytest.mark.parametrize(
    ("root", "kinds"), [("templates", (".toml", ".cpp", ".h", ".cu", ".py")), ("agentcompile", (".cpp", ".h"))]
)
def test_kernels_and_manifests_travel_with_the_wheel(
    installed: Path, repository: Path, root: str, kinds: tuple[str, ...]
) -> None:
    here = repository / root
    there = installed.joinpath(*MAPPED[root].split("."))
    data = {
        path.relative_to(here) for path in here.rglob("*") if path.suffix in kinds and "__pycache__" not in path.parts
    }
    assert data
    assert not {path for path in data if not (there / path).is_file()}


def test_the_sample_checkpoint_travels_with_the_wheel(installed: Path, repository: Path) -> None:
    sample = repository / "bench" / "models" / "sample"
    kept = {path.name for path in sample.glob("*.json")} | {path.name for path in sample.glob("*.safetensors")}
    assert {path.name for path in (installed / "agentcompile/bench/models/sample").glob("*")} >= kept


def test_the_tasks_travel_with_the_wheel(installed: Path, repository: Path) -> None:
    tasks = {path.name for path in (repository / "bench" / "tasks").glob("*.*")}
    assert {"README.md", "softmax.py"} <= tasks
    assert {path.name for path in (installed / "agentcompile/bench/tasks").glob("*.*")} == tasks
