"""A prefill plan of a GPU at every length that a prompt may have: made at one, carried over to all; no device here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.build.nvrtc import Cubin, compile_cubin
from agentcompile.capture import Captured
from agentcompile.ir.program import NativeCall, TorchCall
from agentcompile.ir.trial import Kernel
from agentcompile.planning import chunks as plans
from agentcompile.planning.chunks import Chunk, Chunks, capacity
from agentcompile.runtime.pieces import served
from agentcompile.tuning.partitions import CHUNK
from tests.models import captures, tiny
from tests.models.lowered import clashes
from tests.models.planned import plan_of

CONTEXT = 256


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return captures.captured(tiny.write(request.param, tmp_path_factory.mktemp(request.param)), CONTEXT)


@pytest.fixture(scope="module")
def chunks(captured: Captured) -> Chunks:
    return plan_of(captured, CONTEXT)


def test_the_plan_is_made_at_one_length_with_kernels_for_what_is_not_a_product(chunks: Chunks) -> None:
    regions = {part.region: chunks.cut.region(part.region) for part in chunks.parts}
    assert dict(chunks.cut.regions[0].dims)["tokens"] == CHUNK == CONTEXT
    kernels = {regions[part.region].kind for part in chunks.parts if isinstance(part.choice, Kernel)}
    assert kernels & {"qknorm-rope-append", "rope-append"}
    assert {"add-rmsnorm", "silu-mul", "rmsnorm"} <= kernels
    for part in chunks.parts:
        # The head sees the last token alone, through a slice.
        if not isinstance(part.choice, Kernel) and regions[part.region].dense:
            assert regions[part.region].kind in ("linear", "attention")


@pytest.mark.parametrize("tokens", served(CONTEXT))
def test_every_length_covers_the_graph_with_the_same_choices(chunks: Chunks, tokens: int) -> None:
    made = chunks.at(tokens)
    same = chunks.at(CHUNK)
    assert len(made.program.calls) == len(same.program.calls)
    assert [call.kind for call in made.program.calls] == [call.kind for call in same.program.calls]
    for call, other in zip(made.program.calls, same.program.calls, strict=True):
        if isinstance(call, TorchCall):
            assert isinstance(other, TorchCall)
            assert [name for name, _ in call.bindings] == [name for name, _ in other.bindings]
    token = next(buffer for buffer in made.program.buffers if buffer.name == made.program.token)
    assert token.shape == (1, tokens)
    launched = [call for call in made.program.calls if isinstance(call, NativeCall)]
    assert {call.source for call in launched} == {job.source.digest for job in made.jobs}
    assert {job.template.id for job in made.jobs} == {job.template.id for job in same.jobs}


def test_a_kernel_of_another_length_is_another_source_that_compiles(chunks: Chunks) -> None:
    alone = {job.source.digest for job in chunks.at(1).jobs}  # of the last layer's end
    short, long = (
        {job.template.id: job for job in chunks.at(tokens).jobs if job.source.digest not in alone} for tokens in (8, 64)
    )
    assert short.keys() == long.keys() >= {"add-rmsnorm/block", "silu-mul/flat"}
    for id in short:
        assert short[id].candidate.params == long[id].candidate.params
        assert short[id].source.launches != long[id].source.launches
        made = compile_cubin(short[id].source.text, short[id].source.flags)
        assert isinstance(made, Cubin), made


def test_the_kernels_of_all_lengths_are_told_once_each(chunks: Chunks, captured: Captured) -> None:
    assert capacity(captured) == CONTEXT
    found = chunks.everywhere(capacity(captured))
    assert set(found) == {job.source.digest for tokens in (1, *served(CONTEXT)) for job in chunks.at(tokens).jobs}


def test_a_template_that_does_not_serve_a_length_leaves_it_to_pytorch(chunks: Chunks) -> None:
    digest, wide = next(row for row in chunks.templates.items() if row[1].id.startswith("add-rmsnorm/"))
    name, narrow = wide.id, replace(wide, requires=(*wide.requires, "groups >= 32"))
    limited = replace(chunks, templates={**chunks.templates, digest: narrow})
    assert name in {job.template.id for job in limited.at(32).jobs}
    assert name not in {job.template.id for job in limited.at(16).jobs}
    assert len(limited.at(16).program.calls) == len(limited.at(32).program.calls)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths that are as much shorter as these models are smaller."""
    monkeypatch.setattr(plans, "PADDED", 64)
    monkeypatch.setattr(plans, "PIECES", (64, 32))


@pytest.mark.usefixtures("small")
def test_a_long_chunk_runs_its_mlps_in_pieces_by_the_kernels_of_the_piece(
    chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silus(made: Chunk) -> list[str]:
        kernels = {job.source.digest: job.template.id for job in made.jobs}
        called = [call.source for call in made.program.calls if isinstance(call, NativeCall)]
        return [digest for digest in called if kernels[digest].startswith("silu-mul/")]

    *once, alone = silus(chunks.at(64))  # the last layer's is for one token
    assert silus(chunks.at(1))[-1] == alone
    monkeypatch.setattr(plans, "ROOM", 10.0)
    made = chunks.at(256)
    assert silus(made) == [*(digest for digest in once for _ in range(4)), alone]
    assert set(silus(made)) & set(silus(chunks.at(32))) == {alone}
    monkeypatch.setattr(plans, "ROOM", 0.0)
    least = chunks.at(256)
    assert len(silus(least)) == 8 * len(once) + 1  # memory is short, so pieces are shorter
    assert least.program.arena_bytes <= made.program.arena_bytes <= 4 * chunks.at(64).program.arena_bytes
    for one in (made, least):
        launched = {call.source for call in one.program.calls if isinstance(call, NativeCall)}
        assert launched == {job.source.digest for job in one.jobs}
        assert not clashes(one.program)


def test_a_kernel_that_may_writes_its_result_in_its_input(chunks: Chunks) -> None:
    program = chunks.at(64).program
    named = {buffer.name: buffer for buffer in program.buffers}
    launches = [call for call in program.calls if isinstance(call, NativeCall) and call.launch.in_place]
    assert launches
    for call in launches:
        gate, _, made = call.pointers
        assert named[made].whole == gate
        assert named[made].offset == named[gate].offset
    assert not clashes(program)


@pytest.mark.usefixtures("small")
def test_a_chunk_is_as_long_as_its_share_of_memory_allows(chunks: Chunks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "ROOM", 10.0)
    assert [chunks.longest(most) for most in (1, 40, 64, 128, 256)] == [1, 40, 64, 128, 256]
    monkeypatch.setattr(plans, "ROOM", 0.0)
    assert [chunks.longest(most) for most in (1, 40, 64, 128, 256)] == [1, 40, 64, 64, 64]
    resident = {b.tensor: b.nbytes for b in chunks.at(64).program.buffers if b.role in ("weight", "constant", "state")}
    between = (chunks.at(128).program.arena_bytes + chunks.at(256).program.arena_bytes) / 2
    monkeypatch.setattr(plans, "ROOM", between / sum(resident.values()))
    assert chunks.longest(256) == 128


def test_lengths_end_with_the_capacity() -> None:
    assert served(1) == (1,)
    assert served(100) == (8, 16, 32, 64, 100)
    assert served(2048) == (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
