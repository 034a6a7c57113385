"""Strict decoding: what people wrote becomes our types, or an error that names file, key, value and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.catalog.decode import from_toml, from_value, hint_of, nearest, read_text
from agentcompile.errors import AgentCompileError, ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A nested table."""

    domain: tuple[int | str, ...]
    default: int | str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """One of everything that our files hold."""

    name: str
    language: Literal["cpp", "cuda"]
    count: int = 0
    share: float = 0.0
    fast: bool = False
    names: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    params: dict[str, Inner] = field(default_factory=dict)
    items: tuple[Inner, ...] = ()


GOOD = """
name = "rows"
language = "cpp"
share = 1
names = ["a", "b"]
pairs = [["n", "bf16"]]
[params.VEC]
domain = [1, "two"]
default = 1
[[items]]
domain = []
default = "x"
"""


def test_a_good_file_becomes_tuples_and_dataclasses() -> None:
    value = from_toml(Outer, GOOD, file="x.toml")
    inner = Inner(domain=(1, "two"), default=1)
    assert value == Outer(
        name="rows",
        language="cpp",
        share=1.0,
        names=("a", "b"),
        pairs=(("n", "bf16"),),
        params={"VEC": inner},
        items=(Inner(domain=(), default="x"),),
    )
    assert type(value.share) is float


BASE = 'name = "rows"\nlanguage = "cpp"\n'
BROKEN = [
    ("", "x.toml: name: missing (and 1 more)", "it takes a text"),
    ('name = "rows"', "x.toml: language: missing", "it takes one of cpp, cuda"),
    (BASE + "cuont = 3", "x.toml: cuont: unknown key", "did you mean `count`? allowed keys: name, language, count"),
    (BASE + "zzz = 3", "x.toml: zzz: unknown key", "allowed keys: name, language, count"),
    ('name = "rows"\nlanguage = "c++"', 'x.toml: language: "c++" is not one of cpp, cuda', "allowed: cpp, cuda"),
    ('name = "rows"\nlanguage = 3', "x.toml: language: 3 is not one of cpp, cuda", "allowed: cpp, cuda"),
    (BASE + "count = 1.5", "x.toml: count: 1.5 is not a whole number", "it takes a whole number"),
    (BASE + 'count = "3"', 'x.toml: count: "3" is not a whole number', "it takes a whole number"),
    (BASE + "count = true", "x.toml: count: true is not a whole number", "it takes a whole number"),
    (BASE + 'share = "1"', 'x.toml: share: "1" is not a number', "it takes a number"),
    (BASE + "fast = 1", "x.toml: fast: 1 is not true or false", "it takes true or false"),
    (BASE + 'names = "a"', 'x.toml: names: "a" is not an array of texts', "it takes an array of texts"),
    (BASE + "names = [3]", "x.toml: names[0]: 3 is not a text", "it takes a text"),
    (BASE + 'pairs = [["a"]]', "x.toml: pairs[0][1]: missing", "it takes a text"),
    (BASE + 'pairs = [["a", "b", "c"]]', "x.toml: pairs[0]:", "it takes an array of 2: a text, a text"),
    (BASE + "params = 3", "x.toml: params: 3 is not a table", "it takes a table"),
    (BASE + "[params]\nVEC = 3", "x.toml: params.VEC: 3 is not a table with domain", "it takes a table with domain"),
    (
        BASE + "[params.VEC]\ndomain = [1.5]\ndefault = 1",
        "x.toml: params.VEC.domain[0]: 1.5 is not a whole number or a text",
        "",
    ),
    (
        BASE + "[params.VEC]\ndomain = [1]\ndefualt = 1",
        "x.toml: params.VEC.defualt: unknown key (and 1 more)",
        "did you mean `default`?",
    ),
    (BASE + "[[items]]\ndomain = [1]", "x.toml: items[0].default: missing", "it takes a whole number or a text"),
    (BASE + "name = 3", "x.toml: not TOML: Cannot overwrite a value", "correct the syntax there"),
    (BASE + "count = ", "x.toml: not TOML:", "correct the syntax there"),
    (BASE + "when = 2026-01-01", "x.toml: when: 2026-01-01 is a date", "no key takes one"),
    (BASE + "share = nan", "x.toml: share: nan is not a finite number", "write a finite number"),
    (BASE + "share = [inf]", "x.toml: share[0]: inf is not a finite number", "write a finite number"),
    (BASE + 'names = ["' + "é" * 200 + '", 3]', "x.toml: names[1]: 3 is not a text", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), BROKEN)
def test_a_broken_file_is_refused_with_key_value_and_what_is_allowed(text: str, message: str, hint: str) -> None:
    with pytest.raises(AgentCompileError) as caught:
        from_toml(Outer, text, file="x.toml")
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_long_value_is_shown_cut() -> None:
    with pytest.raises(AgentCompileError) as caught:
        from_value(Outer, {"name": ["x" * 500], "language": "cpp"}, file="x.json")
    assert len(caught.value.message) < 160


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["name", "language", "params", "VEC", "domain", "x"]), inner, max_size=3),
        ),
        max_leaves=10,
    )
)
def test_any_value_is_decoded_or_refused_with_our_error(data: object) -> None:
    try:
        assert isinstance(from_value(Outer, data, file="x"), Outer)
    except AgentCompileError as error:
        refused = error.message
        assert refused.startswith("x: ") and error.hint  # noqa: PT017, PT018


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=r"none\.toml: cannot be read: No such file or directory"):
        read_text(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(AgentCompileError, match=r"^shown:2: byte 0xff is not UTF-8$"):
        read_text(bad, file="shown")


def test_the_nearest_word_is_offered_only_when_it_is_near() -> None:
    assert nearest("defalt", ["default", "domain"]) == "default"
    assert nearest("zzz", ["default", "domain"]) == ""
    assert hint_of("x", []) == "allowed: none"


def test_importing_the_decoder_does_not_import_pydantic() -> None:
    code = "import sys, agentcompile.catalog.decode, agentcompile.catalog; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
