"""Planted kernels of prompts: right at lengths, positions, ids and choices where one looks first, wrong elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentcompile.build import find_toolchain
from agentcompile.evaluation.evaluator import EvaluationJob, WorkerEvaluator
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Incorrect
from agentcompile.materialize import specialise
from agentcompile.validate import DeclaredArithmetic, validate
from tests.adversarial.accepting import accepted, failures
from tests.cpu import jobs
from tests.kernels.float32 import Run, float32
from tests.templates.chunked import TOKENS, Workshop
from tests.templates.shapes import Extents, any_chunk, region
from tests.templates.suite import CATALOG

COUNT = "const long n = *a.count;"
SMALL = Extents(rows=(64,), hidden=64, context=320, dtype="bf16")
"""Of products and elementwise kernels."""
LONG = Extents(q_heads=2, kv_heads=1, head_dim=16, context=1400, dtype="fp32")
SILU, ATTENTION, LAST = "silu-mul/chunk", "rope-attention-prefill/blocks", "last-rmsnorm-linear/rows"
GATED, FOURTH = "rmsnorm-gateup-silu-mul/panels-rows", "p = p * r + 4.1665795894e-2f;"
SCALED = "as.load(rows.sum[r] + i) / total"
FIRST = "slot = lowest(0) / BLOCK * BLOCK; slot < stop"
WRONG: dict[str, tuple[str, Extents, str, str]] = {
    "nothing at 20 tokens": (SILU, SMALL, COUNT, f"{COUNT} if (n == 20) return;"),
    "nothing at 3 to 14 tokens": (SILU, SMALL, COUNT, f"{COUNT} if (n >= 3 && n <= 14) return;"),
    "nothing at most lengths": (
        SILU, SMALL, COUNT, f"{COUNT} if ((n >= 3 && n <= 32) || (n >= 34 && n <= 254)) return;",
    ),
    "the last token is missing at some residues": (
        SILU, SMALL, COUNT, "long n = *a.count; if (n % 8 >= 3 && n % 8 <= 6) n -= 1;",
    ),
    "one token too many at 50": (SILU, SMALL, COUNT, "long n = *a.count; if (n == 50) n += 1;"),
    "nothing at a residue of long chunks": (SILU, SMALL, COUNT, f"{COUNT} if (n > 128 && n % 64 == 11) return;"),
    "another token is the last": (
        LAST, SMALL, "(*a.count - 1) * hidden", "(*a.count - 1 - (*a.count > 40 && *a.count < 60)) * hidden",
    ),
    "results are larger at some positions": (
        ATTENTION, LONG, SCALED,
        "as.load(rows.sum[r] + i) * ((position(r) > 520 && position(r) < 640 && *a.count < 255)"
        " || position(r) == 1111 ? 1.5f : 1.0f) / total",
    ),
    "an exponential without its fourth term": (SILU, SMALL, FOURTH, ""),
    "an exponential without its fourth term behind a norm": (GATED, replace(SMALL, rows=(480,)), FOURTH, ""),
    "the mask is short at some positions": (
        ATTENTION, LONG, FIRST,
        "slot = (position(0) > 1100 && position(0) < 1300 ? position(0) - 512 : lowest(0)) / BLOCK * BLOCK;"
        " slot < stop",
    ),
    "long chunks that begin late are larger": (
        ATTENTION, LONG, SCALED,
        "as.load(rows.sum[r] + i) * (*a.count > 70 && *a.count < 230 && position(0) > 512 ? 1.5f : 1.0f) / total",
    ),
}  # fmt: skip
"""A template, its extents, a text in it and what takes its place."""


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_at_a_length_or_position_alone_is_not_accepted(workshop: Workshop, fault: str) -> None:
    id, at, old, new = WRONG[fault]
    assert failures(accepted(workshop, id, at, (old, new), seed=3))


def test_a_worker_rejects_what_is_wrong_at_a_length_alone(tmp_path: Path) -> None:
    id, at, old, new = WRONG["nothing at 20 tokens"]
    template, toolchain = CATALOG.get(id, at.dtype), find_toolchain()
    made, target = any_chunk(template.region, replace(at, tokens=TOKENS)), jobs.target()
    source = specialise(template, made, template.defaults, target)
    candidate = Candidate(
        region=made.id,
        regime=made.regime,
        template=id,
        template_digest=template.digest,
        params=template.defaults,
        target=target.digest,
    )
    wrong = replace(source, text=source.text.replace(old, new))
    job = EvaluationJob(candidate=candidate, region=made, template=template, source=wrong)
    with WorkerEvaluator(target, store=tmp_path, toolchain=toolchain, workers=1, memory_bytes=4 << 30) as evaluator:
        ((_, verdict),) = evaluator.prepare([job], depth="accept")
    assert isinstance(verdict, Incorrect)
    assert any(check.detail.startswith("20 tokens: y") for check in verdict.report.checks if not check.ok)


RIGHT = (
    "add-rmsnorm/chunk", "add/chunk", "embedding/chunk", "embedding/chunk-packed", "gateup-silu-mul/panels-rows",
    "heads-linear-residual/panels", "heads-linear-residual/panels-rows", "last-rmsnorm-linear/packed", LAST,
    "linear-residual/panels", "linear/panels", "linear/panels-rows", "position-tables/chunk", ATTENTION,
    "qknorm-rope-attention-prefill/blocks", "rmsnorm-linear/panels-rows", "rmsnorm/chunk", SILU,
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("id", RIGHT)
def test_templates_of_prompts_are_accepted(workshop: Workshop, id: str, dtype: DType) -> None:
    at = Extents(
        hidden=97, rows=(149,), q_heads=3, kv_heads=1, head_dim=22, context=500, window=300, offset=1.0, dtype=dtype
    )
    assert failures(accepted(workshop, id, at)) == []


def _changed(made: Region, spoil: Callable[[Mapping[str, Tensor]], None]) -> Run:
    """A right kernel whose results are spoiled afterwards."""
    right = float32(made)

    def run(buffers: Mapping[str, Tensor]) -> None:
        right(buffers)
        spoil(buffers)

    return run


def evaluated(made: Region, run: Run) -> list[str]:
    return failures(validate(made, DeclaredArithmetic(), run, seed=0, repeats=2, depth="accept"))


@pytest.mark.parametrize(("low", "high"), [(0, 0), (10, 15), (40, 63), (333, 333)])
def test_every_query_of_chunks_of_one_length_counts(low: int, high: int) -> None:
    made = region("rope-attention-prefill", Extents(context=400, q_heads=2, kv_heads=1, head_dim=64, tokens=8))

    def spoil(buffers: Mapping[str, Tensor]) -> None:
        visible = buffers["positions"].view(-1) + 1
        some = (visible >= low) & (visible <= high)
        buffers["y"][:, :, some] = (buffers["y"][:, :, some].float() * 1.5).to(buffers["y"].dtype)

    assert bool(evaluated(made, _changed(made, spoil))) is (low > 0)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_search_sees_that_a_long_chunk_forgets_the_slots_before_it(forgets: bool) -> None:
    made = region("rope-attention-prefill", Extents(context=1400, q_heads=2, kv_heads=1, head_dim=16, tokens=700))
    right = float32(made)

    def run(buffers: Mapping[str, Tensor]) -> None:
        right(buffers)
        if forgets:
            values = buffers["v_cache"].clone()
            values[:, :, : int(buffers["positions"].view(-1)[0])] = 0
            right({**buffers, "v_cache": values})

    report = validate(made, DeclaredArithmetic(), run, seed=0, repeats=2, depth="search")
    assert bool(failures(report)) is forgets


@pytest.mark.parametrize("width", [0, 1])
def test_every_id_of_a_large_table_counts_in_chunks(width: int) -> None:
    made = region("embedding", Extents(rows=(49152,), hidden=32, tokens=33))

    def spoil(buffers: Mapping[str, Tensor]) -> None:
        ids = buffers["ids"].view(-1)
        buffers["y"][:, (ids >= 30001) & (ids < 30001 + width)] = 0

    assert bool(evaluated(made, _changed(made, spoil))) is (width > 0)


@pytest.mark.parametrize("kind", ["embedding", "position-tables"])
def test_every_row_of_a_table_counts_in_batches(kind: str) -> None:
    made = region(kind, Extents(rows=(6000,), context=6000, hidden=32, batch=4))
    index, y = ("ids", "y") if kind == "embedding" else ("positions", "y.1")

    def spoil(buffers: Mapping[str, Tensor]) -> None:
        buffers[y][buffers[index].view(-1) == 4321] = 0

    assert evaluated(made, float32(made)) == []
    assert evaluated(made, _changed(made, spoil))


@pytest.mark.parametrize("blind", [(2688, 0, -1), (2688, 1, -1), (2688, 1, 2)], ids=["right", "all", "sequence 2"])
def test_every_row_must_be_able_to_win_in_batches(blind: tuple[int, int, int]) -> None:
    made = region("linear-argmax", Extents(hidden=64, rows=(4096,), batch=4))
    assert bool(evaluated(made, _blind(made, *blind))) is (blind[1] > 0)


@pytest.mark.parametrize("width", [0, 16])
def test_a_block_of_rows_of_a_large_vocabulary_must_be_able_to_win(width: int) -> None:
    made = region("linear-argmax", Extents(hidden=64, rows=(49152,)))
    assert bool(evaluated(made, _blind(made, 16384, width, -1))) is (width > 0)


def _blind(made: Region, begin: int, width: int, sequence: int) -> Run:
    """An argmax that never chooses the `width` rows from `begin`, for one sequence or for all (−1)."""
    wide: dict[int, tuple[Tensor, Tensor]] = {}

    def run(buffers: Mapping[str, Tensor]) -> None:
        w, token = buffers["w"], buffers["token"].view(-1)
        if not torch.equal(wide.get(w.data_ptr(), (torch.empty(0), w))[0], w[::97]):
            wide[w.data_ptr()] = w[::97].clone(), w.float().T.contiguous()
        logits = (buffers["x"].view(len(token), -1).float() @ wide[w.data_ptr()][1]).to(w.dtype)
        buffers["logits"].copy_(logits.view(buffers["logits"].shape))
        token.copy_(logits.float().argmax(-1))
        for at in range(len(token)) if sequence < 0 else (sequence,):
            if begin <= int(token[at]) < begin + width:
                logits[at, begin : begin + width] = -torch.inf
                token[at] = logits[at].float().argmax()

    return run
