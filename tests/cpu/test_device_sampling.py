"""The kernel that chooses tokens on a device, without one: it compiles, and its arithmetic is the reference's."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from agentcompile.build.nvrtc import Cubin
from agentcompile.ir.graph import DType
from agentcompile.ir.target import most_shared_bytes
from agentcompile.runtime.device_sampling import MAX_ROWS, MAX_VOCAB, packed, sampler_source
from agentcompile.runtime.sampling import Sampling, choose, probabilities, uniform
from tests.kernels.kept import cubin
from tests.kernels.sampling_model import UNIT, Case, cases, chosen, fma, inputs, logprob, margin, masses, scores
from tests.templates.emulated import compiled

DTYPES: dict[DType, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
UNDEFINED = ("all -inf", "some NaN", "all NaN", "+inf twice")
"""Inputs that the reference gives no distribution for."""


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120"])
@pytest.mark.parametrize(
    ("dtype", "vocab", "rows"),
    [("bf16", 151936, 1), ("fp16", 1003, 1), ("fp32", MAX_VOCAB, 1), ("bf16", 151936, 8), ("fp16", 1003, 4)],
)
def test_it_compiles_for_every_architecture_within_its_limits(arch: str, dtype: DType, vocab: int, rows: int) -> None:
    source = sampler_source(vocab, dtype, arch, rows=rows)
    (launch,) = source.launches
    code = cubin(source)
    assert isinstance(code, Cubin), code
    (one,) = code.resources
    assert one.entry == launch.entry
    assert one.registers * int(launch.block[0]) <= 65_536
    assert one.shared_bytes + int(launch.shared_bytes) <= most_shared_bytes(arch)
    assert (one.spill_bytes, one.stack_bytes) == (0, 0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_one_block_fits_where_clusters_are_too(dtype: DType) -> None:
    source = sampler_source(128_256, dtype, "sm_90", blocks=1)
    code = cubin(source)
    assert isinstance(code, Cubin), code
    assert code.resources[0].spill_bytes == 0


@pytest.mark.parametrize(
    ("arch", "blocks"), [("sm_80", "1"), ("sm_89", "1"), ("sm_90a", "8"), ("sm_100", "8"), ("sm_120", "1")]
)
def test_clusters_serve_devices_that_have_them_and_the_memory(arch: str, blocks: str) -> None:
    assert sampler_source(32_000, "bf16", arch).launches[0].grid == (blocks,)


@pytest.mark.parametrize(("arch", "grid"), [("sm_80", ("1", "4")), ("sm_90", ("8", "4"))])
def test_every_row_has_blocks_of_its_own(arch: str, grid: tuple[str, ...]) -> None:
    assert sampler_source(32_000, "bf16", arch, rows=4).launches[0].grid == grid


@pytest.mark.parametrize("rows", [0, MAX_ROWS + 1])
def test_rows_out_of_range_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        sampler_source(1000, "bf16", "sm_90", rows=rows)


@pytest.mark.parametrize("vocab", [0, MAX_VOCAB + 1])
def test_a_vocabulary_out_of_range_is_refused(vocab: int) -> None:
    with pytest.raises(ValueError, match="vocab"):
        sampler_source(vocab, "bf16", "sm_90")


def test_settings_are_packed_as_the_kernel_reads_them() -> None:
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.75, seed=-1)
    data = packed(sampling, first=11, slots=512)
    assert struct.unpack("<QqQqfi", data) == (2**64 - 1, 11, 3 << 61, 512, 0.5, 7)
    assert struct.unpack("<QqQqfi", packed(Sampling(top_k=10**12, top_p=1e-300), first=0))[2:] == (1, 0, 0.0, MAX_VOCAB)


def test_settings_of_rows_lie_one_behind_another_as_structs_do() -> None:
    assert len(packed(Sampling(), first=0)) % struct.calcsize("Q") == 0


def test_the_models_fused_multiply_add_rounds_once() -> None:
    draw = random.Random(5)
    triples = [[draw.uniform(-2, 2) * 2.0 ** draw.randrange(-30, 4) for _ in range(3)] for _ in range(4000)]
    # A product just beside the middle of two neighbours, which rounding twice gets wrong.
    triples += [[1 + 2.0**-12, 1 + 2.0**-12, sign * 2.0**-54] for sign in (-1, 1)]
    a, b, c = torch.tensor(triples, dtype=torch.float32).unbind(1)
    for x, y, z, found in zip(*(column.tolist() for column in (a, b, c, fma(a, b, c))), strict=True):
        error = abs(Fraction(x) * Fraction(y) + Fraction(z) - Fraction(found))
        beside = [torch.nextafter(torch.tensor(found), torch.tensor(way)).item() for way in (-math.inf, math.inf)]
        assert all(error <= abs(Fraction(x) * Fraction(y) + Fraction(z) - Fraction(other)) for other in beside)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 100.0])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 8.0, 300.0])
def test_a_mass_is_as_exact_as_stated(dtype: DType, temperature: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(50_000, generator=generator) * spread * temperature
    logits = numbers.clamp(-65_000, 65_000).to(DTYPES[dtype])
    s = scores(logits, temperature).double()
    exact = torch.exp(s - s.max())
    error = (masses(logits, temperature).double() / UNIT - exact).abs()
    assert bool((error <= exact * 2.0**-23 + 2.0**-37).all())


def at_an_edge(case: Case) -> bool:
    """Whether top-p ends too near to the edge of a token to tell whether that one is kept."""
    if case.sampling.top_p == 1.0 or case.sampling.greedy:
        return False
    all_of_them = Sampling(temperature=case.sampling.temperature, top_k=case.sampling.top_k)
    edges = probabilities(case.logits, all_of_them)[1].cumsum(0)
    return bool(((edges - case.sampling.top_p).abs() <= margin(case.logits.numel())).any())


def beside(case: Case, found: int, counter: int) -> bool:
    """Whether a draw is so near to the share of the token found that the margin covers it."""
    ids, weights = probabilities(case.logits, case.sampling)
    place = int((ids == found).nonzero())
    upto, near = float(weights[: place + 1].sum()), margin(case.logits.numel())
    point = uniform(case.sampling.seed, counter)
    return upto - float(weights[place]) - near <= point <= upto + near


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "draws"), [(1, 2), (2, 8), (50, 8), (1003, 8), (20_000, 3)])
def test_the_choice_is_the_references_but_beside_edges(dtype: DType, vocab: int, draws: int) -> None:
    others = compared = 0
    for case in cases(vocab, DTYPES[dtype], seed=vocab):
        if case.name.startswith(UNDEFINED) or at_an_edge(case):
            continue
        for counter, found in enumerate(chosen(case.logits, case.sampling, range(draws))):
            compared += 1
            if found != choose(case.logits, case.sampling, counter):
                others += 1
                assert beside(case, found, counter), (case.name, counter, found)
    assert compared >= 50 * draws
    assert others <= compared / 100


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_never_chosen_unless_all_are(dtype: DType) -> None:
    for case in cases(301, DTYPES[dtype]):
        found = chosen(case.logits, case.sampling, range(20))
        values = case.logits[found].float()
        if not case.name.startswith("all NaN"):
            assert not bool(values.isnan().any()), case.name
        if case.name.startswith("+inf") and case.sampling.top_p > 0.5:
            assert set(found) <= {299, 300}
            assert len(set(found)) == (1 if case.sampling.greedy or case.sampling.top_k == 1 else 2), case.name
        if case.sampling.greedy and case.name.startswith("all NaN"):
            assert set(found) == {0}


SIDE_BY_SIDE = (
    Sampling(temperature=1.0, seed=21),
    Sampling(),
    Sampling(temperature=0.7, top_k=40, top_p=0.9, seed=22),
    Sampling(temperature=0.01, seed=23),
)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("dtype", "vocab", "rows", "blocks"),
    [("bf16", 333, 4, 1), ("fp16", 1003, 1, 1), ("fp32", 50, 4, 1), ("fp32", 333, 1, 2)],
)
def test_the_kernels_text_on_the_host_chooses_as_its_model_does(
    dtype: DType, vocab: int, rows: int, blocks: int, backwards: bool, tmp_path: Path
) -> None:
    kernel = compiled(sampler_source(vocab, dtype, "sm_90", rows=rows, blocks=blocks), tmp_path)
    given, first, slots = list(inputs(vocab, vocab).values()), 7, 64
    for at in range(len(given)):
        logits = torch.stack([given[(at + row) % len(given)] for row in range(rows)]).to(DTYPES[dtype])
        settings = [SIDE_BY_SIDE[(at + row) % len(SIDE_BY_SIDE)] for row in range(rows)]
        data = b"".join(packed(one, first=first, slots=slots) for one in settings)
        buffers = {
            "logits": logits,
            "position": first + at + torch.arange(rows),
            "settings": torch.frombuffer(bytearray(data), dtype=torch.uint8),
            "token": torch.full((rows,), -1),
            "logprobs": torch.full((rows, slots), 7.0),
        }
        kernel.run(buffers, ("logits", "position", "settings"), backwards=backwards)
        token, noted = buffers["token"], buffers["logprobs"]
        wanted = [chosen(logits[row], settings[row], [at + row])[0] for row in range(rows)]
        assert (kernel.wrong, token.tolist()) == ([], wanted), at
        found = noted[range(rows), first + at + torch.arange(rows)]
        expected = torch.tensor([logprob(logits[row], wanted[row]) for row in range(rows)])
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True), at
        assert int((noted != 7.0).sum()) == rows, at
