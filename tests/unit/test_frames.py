"""Frames: whatever the pieces, whole messages come out; whatever the garbage, an error does."""

from __future__ import annotations

import math
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.trial import Check, Verdict
from agentcompile.worker.frames import HEADER, LIMIT_BYTES, MAGIC, FrameError, Splitter, pack, write_all
from agentcompile.worker.protocol import Alive, Canary, WorkerAnswer, WorkerRequest
from tests.unit import outcomes

messages = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(messages, st.binary(max_size=50)), max_size=4), st.integers(1, 40))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent: list[tuple[object, bytes]], size: int) -> None:
    stream = b"".join(pack(message, payload) for message, payload in sent)  # type: ignore[arg-type]
    splitter, got = Splitter(), []
    for start in range(0, len(stream), size):
        got += splitter.feed(stream[start : start + size])
    assert got == sent
    assert not splitter._buffer


@given(st.binary(min_size=1, max_size=200).filter(lambda data: not MAGIC.startswith(data[:4])))
def test_garbage_is_refused_at_its_first_bytes(data: bytes) -> None:
    with pytest.raises(FrameError):
        Splitter().feed(data)


def test_a_changed_byte_is_noticed() -> None:
    frame = bytearray(pack({"a": 1}, b"payload"))
    frame[-1] ^= 1
    with pytest.raises(FrameError, match="checksum"):
        Splitter().feed(bytes(frame))


def test_a_length_beyond_the_limit_is_refused_before_it_is_awaited() -> None:
    with pytest.raises(FrameError, match="starts with"):
        Splitter().feed(HEADER.pack(MAGIC, LIMIT_BYTES + 1, 0, 0))


def test_a_frame_above_the_limit_is_never_sent() -> None:
    with pytest.raises(ValueError, match="limit"):
        pack(None, bytes(LIMIT_BYTES))


def test_a_frame_that_holds_no_json_is_refused() -> None:
    import zlib

    body = b"{nope"
    with pytest.raises(FrameError, match="no JSON"):
        Splitter().feed(HEADER.pack(MAGIC, len(body), 0, zlib.crc32(body)) + body)


def test_a_frame_longer_than_a_pipe_is_written_whole() -> None:
    reader, writer = os.pipe()
    frame = pack("x" * 1_000_000)
    thread = threading.Thread(target=write_all, args=(writer, frame))
    thread.start()
    splitter, got = Splitter(), []
    while not got:
        got = splitter.feed(os.read(reader, 1 << 16))
    thread.join()
    os.close(reader)
    os.close(writer)
    assert got == [("x" * 1_000_000, b"")]


def test_requests_and_replies_survive_the_trip_and_strangers_do_not() -> None:
    ask, answer = WorkerRequest(token="t", request=Canary()), WorkerAnswer(token="t", reply=Alive())
    assert decode(WorkerRequest, encode(ask)) == ask
    assert decode(WorkerAnswer, encode(answer)) == answer
    with pytest.raises(CodecError, match="unknown"):
        decode(WorkerAnswer, {"token": "t", "reply": {"kind": "pwned"}})


@pytest.mark.parametrize("name", ["incorrect", "disturbed"])
def test_a_verdict_comes_out_as_it_went_in_infinite_errors_and_all(name: str) -> None:
    verdict = outcomes.FAILURES[name]
    ((message, _),) = Splitter().feed(pack(encode(verdict)))
    assert decode(Verdict, message) == verdict


def test_numbers_that_json_lacks_have_names_and_no_other_text_is_a_number() -> None:
    check = Check(name="a", ok=False, measured=-math.inf, allowed=1.0)
    assert encode(check) == {"name": "a", "ok": False, "measured": "-Infinity", "allowed": 1.0, "detail": ""}
    unknown = decode(Check, {**encode(check), "measured": "NaN"})  # type: ignore[dict-item]
    assert math.isnan(unknown.measured)
    with pytest.raises(CodecError, match="measured"):
        decode(Check, {**encode(check), "measured": "inf"})  # type: ignore[dict-item]
