"""Chunks of captured prefills: the same bits at a given number of tokens, and regions that the suite can evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentcompile.capture import Captured
from agentcompile.capture.chunked import at_tokens
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.trial import NumericReport
from agentcompile.ops.reference import DTYPES, Interpreter
from agentcompile.regions.partition import Partition, partition
from agentcompile.validate import DeclaredArithmetic, insensitive, validate
from tests.kernels.float32 import eager, float32
from tests.models import captures, tiny
from tests.templates.shapes import CHUNK, CHUNK_KINDS, Extents, region

CONTEXT = 48
SAMPLE = Path(__file__).parents[2] / "bench" / "models" / "sample"
Run = Callable[[Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Case:
    captured: Captured
    heads: str
    """What the region of its heads is called."""


@pytest.fixture(scope="module", params=["sample", "llama", "llama-multi-query"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param == "sample":
        return Case(captures.captured(SAMPLE, CONTEXT), "qknorm-rope-append")
    path = tiny.write(request.param, tmp_path_factory.mktemp(request.param), dtype=torch.bfloat16)
    return Case(captures.captured(path, CONTEXT), "rope-append")


def given(captured: Captured, tokens: int, first: int) -> dict[str, Tensor]:
    """Inputs of a chunk, with caches that hold something everywhere."""
    checkpoint, table = Checkpoint.open(captured.checkpoint), captured.prefill.table()
    rng, found = torch.Generator().manual_seed(5), dict[str, Tensor]()
    for id in captured.prefill.inputs:
        value = table[id]
        if value.role == "token":
            found[id] = torch.randint(0, captured.info.vocab, (1, tokens), generator=rng)
        elif value.role == "position":
            found[id] = torch.arange(first, first + tokens)
        elif value.role == "weight":
            found[id] = checkpoint.tensor(value.name)
        elif value.role == "constant":
            found[id] = captured.constants[value.name]
        else:
            shape = [int(dim) for dim in value.shape]
            found[id] = torch.randn(shape, generator=rng).to(DTYPES[value.dtype])
    return found


@pytest.mark.parametrize(("tokens", "first"), [(1, 0), (5, 11), (32, 0), (48, 0)])
def test_a_chunk_gives_the_bits_of_the_graph_of_any_length(case: Case, tokens: int, first: int) -> None:
    runs = []
    for graph in (case.captured.prefill, at_tokens(case.captured.prefill, tokens)):
        inputs = {name: tensor.clone() for name, tensor in given(case.captured, tokens, first).items()}
        runs.append((Interpreter(graph)(inputs), inputs))
    (whole, before), (bound, after) = runs
    assert whole.keys() == bound.keys()
    assert all(torch.equal(whole[name], bound[name]) for name in whole)
    assert all(torch.equal(before[name], after[name]) for name in before)


def cut(case: Case, tokens: int) -> Partition:
    regime = Regime(phase="prefill", context=(1, CONTEXT))
    return partition(at_tokens(case.captured.prefill, tokens), regime, tokens=tokens)


@pytest.mark.parametrize("tokens", [1, 16])
def test_the_kinds_of_a_chunk_are_found_in_every_layer(case: Case, tokens: int) -> None:
    found, layers = cut(case, tokens), case.captured.info.layers
    assert not found.boundaries
    named = {region.kind: region for region in found.regions if region.kind in CHUNK_KINDS}
    heads, sums = named[case.heads], named["add-rmsnorm"]
    assert len(heads.sites) == layers
    info = case.captured.info
    assert dict(heads.dims) == {
        "tokens": tokens,
        "q_heads": info.heads,
        "kv_heads": info.kv_heads,
        "head_dim": info.head_dim,
        "context": CONTEXT,
    }
    for i, site in enumerate(heads.sites):
        bound, table = dict(site.bindings), case.captured.prefill.table()
        assert [table[bound[cache]].name for cache in ("k_cache", "v_cache")] == [f"k.{i}", f"v.{i}"]
        assert site.path.endswith(f"layers.{i}.self_attn") or f"layers.{i}.self_attn." in site.path
    assert len(sums.sites) == 2 * layers - 1  # the last norm sees the last token alone
    assert dict(sums.dims) == {"tokens": tokens, "hidden": info.hidden, "groups": tokens}
    assert {refusal.reason for refusal in found.refusals if refusal.kind in CHUNK_KINDS} <= {
        "s is read inside through slice, not as a dense buffer"
    }


def test_queries_keys_and_values_cut_from_one_product_are_refused(tmp_path: Path) -> None:
    captured = captures.captured(tiny.write("phi3", tmp_path, dtype=torch.bfloat16), CONTEXT)
    found = cut(Case(captured, "rope-append"), 16)
    assert "rope-append" not in {region.kind for region in found.regions}
    refused = Counter(refusal.kind for refusal in found.refusals if "slice" in refusal.reason)
    assert refused["rope-append"] == captured.info.layers


def test_the_models_own_arithmetic_is_kept_in_the_regions_of_a_chunk(case: Case) -> None:
    for made in cut(case, 7).regions:
        if made.kind in CHUNK_KINDS:
            report = validate(
                made, DeclaredArithmetic(accumulation="library"), eager(made), seed=0, repeats=2, depth="search"
            )
            assert report.ok, (made.kind, failures(report))


def failures(report: NumericReport) -> list[str]:
    return [f"{check.name}: {check.detail} ({check.measured:g})" for check in report.checks if not check.ok]


DTYPES_OF: tuple[DType, ...] = ("bf16", "fp32", "fp16")


@pytest.mark.parametrize("dtype", DTYPES_OF)
@pytest.mark.parametrize("kind", CHUNK_KINDS)
def test_right_arithmetic_is_kept_for_every_kind(kind: str, dtype: DType) -> None:
    for extents in ({"tokens": 5, "kv_heads": 2}, {"tokens": 1, "kv_heads": 1, "offset": 1.0}):
        made = region(kind, Extents(dtype=dtype, context=40, hidden=96, **extents))  # type: ignore[arg-type]
        held = tuple((name, dtype) for name in ("qn", "kn", "kr", "s") if name in made.body.table())
        kernels = [
            (float32(made), DeclaredArithmetic()),
            (float32(made, held), DeclaredArithmetic(rounds=held)),
            (eager(made), DeclaredArithmetic(accumulation="library")),
        ]
        for run, facts in kernels:
            for seed, depth in ((0, "accept"), (1, "search"), (2, "search")):
                report = validate(made, facts, run, seed=seed, repeats=2, depth=depth)  # type: ignore[arg-type]
                assert report.ok, failures(report)


@pytest.mark.parametrize("seed", [2, 3])
def test_right_attention_is_kept_where_rounding_decides_which_slot_wins(seed: int) -> None:
    """Among hundreds of queries with large scores some have two slots that are no rounding of a key apart."""
    made = region("rope-attention-prefill", Extents(context=256, q_heads=4, kv_heads=2, head_dim=16, tokens=33))
    report = validate(made, DeclaredArithmetic(), float32(made), seed=seed, repeats=2, depth="accept")
    assert report.ok, failures(report)


@pytest.mark.parametrize("applied", [True, False])
def test_results_that_may_lie_token_by_token_must_be_written_so(applied: bool) -> None:
    made = region("rope-attention-prefill", Extents(context=40, q_heads=4, kv_heads=2, head_dim=16, tokens=5))
    right = float32(made)

    def run(buffers: Mapping[str, Tensor]) -> None:
        """Writes token by token where the workspace says so, or always head by head."""
        own = torch.empty(1, 4, 5, 16, dtype=buffers["y"].dtype)
        right({**buffers, "y": own})
        turned = applied and bool(buffers["order"])
        buffers["y"].view(-1).copy_((own.transpose(1, 2) if turned else own).reshape(-1))

    declared = DeclaredArithmetic(workspaces=(("order", "int64", 1, True),), token_major=(("y", "order"),))
    report = validate(made, declared, run, seed=0, repeats=2, depth="search")
    assert [check.name for check in report.checks if not check.ok] == ([] if applied else ["token-major"])


@pytest.mark.parametrize("kind", CHUNK_KINDS)
def test_every_input_and_every_kind_of_weight_changes_the_result(kind: str) -> None:
    assert insensitive(region(kind, Extents(context=40)), seed=1, tokens=CHUNK) == ()


def _changed(made: Region, change: Callable[[dict[str, Tensor]], None]) -> Run:
    """The right kernel on inputs that are not those it was given."""
    right = eager(made)

    def run(buffers: Mapping[str, Tensor]) -> None:
        wrong = dict(buffers)
        change(wrong)
        right(wrong)

    return run


def _at_its_number(b: dict[str, Tensor]) -> None:
    b["positions"] = torch.arange(b["positions"].numel())


def _one_slot_on(b: dict[str, Tensor]) -> None:
    b["positions"] = b["positions"] + 1


def _keys_with_the_queries_heads(b: dict[str, Tensor]) -> None:
    """Keys taken as far apart as queries are."""
    q, k = b["q"].reshape(b["q"].shape[1], -1), b["k"].reshape(b["k"].shape[1], -1)
    wide = torch.nn.functional.pad(k.reshape(-1), (0, q.numel() - k.numel())).view_as(q)
    b["k"] = wide[:, : k.shape[1]].reshape(b["k"].shape)


def _values_head_by_head(b: dict[str, Tensor]) -> None:
    cache, v = b["v_cache"], b["v"]
    heads, tokens = cache.shape[1], v.shape[1]
    b["v"] = v.reshape(heads, tokens, -1).transpose(0, 1).reshape(v.shape)


def _values_for_keys(b: dict[str, Tensor]) -> None:
    b["k_cache"], b["v_cache"] = b["v_cache"], b["k_cache"]


def _angles_of_the_first_token(b: dict[str, Tensor]) -> None:
    b["cos"], b["sin"] = (b[name][:, :1].expand_as(b[name]) for name in ("cos", "sin"))


WRONG = {
    "slots by the number of the token": _at_its_number,
    "slots one on": _one_slot_on,
    "keys strided as queries": _keys_with_the_queries_heads,
    "values that are not permuted": _values_head_by_head,
    "caches exchanged": _values_for_keys,
    "angles of the first token": _angles_of_the_first_token,
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", ["rope-append", "qknorm-rope-append"])
def test_a_planted_fault_is_caught(kind: str, name: str) -> None:
    made = region(kind, Extents(context=40))
    facts = DeclaredArithmetic(accumulation="library")
    assert validate(made, facts, eager(made), seed=0, repeats=2, depth="search").ok
    assert not validate(made, facts, _changed(made, WRONG[name]), seed=0, repeats=2, depth="search").ok


def test_queries_that_stay_token_by_token_are_caught() -> None:
    made = region("rope-append", Extents(context=40))
    right = eager(made)

    def run(buffers: Mapping[str, Tensor]) -> None:
        right(buffers)
        y = buffers["y"]
        y.copy_(y.transpose(1, 2).reshape(y.shape))

    assert not validate(made, DeclaredArithmetic(accumulation="library"), run, seed=0, repeats=2, depth="search").ok


def test_norms_exchanged_between_queries_and_keys_are_caught() -> None:
    made = region("qknorm-rope-append", Extents(context=40))

    def exchange(b: dict[str, Tensor]) -> None:
        b["q_norm"], b["k_norm"] = b["k_norm"], b["q_norm"]

    assert not validate(made, DeclaredArithmetic(), _changed(made, exchange), seed=0, repeats=2, depth="search").ok


@pytest.mark.parametrize("name", ["s", "y"])
def test_a_sum_or_a_norm_that_misses_an_operand_is_caught(name: str) -> None:
    made = region("add-rmsnorm", Extents(hidden=96))
    right = eager(made)

    def run(buffers: Mapping[str, Tensor]) -> None:
        right({**buffers, "b": torch.zeros_like(buffers["b"])})
        right({**buffers, name: buffers[name].clone()})

    assert not validate(made, DeclaredArithmetic(accumulation="library"), run, seed=0, repeats=2, depth="search").ok
