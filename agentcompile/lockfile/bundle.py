"""The bundle of a lock: one file with everything that its kernels are made from, so that it outlives the templates.

    bundle.json           the version of this format, and each source with its language, entries and template
    lock.toml             the lock
    build.sh, nvrtc.py    compile the sources as `replay` does, with the compilers of the machine
    sources/DIGEST.json   launch signatures, workspaces and flags; the text lies beside it as DIGEST.cpp, .cu or .py
    templates/DIGEST.json the template that a source was made from: manifest, kernel file and shared texts

A bundle lies beside its lock, `x.lock.toml` and `x.lock.bundle.tar.xz`, and is a lock by itself: every verb that takes
a lock takes a bundle. A member counts only if its content has the digest in its name, and a lock takes from a bundle
only what has the digests that the lock pins. So the bundle of another lock gives it nothing, and a false bundle needs a
false lock. A digest does not say who wrote the code: open only bundles of people whose code you would run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import agentcompile
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode, lean
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.template import Source, Template
from agentcompile.system.plain_files import read_plain
from agentcompile.system.tarball import MAGIC, TarballError, TarballLimits, pack, unpack

VERSION = 1
"""The format of a bundle; a greater one is refused."""
ENDING = ".bundle.tar.xz"
ABOUT, LOCK, BUILD, NVRTC = "bundle.json", "lock.toml", "build.sh", "nvrtc.py"
LIMITS = TarballLimits(packed_bytes=8 << 20, unpacked_bytes=64 << 20, files=4096)
SUFFIXES = {"cpp": ".cpp", "cuda": ".cu", "triton": ".py"}
_MEMBER = re.compile(r"(sources|templates)/([0-9a-f]{64})\.(json|cpp|cu|py)")
_AGAIN = "restore it, or make it again with `agentcompile bundle LOCK`"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """How sources are built without agentcompile."""

    commands: Mapping[str, str]
    """Source digest to the lines of a shell script that builds the source."""
    nvrtc: bytes
    """A Python script that the commands of CUDA sources call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a bundle holds besides its lock, by digest."""

    sources: Mapping[str, Source]
    templates: Mapping[str, Template]


def beside(lock: Path) -> Path:
    """Return where the bundle of a lock lies; for a bundle, the bundle itself."""
    return lock if lock.name.endswith(ENDING) else lock.with_name(lock.name.removesuffix(".toml") + ENDING)


def render_bundle(lock: bytes, bundle: Bundle, tools: Tools) -> bytes:
    """Return the bytes of a bundle, which are the same for the same lock and sources."""
    files = {LOCK: lock, BUILD: _script(bundle, tools.commands), NVRTC: tools.nvrtc, ABOUT: _about(bundle)}
    for digest, source in bundle.sources.items():
        files[f"sources/{digest}.json"] = source_bytes(replace(source, text=""))
        if source.text:
            files[f"sources/{digest}{SUFFIXES[source.language]}"] = source.text.encode()
    for digest, template in bundle.templates.items():
        files[f"templates/{digest}.json"] = template_bytes(template)
    return pack(files)


def source_bytes(source: Source) -> bytes:
    """Return a source as JSON; fields with their default values are left out."""
    return canonical(lean(source)) + b"\n"


def template_bytes(template: Template) -> bytes:
    """Return a template as JSON, its texts included."""
    return canonical(lean(template)) + b"\n"


def source_in(data: bytes, digest: str, text: bytes = b"") -> Source:
    """Return the source that `source_bytes` encoded, with its text where that lies in another file.

    Raises:
        ValueError: the data does not decode, or does not have the digest.
    """
    found = _decoded(Source, data)
    try:
        found = replace(found, text=text.decode()) if text else found
        told = found.digest
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if told != digest:
        raise ValueError(f"its content has the digest {told[:12]}")
    return found


def template_in(data: bytes, digest: str) -> Template:
    """Return the template that `template_bytes` encoded.

    Raises:
        ValueError: the data does not decode, or does not have the digest.
    """
    found = _decoded(Template, data)
    if found.digest != digest:
        raise ValueError(f"its content has the digest {found.digest[:12]}")
    return found


def _decoded(cls: type[T], data: bytes) -> T:
    try:
        return cast(T, decode(cls, json.loads(data)))
    except (CodecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def read_bundle(path: Path) -> Bundle | None:
    """Return the bundle at `path`, with every member checked against its digest; None when there is no file.

    Raises:
        AgentCompileError: it is damaged, too large, of a newer version, or has an unlisted member (usage).
    """
    try:
        data = read_plain(path, LIMITS.packed_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentCompileError(f"{path}: {error.strerror}", hint=_AGAIN) from error
    files = members(data, path)
    sources, templates = dict[str, Source](), dict[str, Template]()
    for name, content in files.items():
        found = _MEMBER.fullmatch(name)
        if found is None or found[3] != "json":
            continue
        try:
            if found[1] == "templates":
                templates[found[2]] = template_in(content, found[2])
            else:
                texts = (files.get(f"sources/{found[2]}{suffix}", b"") for suffix in SUFFIXES.values())
                sources[found[2]] = source_in(content, found[2], next((text for text in texts if text), b""))
        except ValueError as error:
            raise AgentCompileError(f"{path}: {name}: {str(error)[:300]}", hint=_AGAIN) from error
    return Bundle(sources=sources, templates=templates)


def members(data: bytes, path: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name, including its lock.

    Raises:
        AgentCompileError: it is damaged, too large, of a newer version, or its members are not those listed (usage).
    """  # noqa: DOC501
    try:
        if not data.startswith(MAGIC):
            raise TarballError("no bundle of a lock")
        files = unpack(data, LIMITS)
        about = json.loads(files.get(ABOUT, b"null"))
        version = about.get("version") if isinstance(about, dict) else None
        if type(version) is not int or version < 1:
            raise TarballError(f"no bundle of a lock: {ABOUT} has no version")
    except (ValueError, RecursionError) as error:
        raise AgentCompileError(f"{path}: {str(error)[:300]}", hint=_AGAIN) from error
    if version > VERSION:
        text = f"{path}: version {version} is newer than the {VERSION} that this agentcompile reads"
        raise AgentCompileError(text, hint="use a newer agentcompile")
    needed, allowed = _listed(about)
    for name in sorted(set(files) - needed - allowed):
        raise AgentCompileError(f"{path}: {name[:100]!r}: nothing that this bundle lists", hint=_AGAIN)
    for name in sorted(needed - set(files)):
        raise AgentCompileError(f"{path}: {name[:100]!r} is missing", hint=_AGAIN)
    return files


