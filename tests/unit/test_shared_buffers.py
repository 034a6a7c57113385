"""Outputs that lie in an input: only where nobody reads it any more, and then in its very bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.ir.program import Buffer, NativeCall, TorchCall
from agentcompile.ir.template import Launch
from agentcompile.runtime.lower import place, shared

LAUNCH = Launch(entry="apply", arguments=("g", "u", "y"), in_place=(("y", "g"),))


def buffer(name: str, *, rows: int = 4, role: str = "activation", dtype: str = "bf16") -> Buffer:
    return Buffer(name=name, role=role, dtype=dtype, shape=(1, rows, 64))  # type: ignore[arg-type]


def apply(g: str, u: str, y: str) -> NativeCall:
    return NativeCall(region="silu-mul", source="s", launch=LAUNCH, pointers=(g, u, y))


def reads(*names: str) -> TorchCall:
    return TorchCall(region="r", bindings=tuple((name, name) for name in names))


BUFFERS = {name: buffer(name) for name in ("gate", "up", "made", "out")}
CALLS = [reads("gate"), reads("up"), apply("gate", "up", "made"), reads("made", "out")]


def test_an_output_lies_in_the_input_that_it_is_the_last_to_need() -> None:
    found = shared(BUFFERS, CALLS, keep=set())
    assert {name: one.whole for name, one in found.items() if one.whole} == {"made": "gate"}
    placed, size = place(list(found.values()), CALLS, set(), largest_first=True)
    at = {one.name: one.offset for one in placed}
    assert at["made"] == at["gate"] != at["up"]
    _, apart = place(list(BUFFERS.values()), CALLS, set(), largest_first=True)
    assert size == 2 * 512 < apart == 3 * 512


@pytest.mark.parametrize(
    ("calls", "keep", "changed"),
    [
        ([*CALLS, reads("gate")], set(), {}),  # somebody reads it later
        ([*CALLS[:2], reads("made"), *CALLS[2:]], set(), {}),  # there is something in the output before
        ([reads("gate"), apply("gate", "gate", "made"), reads("made")], set(), {}),  # it is read as two inputs
        (CALLS, {"gate"}, {}),
        (CALLS, {"made"}, {}),
        (CALLS, set(), {"gate": buffer("gate", role="state")}),
        (CALLS, set(), {"gate": buffer("gate", rows=8)}),
        (CALLS, set(), {"gate": buffer("gate", dtype="fp16")}),
        (CALLS, set(), {"gate": replace(buffer("gate"), whole="another")}),
    ],
)
def test_an_output_lies_by_itself_wherever_that_could_be_seen(
    calls: list[NativeCall | TorchCall], keep: set[str], changed: dict[str, Buffer]
) -> None:
    buffers = {**BUFFERS, **changed}
    assert shared(buffers, calls, keep) == buffers


def test_a_step_places_by_use_and_a_chunk_what_is_largest_first() -> None:
    large = replace(buffer("parts", rows=64), role="workspace")
    counter = replace(buffer("counter", rows=1), role="workspace", zeroed=True)
    named = {"q": buffer("q"), "parts": large, "counter": counter, "y": buffer("y"), "z": buffer("z")}
    calls = [reads("q"), reads("q", "parts", "counter", "y"), reads("y", "z"), reads("z")]
    sizes = []
    for largest_first in (False, True):
        placed, size = place(list(named.values()), calls, set(), largest_first=largest_first)
        at = {one.name: range(one.offset, one.offset + one.nbytes) for one in placed}
        assert not any(set(at["counter"]) & set(at[other]) for other in ("q", "parts", "y", "z"))
        assert bool(set(at["z"]) & set(at["parts"])) == largest_first
        sizes.append(size)
    assert sizes[1] <= sizes[0]
