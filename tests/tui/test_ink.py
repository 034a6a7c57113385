from __future__ import annotations

import pytest
from agentcompile.tui.ink import Ink, beside, histogram, line, shaped, spark
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

UNICODE, ASCII = Ink(), Ink(ascii=True)
HOSTILE = [
    "\x1b]52;c;aGVsbG8=\x07after",
    "\x1b[31mred\x1b[0m",
    "\x1b",
    "a\x9b31mb",
    "\u202eevil\u202c",
    "[/bold][red]x[/]",
    "x" * 10_000,
    "表" * 60,
    "Z\u0351\u0352\u0353\u0354\u0355a",
    "\u0301start",
    "tab\there\rand\nthere",
    "👩‍👩‍👧 family",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("ink", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [0, 1, 2, 7, 40])
def test_any_text_fits_its_place_exactly_and_is_safe(text: str, ink: Ink, width: int) -> None:
    fitted = ink.fit(text, width)
    assert cell_len(fitted) == width
    assert not set(fitted) & {chr(code) for code in (*range(32), 127, *range(128, 160), 0x202E, 0x200D)}
    assert not ink.ascii or fitted.isascii()


@given(st.text(max_size=200), st.integers(0, 60), st.booleans(), st.booleans())
def test_no_text_is_wider_than_its_place(text: str, width: int, right: bool, ascii: bool) -> None:
    assert cell_len(Ink(ascii=ascii).fit(text, width, right=right)) == width


def test_what_is_cut_ends_in_an_ellipsis() -> None:
    assert UNICODE.fit("abcdef", 4) == "abc…"
    assert ASCII.fit("abcdef", 4) == "abc~"
    assert UNICODE.fit("abcd", 4) == "abcd"
    assert UNICODE.fit("表表表", 4) == "表 …"


def test_numbers_stand_at_the_right() -> None:
    assert UNICODE.fit("1.5 µs", 8, right=True) == "  1.5 µs"
    assert ASCII.fit("1.5 µs", 8, right=True) == "  1.5 us"


def test_a_line_of_spans_is_cut_in_the_span_that_does_not_fit() -> None:
    one = line(("abc", "good"), ("defgh", "bad"), ("ijk", "dim"))
    (cut,) = shaped([one], 6, 1, UNICODE)
    assert cut.plain == "abcde…"
    assert cut.spans[-1] == ("de…", "bad")
    assert shaped([one], 11, 1, UNICODE)[0].plain == "abcdefghijk"
    assert shaped([one], 3, 1, UNICODE)[0].plain == "ab…"


def test_a_block_has_exactly_the_lines_that_were_asked_for() -> None:
    assert [one.plain for one in shaped([line("a")], 2, 3, UNICODE)] == ["a ", "  ", "  "]
    assert len(shaped([line("a")] * 9, 2, 3, UNICODE)) == 3


def test_blocks_stand_beside_each_other_with_a_rule() -> None:
    (both,) = beside([line("left")], [line("right")], 6, 6, 1, UNICODE)
    assert both.plain == "left   │ right "


@given(st.text(max_size=300), st.integers(1, 40))
def test_wrapped_text_loses_no_word_and_fits(text: str, width: int) -> None:
    lines = UNICODE.wrap(text, width)
    assert all(cell_len(one) <= max(width, 2) for one in lines)
    assert "".join("".join(lines).split()) == "".join("".join(UNICODE.wrap(text, 100_000)).split())


def test_a_spark_shows_the_course_and_a_histogram_the_spread() -> None:
    assert spark([1, 2, 3], 10, UNICODE) == "▁▅█"
    assert spark([], 10, UNICODE) == ""
    assert spark([5, 5], 10, ASCII).isascii()
    assert histogram([1, 1, 1, 9], 4, UNICODE) == "█  ▃"
