"""Hooks of `mkdocs.yml`: the README is the site's first page, and what pages link outside docs/ comes along.

In: pages whose links are right in the repository. Out: the same pages with links that are right in the site, where a
file outside docs/ lies below `repository/`; a Markdown file there becomes a page. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FIRST, OUTSIDE = "index.md", "repository"
_ELSEWHERE = re.compile(r'"https://[^"/]*/(mermaid|resize-observer)[^"]*"')
"""What the theme's script loads for diagrams in Mermaid, and for browsers before 2020 that cannot watch sizes."""
_PIECE = re.compile(r"(^```.*?^```|`[^`\n]*`)|(!?\[[^\]]*\]\()([^)\s]+)(\))", re.M | re.S)
"""Code, which stays as it is, or a link."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the README, and every file that a page links outside docs/."""
    files.append(File.generated(config, FIRST, abs_src_path=str(ROOT / "README.md")))
    known, waiting = set[str](), ["README.md", *(f"docs/{page.src_uri}" for page in files.documentation_pages())]
    while waiting:
        path = waiting.pop()
        if path in known or path == f"docs/{FIRST}":
            continue
        known.add(path)
        uri = _uri(path)
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting += [target for target, _ in _targets(path) if target]
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Return the page with its links as they are in the site."""
    own = page.file.src_uri
    path = (
        "README.md" if own == FIRST else own.removeprefix(f"{OUTSIDE}/") if own.startswith(OUTSIDE) else f"docs/{own}"
    )

    def placed(found: re.Match[str]) -> str:
        code, begin, link, end = found.groups()
        if code is not None:
            return code
        target, anchor = _target(path, link)
        if not target:
            return found[0]
        near = posixpath.relpath(_uri(target), posixpath.dirname(own) or ".")
        return f"{begin}{near}{anchor}{end}"

    return _PIECE.sub(placed, markdown)


def on_post_build(*, config: Any) -> None:
    """Take the addresses of scripts elsewhere out of the theme's own script: no page here needs them."""
    for path in Path(config.site_dir, "assets", "javascripts").glob("bundle.*.js"):
        path.write_text(_ELSEWHERE.sub('""', path.read_text(encoding="utf-8")), encoding="utf-8")


def _targets(path: str) -> list[tuple[str, str]]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return [_target(path, found[3]) for found in _PIECE.finditer(text) if found[3] is not None]


def _target(path: str, link: str) -> tuple[str, str]:
    """Return the file in the repository that a link of `path` means, and its anchor; "" where it is left alone."""
    name, hash, anchor = link.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return "", ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    return (target, hash + anchor) if (ROOT / target).is_file() else ("", "")


def _uri(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    if path == "README.md":
        return FIRST
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"
