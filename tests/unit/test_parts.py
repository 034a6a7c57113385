"""How the tests are run: a fault fails, however often; what passes the second time alone is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import __main__ as parts

FIRST_TIME = """
from pathlib import Path
def test_{name}():
    seen = Path(__file__).with_name("seen {name}")
    if not seen.exists():
        seen.touch()
        raise AssertionError
"""
ALWAYS = "def test_{name}():\n    raise AssertionError\n"
NEVER = "def test_{name}():\n    pass\n"


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, *kinds: str) -> int:
    """Run one part with a test of each kind; return the exit code."""
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    folder.joinpath("test_here.py").write_text("".join(kind.format(name=at) for at, kind in enumerate(kinds)))
    monkeypatch.setattr(parts, "ROOT", folder)
    monkeypatch.setattr(parts, "PARTS", (("-p", "no:xdist", "-q"),))
    return parts.main()


def test_what_fails_once_is_run_again_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(tmp_path, monkeypatch, NEVER, FIRST_TIME) == 0
    assert "UNSTEADY: test_here.py::test_1 failed, and passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kinds", [(NEVER, ALWAYS), (FIRST_TIME, ALWAYS), (FIRST_TIME,) * (parts.MOST + 1), ("no python",), ()]
)
def test_a_fault_fails_and_so_do_many_and_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kinds: tuple[str, ...]
) -> None:
    assert ran(tmp_path, monkeypatch, *kinds) != 0
    named = capsys.readouterr().out.count("UNSTEADY")
    assert named == (kinds == (FIRST_TIME, ALWAYS))


def test_nothing_is_run_again_where_all_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ran(tmp_path, monkeypatch, NEVER, NEVER) == 0
    assert capfd.readouterr().out.count("2 passed") == 1


def test_what_is_kept_in_the_cache_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / ".pytest_cache/d/cxx/object"
    kept.parent.mkdir(parents=True)
    kept.touch()
    parts_before = tmp_path / ".pytest_cache/v/cache/lastfailed"
    parts_before.parent.mkdir(parents=True)
    parts_before.write_text('{"test_gone.py::test_0": true}')
    assert ran(tmp_path, monkeypatch, NEVER, FIRST_TIME) == 0
    assert kept.exists()
