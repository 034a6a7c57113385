"""Long chunks in pieces: the widest activations exist for some tokens at a time, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentcompile.capture import Captured
from agentcompile.capture.chunked import at_tokens
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import concrete
from agentcompile.ir.program import Buffer, Program, TorchCall
from agentcompile.ir.region import Regime, Region
from agentcompile.regions.partition import partition
from agentcompile.runtime.device_step import DeviceStep
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.pieces import in_pieces
from agentcompile.tuning.partitions import open_ended
from tests.models import captures, tiny
from tests.models.lowered import clashes, in_pytorch

CONTEXT, TOKENS, ROWS = 48, 32, 8
OPERATORS = ("linear", "silu", "mul")


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return captures.captured(tiny.write(request.param, tmp_path_factory.mktemp(request.param)), CONTEXT)


def at(captured: Captured, tokens: int) -> Program:
    return in_pytorch(at_tokens(captured.prefill, tokens), CONTEXT, tokens=tokens, singly=True)


def regions(captured: Captured, tokens: int) -> dict[str, Region]:
    graph = at_tokens(captured.prefill, tokens)
    cut = partition(graph, Regime(phase="prefill", context=(1, CONTEXT)), tokens=tokens)
    return {region.id: region for region in cut.regions}


@pytest.fixture(scope="module")
def pair(captured: Captured) -> tuple[Program, Program]:
    """A chunk as it is, and in pieces."""
    whole = at(captured, TOKENS)
    return whole, in_pieces(whole, at(captured, ROWS), regions(captured, TOKENS))


def logits(program: Program, captured: Captured) -> torch.Tensor:
    memory = Memory([program], Checkpoint.open(captured.checkpoint).tensor, captured.constants)
    tokens, positions = torch.tensor([(5 * i + 3) % 90 for i in range(TOKENS)]), torch.arange(TOKENS)
    step = DeviceStep(program, memory, {}, overlap=False, fed=(tokens, positions), span=(0, TOKENS - 1))
    step.enqueue()
    first = step.logits.clone()
    step.enqueue()
    assert torch.equal(step.logits, first), "a chunk leaves something behind that the next one reads"
    return first


def test_a_chunk_in_pieces_gives_the_same_logits(captured: Captured, pair: tuple[Program, Program]) -> None:
    whole, pieces = pair
    expected, found = logits(whole, captured).double(), logits(pieces, captured).double()
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_the_calls_between_an_mlps_products_run_once_a_piece_and_all_others_once(
    captured: Captured, pair: tuple[Program, Program]
) -> None:
    whole, pieces = pair
    known = regions(captured, TOKENS) | regions(captured, ROWS)
    layers = captured.info.layers
    ops = [known[call.region].body.nodes[0].op for call in whole.calls]
    made = [known[call.region].body.nodes[0].op for call in pieces.calls]
    more = (TOKENS // ROWS - 1) * layers
    assert {op: made.count(op) - ops.count(op) for op in set(ops) if made.count(op) != ops.count(op)} == {
        "linear": 3 * more,
        "silu": more,
        "mul": more,
    }


def test_what_an_mlp_makes_takes_the_memory_of_a_piece(captured: Captured, pair: tuple[Program, Program]) -> None:
    whole, pieces = pair
    long = {buffer.name: buffer for buffer in whole.buffers}
    inner = [buffer for buffer in pieces.buffers if _rows(buffer) == ROWS and not buffer.whole]
    assert len(inner) == 4 * captured.info.layers  # gate, its silu, up, and their product
    assert {concrete(long[buffer.name].shape) for buffer in inner} == {(1, TOKENS, concrete(inner[0].shape)[-1])}
    assert pieces.arena_bytes < whole.arena_bytes


def _rows(buffer: Buffer) -> int:
    """Of an activation with a row a token; 0 for another."""
    shape = concrete(buffer.shape)
    return shape[1] if buffer.role == "activation" and len(shape) == 3 else 0


def test_pieces_lie_in_what_they_are_parts_of_one_behind_the_other(pair: tuple[Program, Program]) -> None:
    _, pieces = pair
    named = {buffer.name: buffer for buffer in pieces.buffers}
    parts = [buffer for buffer in pieces.buffers if buffer.whole]
    assert parts
    for owner in {part.whole for part in parts}:
        mine = sorted((part for part in parts if part.whole == owner), key=lambda part: part.start)
        assert len(mine) == TOKENS // ROWS
        ends = named[owner].offset
        for part in mine:
            assert part.offset == ends
            ends += part.nbytes
        assert ends == named[owner].offset + named[owner].nbytes


def test_live_buffers_never_share_bytes(pair: tuple[Program, Program]) -> None:
    for program in pair:
        assert not clashes(program)


def test_a_chunk_that_cannot_be_cut_stays_as_it_is(captured: Captured) -> None:
    assert open_ended(captured)
    whole, known = at(captured, TOKENS), regions(captured, TOKENS)
    assert in_pieces(whole, whole, known) is whole
    assert in_pieces(whole, at(captured, 12), known) is whole  # 32 is no multiple
    assert in_pieces(whole, at(captured, ROWS), {}) is whole  # nothing is known of its regions
    other = at(captured, ROWS)
    shorter = replace(other, calls=other.calls[:-1])
    assert in_pieces(whole, shorter, known) is whole
    swapped = replace(other, calls=(*other.calls[:-1], TorchCall(region="another", bindings=())))
    assert len(in_pieces(whole, swapped, known).calls) > len(whole.calls)  # the rest of it is the same plan


def test_attention_and_what_reads_positions_are_never_cut(captured: Captured, pair: tuple[Program, Program]) -> None:
    _, pieces = pair
    short = regions(captured, ROWS)
    for call in pieces.calls:
        if call.region in short and call.region not in regions(captured, TOKENS):
            assert {node.op for node in short[call.region].body.nodes} <= set(OPERATORS)
