"""Sources of candidates, read from outside: what a compiler saw, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.control.sources import source_text
from agentcompile.ir.codec import encode
from agentcompile.options import Options
from agentcompile.runs.session import RunDirectory
from agentcompile.system.store import Store

DIGEST = "ab" * 32


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    options = Options(model="m", home=str(tmp_path / "home"))
    Store(options.store).write(DIGEST, b"extern void kernel();\n", ".source")
    return RunDirectory.create(tmp_path / "run", encode(options))


def test_a_source_is_read_where_the_compiler_left_it(run: RunDirectory) -> None:
    assert source_text(run, DIGEST) == "extern void kernel();\n"


@pytest.mark.parametrize("digest", ["cd" * 32, "", "../../etc/passwd", "ab", "AB" * 32])
def test_what_is_not_there_or_no_digest_is_none(run: RunDirectory, digest: str) -> None:
    assert source_text(run, digest) is None


def test_a_run_without_options_has_no_sources(tmp_path: Path) -> None:
    assert source_text(RunDirectory(tmp_path), DIGEST) is None
