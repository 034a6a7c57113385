"""The documentation's site: it builds strictly, and its pages need nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ELSEWHERE = re.compile(r"\s*(https?:)?//[\w.-]+\.\w")
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")
IN_SCRIPTS = re.compile(r"""["'](?:https?:)?//[\w.-]+\.\w[^"']*""")
"""A text of a script that is an address: what it could load. Comments name hosts too, without quotation marks."""


class Loads(HTMLParser):
    """What a page or a picture makes a browser load, and the classes and roles of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.words = set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.words |= {*given.get("class", "").split(), given.get("data-md-component", "")}
        if tag == "a" or given.get("rel") == "canonical":
            return
        names = ("src", "href", "xlink:href", "data", "poster", "srcset")
        self.found += [value for name, value in given.items() if name in names and ELSEWHERE.match(value)]
        self.found += IN_STYLES.findall(given.get("style", ""))


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
    files = [path for kind in ("html", "svg", "css", "js") for path in site.rglob(f"*.{kind}")]
    assert {path.suffix for path in files} == {".html", ".svg", ".css", ".js"}
    for path in files:
        text, loads = path.read_text(encoding="utf-8"), Loads()
        if path.suffix in (".html", ".svg"):
            loads.feed(text)
        assert not loads.found, path
        # The theme asks hosts of repositories for their stars, and draws diagrams, where a page has such an element.
        assert not loads.words & {"source", "mermaid"}, path
        assert not IN_STYLES.search(text), path
        assert path.suffix != ".js" or not IN_SCRIPTS.search(text), path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://scripts.example.com/a.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example.com/a.css">', 1),
        ('<img src="a.png" srcset="https://example.com/a.png 2x">', 1),
        ('<image xlink:href="http://example.com/a.png"/>', 1),
        ('<p style="background: url(https://example.com/a.png)">', 1),
        ('<a href="https://example.com">there</a><link rel="canonical" href="https://example.com/">', 0),
        ('<svg xmlns="http://www.w3.org/2000/svg"><img src="pictures/a.svg"></svg>', 0),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_seen(text: str, found: int) -> None:
    loads = Loads()
    loads.feed(text)
    assert len(loads.found) == found
    assert IN_SCRIPTS.search('load("https://scripts.example.com/a.js")')
    assert not IN_SCRIPTS.search("// see https://example.com/a.js")
    assert IN_STYLES.search("@import 'https://fonts.example.com/a.css'")


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
