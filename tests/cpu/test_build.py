"""Building with the host's compiler: once per source, within a limit, with a log that people can read."""

from __future__ import annotations

import ctypes
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.build import BUILDERS, Binary, compile, compile_executor, find_toolchain
from agentcompile.build.cxx import LOG_CHARACTERS, clean_log
from agentcompile.build.prelude import WORTH, system_head
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import BuildFailed, TimedOut
from agentcompile.system.store import Store

pytestmark = pytest.mark.usefixtures("compiler_itself")

SLOW = """
template <int N, int M> struct F { static constexpr long v = F<N - 1, M>::v + F<N - 2, M + 1>::v; };
template <int M> struct F<0, M> { static constexpr long v = M; };
template <int M> struct F<1, M> { static constexpr long v = M; };
extern "C" long slow() { return F<800, 0>::v; }
"""


def source(text: str, *flags: str) -> Source:
    launch = Launch(entry="answer", arguments=())
    return Source(language="cpp", text=text, launches=(launch,), workspaces=(), flags=flags)


ANSWER = source('extern "C" int answer() { return 42; }')


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def build(made: Source, store: Store, limit_s: float = 30.0) -> Binary | BuildFailed | TimedOut:
    return compile(made, store, toolchain=find_toolchain(), limit_s=limit_s)


def test_a_source_becomes_a_library_that_loads(store: Store) -> None:
    made = build(ANSWER, store)
    assert isinstance(made, Binary)
    assert ctypes.CDLL(made.path).answer() == 42


def test_a_source_is_compiled_once_and_found_again(store: Store) -> None:
    first = build(ANSWER, store)
    assert isinstance(first, Binary)
    before = Path(first.path).stat().st_mtime_ns
    assert build(ANSWER, store) == first
    assert Path(first.path).stat().st_mtime_ns == before
    assert not list(store.root.glob(".work-*"))


def test_one_source_gives_the_same_bytes_in_two_stores(tmp_path: Path) -> None:
    digests = {made.digest for name in "ab" if isinstance(made := build(ANSWER, Store(tmp_path / name)), Binary)}
    assert len(digests) == 1


def test_flags_are_part_of_the_identity_and_reach_the_compiler(store: Store) -> None:
    text = 'extern "C" int answer() { return WHICH; }'
    one, two = build(source(text, "-DWHICH=1"), store), build(source(text, "-DWHICH=2"), store)
    assert isinstance(one, Binary)
    assert isinstance(two, Binary)
    assert (ctypes.CDLL(one.path).answer(), ctypes.CDLL(two.path).answer()) == (1, 2)


def test_headers_are_parsed_once_and_the_binary_is_the_same(tmp_path: Path) -> None:
    texts = [
        f"// {n}\n#include <algorithm>\n#include <cmath>\n"
        f'extern "C" double answer(double a) {{ return std::max(std::sqrt(a), {n}.0); }}\n'
        for n in range(WORTH + 2)
    ]
    store, fresh = Store(tmp_path / "store"), Store(tmp_path / "fresh")
    made = [build(source(text), store) for text in texts]
    header = list(store.root.rglob("*.h.gch"))
    assert len(header) == 1, "parsed once it pays, and once only"
    again = build(source(texts[-1]), fresh)
    assert isinstance(again, Binary)
    assert isinstance(made[-1], Binary)
    assert again.digest == made[-1].digest
    assert not list(fresh.root.rglob("*.h.gch"))


@pytest.mark.parametrize("damage", [b"", b"no header", bytes(range(256)) * 64])
def test_a_damaged_parsed_header_costs_time_alone(store: Store, damage: bytes) -> None:
    text = "#include <numeric>\n" + 'extern "C" int answer() {{ return std::gcd({}, 60); }}\n'
    for n in range(WORTH + 1):
        assert isinstance(build(source(text.format(n)), store), Binary)
    (header,) = store.root.rglob("*.h.gch")
    header.write_bytes(damage)
    made = build(source(text.format(48)), store)
    assert isinstance(made, Binary), made
    assert ctypes.CDLL(made.path).answer() == 12


def test_only_system_headers_at_the_head_are_parsed_ahead() -> None:
    text = "// made\n\n#include <cmath>\n// more\n#include <vector>\nint x;\n#include <string>\n"
    assert system_head(text) == "#include <cmath>\n#include <vector>\n"
    assert system_head("#define A 1\n#include <cmath>\n") == ""


def test_an_error_is_a_value_with_a_readable_log(store: Store) -> None:
    made = build(source('#line 7 "templates/x/kernel.cpp"\nint answer( {'), store)
    assert isinstance(made, BuildFailed)
    assert "templates/x/kernel.cpp:7" in made.log
    assert str(store.root) not in made.log


def test_an_undefined_symbol_fails_the_build_and_not_the_load(store: Store) -> None:
    made = build(source('extern "C" int other(); extern "C" int answer() { return other(); }'), store)
    assert isinstance(made, BuildFailed)
    assert "other" in made.log


def test_a_compiler_that_takes_too_long_is_stopped_and_leaves_nothing(store: Store) -> None:
    begin = time.monotonic()
    assert build(source(SLOW), store, limit_s=0.5) == TimedOut(stage="build", limit_s=0.5)
    assert time.monotonic() - begin < 5
    assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_a_log_loses_escapes_control_characters_and_its_middle(tmp_path: Path) -> None:
    log = clean_log(f"\x1b[01;31m{tmp_path}/kernel.cpp\x1b[m: \u202ebad\x07\n" + "x" * 3 * LOG_CHARACTERS, tmp_path)
    assert log.startswith("kernel.cpp: bad\n")
    assert len(log) < LOG_CHARACTERS + 100
    assert "left out" in log


def test_a_library_call_has_nothing_to_build(store: Store) -> None:
    made = Source(language="library", text="", launches=(), workspaces=(), call="torch.linear")
    assert build(made, store) == Binary(digest=made.digest)


def test_every_builder_is_in_one_table() -> None:
    assert list(BUILDERS) == ["cpp", "cuda", "triton", "library"]


def test_the_executor_is_built_once(store: Store) -> None:
    path = compile_executor(store, toolchain=find_toolchain())
    assert compile_executor(store, toolchain=find_toolchain()) == path
    assert ctypes.CDLL(str(path)).ac_abi


def test_a_machine_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError) as caught:
        find_toolchain(str(tmp_path / "no-such-compiler"))
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "install g++" in caught.value.hint


@pytest.mark.parametrize(("script", "words"), [("exit 1", "no version"), ("echo hello", "no version")])
def test_a_compiler_that_does_not_answer_is_an_environment_error(tmp_path: Path, script: str, words: str) -> None:
    fake = tmp_path / "cc"
    fake.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(AgentCompileError, match=words):
        find_toolchain(str(fake))


def test_the_version_of_a_compiler_is_its_own_and_not_its_distributions(tmp_path: Path) -> None:
    fake = tmp_path / "g++-11"
    fake.write_text('#!/bin/sh\necho "g++-11 (Debian 11.3.0-12) 11.4.1 20230101"\n', encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    assert find_toolchain(str(fake)).name == "g++-11 11.4.1"


def test_a_compiler_that_is_gone_is_an_environment_error(store: Store) -> None:
    toolchain = replace(find_toolchain(), compiler="/nonexistent/g++")
    with pytest.raises(AgentCompileError) as caught:
        compile(ANSWER, store, toolchain=toolchain, limit_s=5)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
