"""Promotion: an admitted kernel becomes a folder among the user's templates, with where it comes from beside it.

A kernel of a task has a folder there as well, below the task's own kind; the catalog passes over it.

In: the two texts and their provenance. Out: ``<root>/<kind>/<name>/``, which appears whole or not at all, and never in
the place of another template.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from agentcompile.catalog import default_root
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.catalog.discover import MANIFEST
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.attempt import Written, WrittenLanguage
from agentcompile.ir.target import Target
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Finding
from agentcompile.options import Options
from agentcompile.refine.points import read_all
from agentcompile.refine.provenance import FILE, Provenance, provenance_bytes

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_MOST = 1000
"""The most folders of one name."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def default_user_templates(options: Options) -> Path:
    """Return the folder of templates that were written on this machine, which `compile` searches where it exists."""
    return options.written


def machine_of(target: Target) -> dict[str, str]:
    """Return what a provenance says about the machine."""
    return {
        "device": target.device,
        "arch": target.arch,
        "threads": str(target.threads),
        "toolchain": target.toolchain,
        "target": target.digest,
    }


def promote(
    written: Written, about: Provenance, root: Path, *, kind: str, language: WrittenLanguage, name: str = ""
) -> Path:
    """Write an admitted template to ``<root>/<kind>/<name>`` and return that folder.

    Where another template has the name, here or among those that ship, a number is added to it. A folder with the same
    texts is returned as it is, so that a promotion may be repeated. Without a `name` it follows from the texts.

    Raises:
        AgentCompileError: the texts make no template, or the name is none (usage); the folder cannot be written
            (environment).
    """
    name = name or written.variant
    if not _NAME.fullmatch(name):
        hint = "small letters, digits and hyphens, a letter first, 64 at most"
        raise AgentCompileError(f"{name[:80]!r} cannot name a template", hint=hint)
    texts = {MANIFEST: written.manifest, KERNEL_FILES[language]: written.kernel}
    try:
        for one in _names(name):
            folder = root / kind / one
            if _holds(folder, texts):
                return folder
            if not folder.exists() and not (default_root() / kind / one).exists():
                found = _provenance(written, about, kind, language, one)
                if _placed(folder, root, {**texts, FILE: provenance_bytes(found).decode()}):
                    return folder
    except OSError as error:
        text = f"{root}: the template cannot be written: {error.strerror or error}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="make the folder writable") from error
    raise AgentCompileError(f"{root / kind}: {_MOST} templates are called {name}", hint="give another name")


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in range(2, _MOST + 1))


def _holds(folder: Path, texts: Mapping[str, str]) -> bool:
    """Return whether a folder holds exactly these texts."""
    return all(
        (folder / name).is_file() and (folder / name).read_bytes() == text.encode() for name, text in texts.items()
    )


def _provenance(written: Written, about: Provenance, kind: str, language: WrittenLanguage, name: str) -> Provenance:
    """Return the provenance with the digests of what is written under that name."""  # noqa: DOC501
    if about.task_file:  # what its manifest may name, only the open task says: the verdict shows that it was read
        return replace(about, written=written.digest)
    made = read_all(written, kind, language, name)
    for one in made:
        if isinstance(one, Finding):
            raise AgentCompileError(one.text, hint="evaluate it first: only what was admitted is promoted")
    digests = tuple(one.digest for one in made if isinstance(one, Template))
    return replace(about, written=written.digest, templates=digests)


def _placed(folder: Path, root: Path, texts: Mapping[str, str]) -> bool:
    """Move a whole folder to its place; False when somebody else was faster."""  # noqa: DOC501
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A folder right below the root is at no depth where a template is looked for.
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=root))
    try:
        for name, text in texts.items():
            with (part / name).open("wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        part.chmod(0o755)
        part.rename(folder)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True
