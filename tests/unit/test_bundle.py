"""A bundle is its lock, its sources and its templates by digest, and nothing else."""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from test_lockfile import a_lock

from agentcompile.build import NVRTC_SCRIPT, build_command
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.template import Launch, Source, Template
from agentcompile.lockfile.bundle import ABOUT, LOCK, Bundle, Tools, beside, read_bundle, render_bundle
from agentcompile.lockfile.files import render_lock
from agentcompile.replay.sources import LockSources
from agentcompile.system.store import Store
from agentcompile.system.tarball import TarballError, TarballLimits, pack, unpack

SOURCE = Source(
    language="cpp",
    text='extern "C" void twice(float** a, int, int) { *a[0] *= 2; }\n',
    launches=(Launch(entry="twice", arguments=("x",)),),
    workspaces=(("sums", "fp32", 4, True),),
    flags=("-msse4.2",) if os.uname().machine == "x86_64" else (),
)
TEMPLATE = Template(id="add/plain", region="add", language="cpp", about="Adds.", dtypes=("bf16",), source="x")
BUNDLE = Bundle(sources={SOURCE.digest: SOURCE}, templates={TEMPLATE.digest: TEMPLATE})
TOOLS = Tools(commands={SOURCE.digest: build_command(SOURCE, SOURCE.digest)}, nvrtc=NVRTC_SCRIPT)
DATA = render_bundle(render_lock(a_lock()), BUNDLE, TOOLS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.lock.bundle.tar.xz"
    file.write_bytes(DATA)
    return file


def refused(path: Path, data: bytes, *words: str) -> None:
    path.write_bytes(data)
    with pytest.raises(AgentCompileError) as caught:
        read_bundle(path)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    assert all(word in caught.value.message for word in words), caught.value.message


def test_a_bundle_comes_back_as_it_was_written_and_is_the_same_bytes_twice(path: Path) -> None:
    assert read_bundle(path) == BUNDLE
    assert render_bundle(render_lock(a_lock()), BUNDLE, TOOLS) == DATA
    assert beside(Path("x/a.lock.toml")) == Path("x/a.lock.bundle.tar.xz")
    assert beside(path) == path
    assert read_bundle(path.with_name("none")) is None


def test_the_script_of_a_bundle_builds_its_sources(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    with tarfile.open(path) as tar:
        tar.extractall(folder, filter="data")
    subprocess.run(["sh", "build.sh"], cwd=folder, check=True, capture_output=True, timeout=60)
    assert b"twice" in (folder / f"build/{SOURCE.digest}.so").read_bytes()


@pytest.mark.parametrize("part", ["sources", "templates"])
def test_a_member_with_another_content_than_its_digest_says_is_refused(part: str, path: Path) -> None:
    files = unpack(DATA, TarballLimits())
    name = next(name for name in files if name.startswith(part) and name.endswith(".json"))
    files[name] = files[name].replace(b"sums", b"more").replace(b"Adds", b"Does")
    refused(path, pack(files), name, "digest")


def test_a_text_with_another_content_is_refused(path: Path) -> None:
    files = unpack(DATA, TarballLimits())
    name = next(name for name in files if name.endswith(".cpp"))
    refused(path, pack({**files, name: files[name].replace(b"2", b"3")}), "digest")
    refused(path, pack({**files, name: b"\xff"}), "sources/")


def test_what_no_bundle_holds_is_refused(path: Path) -> None:
    files = unpack(DATA, TarballLimits())
    refused(path, pack({**files, "sources/x.sh": b"rm"}), "sources/x.sh")
    refused(path, pack({name: data for name, data in files.items() if name != LOCK}), LOCK)
    refused(path, pack({**files, ABOUT: b'{"version": 2}'}), "newer")
    refused(path, pack({**files, ABOUT: b"[" * 100_000}), str(path))
    json = next(name for name in files if name.startswith("templates/"))
    refused(path, pack({**files, json: b"[" * 100_000}), json)


def test_a_bundle_has_what_its_table_of_contents_lists_and_nothing_more(path: Path) -> None:
    files = unpack(DATA, TarballLimits())
    for name in files:
        if name != ABOUT and not name.endswith(".cpp"):
            refused(path, pack({one: data for one, data in files.items() if one != name}), name, "missing")
    text = next(name for name in files if name.endswith(".cpp"))
    more = {text.replace(".cpp", ".cu"): b"x", f"sources/{'a' * 64}.cpp": b"x", f"templates/{'a' * 64}.json": b"{}"}
    for name, data in more.items():
        refused(path, pack({**files, name: data}), name, "lists")
    for version in (b"0", b"-1", b"true", b"1.0"):
        about = files[ABOUT].replace(b'"version": 1', b'"version": ' + version)
        refused(path, pack({**files, ABOUT: about}), "version")


def test_links_ways_out_and_bombs_are_refused(path: Path) -> None:
    for name, kind in (("sources/../../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), ("x", tarfile.SYMTYPE)):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        refused(path, lzma.compress(made.getvalue(), preset=0), "x")
    refused(path, lzma.compress(bytes(80 << 20), preset=0), "unpacks to more")
    refused(path, b"PK\x03\x04", "no bundle")


def test_every_cut_and_flipped_byte_is_refused(path: Path) -> None:
    for end in range(0, len(DATA), 97):
        refused(path, DATA[:end])
    for at in range(0, len(DATA), 61):
        try:
            found = unpack(DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :], TarballLimits())
        except TarballError:
            continue
        assert found == unpack(DATA, TarballLimits())


def test_the_store_gives_a_source_by_its_digest_and_nothing_that_was_damaged(tmp_path: Path) -> None:
    kept = LockSources(store=Store(tmp_path))
    assert kept.source(SOURCE.digest) is None
    for suffix in (".source.json", ".template.json"):
        kept.store and kept.store.write(SOURCE.digest, b'{"language": "cpp"}', suffix)
    assert kept.source(SOURCE.digest) is None
    other = replace(SOURCE, text="other")
    assert LockSources(bundle=Bundle(sources={other.digest: other}, templates={})).source(other.digest) == other