def _listed(about: Mapping[str, Json]) -> tuple[set[str], set[str]]:
    needed, allowed = {ABOUT, LOCK, BUILD, NVRTC}, set[str]()
    for folder, key in (("sources", "source"), ("templates", "template")):
        rows = about.get(folder)
        for row in rows if isinstance(rows, list) else ():
            stem = f"{folder}/{row.get(key)}" if isinstance(row, dict) else ""
            if _MEMBER.fullmatch(f"{stem}.json") and isinstance(row, dict):
                needed.add(f"{stem}.json")
                allowed |= {stem + SUFFIXES.get(str(row.get("language")), ".json")} if folder == "sources" else set()
    return needed, allowed


def _about(bundle: Bundle) -> bytes:
    sources: list[Json] = [
        {"source": digest, "language": source.language, "entries": [launch.entry for launch in source.launches]}
        for digest, source in sorted(bundle.sources.items())
    ]
    templates: list[Json] = [
        {"template": digest, "id": one.id, "region": one.region} for digest, one in sorted(bundle.templates.items())
    ]
    told = {"version": VERSION, "agentcompile": agentcompile.__version__, "sources": sources, "templates": templates}
    return json.dumps(told, indent=1, sort_keys=True).encode() + b"\n"


def _script(bundle: Bundle, commands: Mapping[str, str]) -> bytes:
    lines = [
        "#!/bin/sh",
        "# Builds the kernels of this lock into build/, as `agentcompile replay` does.",
        "# CXX, PYTHON and NVRTC name the tools.",
        "set -eu",
        'cd "$(dirname "$0")"',
        "mkdir -p build",
    ]
    for digest, source in sorted(bundle.sources.items()):
        entries = " ".join(launch.entry for launch in source.launches) or source.call
        lines += [f": {shlex.quote(f'{source.language} {entries}')}"]
        lines += [commands.get(digest, "# agentcompile builds it by itself")]
    return ("\n".join(lines) + "\n").encode()
