"""The documentation's site: it builds strictly, and its pages need nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest


class Loads(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source") or (tag == "link" and given.get("rel") != "canonical"):
            self.found += [value for value in (given.get("src"), given.get("href")) if value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning an error."""
    root, out = Path(__file__).resolve().parents[2], tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    built = subprocess.run(
        command, cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_of_the_folder_is_in_the_navigation(site: Path, repository: Path) -> None:
    nav = set(re.findall(r'href="([\w-]+)\.html" class="md-nav__link"', (site / "index.html").read_text("utf-8")))
    pages = {path.stem for path in (repository / "docs").glob("*.md")}
    assert pages <= nav


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loads = Loads()
        loads.feed(path.read_text(encoding="utf-8"))
        assert not [one for one in loads.found if re.match(r"(https?:)?//", one)], path


def test_what_pages_link_outside_the_folder_comes_along(site: Path) -> None:
    using = (site / "using.html").read_text(encoding="utf-8")
    assert 'href="repository/examples/own_module.py"' in using
    assert 'href="repository/bench/models/index.html"' in using
    assert (site / "repository/examples/own_module.py").is_file()
    assert (site / "repository/bench/models/index.html").is_file()
    assert 'src="repository/tui/screen.svg"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_pictures_of_the_app_are_all_there_and_load_no_font(repository: Path) -> None:
    checked = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=repository, check=False)
    assert checked.returncode == 0
    pictures = [*(repository / "docs" / "pictures").glob("*.svg"), repository / "tui" / "screen.svg"]
    for path in pictures:
        assert "url(" not in path.read_text("utf-8").replace("url(#", ""), path
    page = (repository / "docs" / "app.md").read_text("utf-8")
    assert all(path.name in page for path in pictures)
