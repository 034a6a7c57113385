from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import WHOLE, trial

from agentcompile import events
from agentcompile.events import (
    DURABLE,
    PROGRESS,
    Event,
    RegionFound,
    StageFinished,
    TrialFinished,
    Warned,
    clean,
)
from agentcompile.ir.cleaning import TEXT_LIMIT
from agentcompile.ir.codec import CodecError
from agentcompile.ir.trial import BuildFailed

HOSTILE = "a\x1b]52;c;aGk=\x07b\x1b[31mred\x1b[0m\x00\x9b\u202edesrever\u2066\u200b\ufeff"


def test_an_escape_sequence_goes_whole() -> None:
    assert clean("a\x1b[31mred\x1b[0m b") == "ared b"


def test_a_clipboard_sequence_goes_whole() -> None:
    assert clean("x\x1b]52;c;aGVsbG8=\x07y\x1b]8;;http://a\x1b\\z") == "xyz"


def test_an_unfinished_sequence_loses_its_escape() -> None:
    assert "\x1b" not in clean("x\x1b]52;c;aGVsbG8=")


def test_bidirectional_and_invisible_characters_go() -> None:
    assert clean("a\u202eb\u2066c\u200fd\u200be\ufeff") == "abcde"


def test_line_breaks_stay_only_where_lines_are_wanted() -> None:
    assert clean("a\r\nb\tc") == "a b    c"
    assert clean("a\r\nb", lines=True) == "a\nb"


def test_a_long_text_ends_in_an_ellipsis() -> None:
    assert clean("x" * 10, 4) == "xxx…"
    assert len(clean("y" * (TEXT_LIMIT + 9))) == TEXT_LIMIT


@given(st.text(), st.booleans())
def test_clean_text_is_safe_and_stays_as_it_is(text: str, lines: bool) -> None:
    safe = clean(text, lines=lines)
    assert clean(safe, lines=lines) == safe
    assert not any(ord(c) < 32 and not (lines and c == "\n") for c in safe)
    assert not set(safe) & set(
        "\x1b\x7f\x9b\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u2028\u2029"
    )
    safe.encode()


def test_an_event_is_clean_when_it_is_made() -> None:
    assert Warned(text=HOSTILE).text == "abreddesrever"


def test_an_event_is_clean_when_it_is_decoded() -> None:
    data = events.encode(Warned(text="x"))
    assert isinstance(data, dict)
    data["text"] = HOSTILE
    assert events.decode(json.loads(json.dumps(data))) == Warned(text="abreddesrever")


def test_texts_deep_inside_an_event_are_clean_and_logs_keep_their_lines() -> None:
    event = TrialFinished(trial=trial(verdict=BuildFailed(log="one\n\x1b[1mtwo")))
    assert event.trial.verdict == BuildFailed(log="one\ntwo")


def test_a_stage_detail_keeps_its_lines_and_a_name_does_not() -> None:
    assert StageFinished(stage="capture", detail="a\nb").detail == "a\nb"
    found = next(event for event in WHOLE if isinstance(event, RegionFound))
    assert "\n" not in events.clean(found.name + "\n")


@pytest.mark.parametrize("event", WHOLE, ids=lambda event: event.kind)
def test_an_event_survives_its_json(event: Event) -> None:
    assert events.decode(json.loads(json.dumps(events.encode(event)))) == event


def test_every_kind_is_its_own() -> None:
    kinds = [typing.get_args(typing.get_type_hints(cls)["kind"]) for cls in typing.get_args(Event)]
    assert len(set(kinds)) == len(kinds)


def test_nothing_is_both_durable_and_droppable() -> None:
    assert not set(DURABLE) & set(PROGRESS)


@pytest.mark.parametrize("data", [{"kind": "no-such"}, {"kind": "warned"}, {"kind": "warned", "text": 3}, [], None])
def test_what_is_no_event_is_refused_with_its_path(data: object) -> None:
    with pytest.raises(CodecError, match=r"^event"):
        events.decode(data)  # type: ignore[arg-type]
