"""Choosing tokens on a device: its model bit for bit, the right frequencies, graphs, and what it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile, nvrtc_toolchain
from agentcompile.ir.graph import DType
from agentcompile.runtime.device_sampling import DeviceSampler, sampler_source
from agentcompile.runtime.driver import Module
from agentcompile.runtime.sampling import Sampling, probabilities
from agentcompile.system.probe import probe_cuda
from agentcompile.system.store import Store
from tests.kernels.sampling_model import cases, chosen, inputs, logprob

pytestmark = pytest.mark.gpu

DTYPES: dict[DType, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CONTEXT = 64
FIRST = 7
Make = Callable[..., "Step"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A sampler and what it is bound to; of several rows every tensor has a first extent for them."""

    sampler: DeviceSampler
    logits: torch.Tensor
    token: torch.Tensor
    position: torch.Tensor
    logprobs: torch.Tensor

    def draw(self, sampling: Sampling, counter: int, *, logprobs: bool = False) -> int:
        """The token of one launch."""
        return self.draws([sampling], [counter], logprobs=logprobs)[0]

    def draws(self, samplings: Sequence[Sampling], counters: Sequence[int], *, logprobs: bool = False) -> list[int]:
        """The tokens of one launch, a row each."""
        self.position.copy_(torch.tensor([FIRST + counter for counter in counters]))
        self.token.fill_(-1)
        for row, sampling in enumerate(samplings):
            self.sampler.set(sampling, first=FIRST, logprobs=logprobs, row=row)
        self.sampler.enqueue()
        found: list[int] = self.token.tolist()
        return found


@pytest.fixture(scope="module")
def arch() -> str:
    return probe_cuda("cuda:0", toolchain="nvrtc").arch


@pytest.fixture(scope="module")
def make(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Make:
    store = Store(tmp_path_factory.mktemp("store"))

    def made(vocab: int, dtype: DType, blocks: int, overlap: bool = False, rows: int = 1) -> Step:
        source = sampler_source(vocab, dtype, arch, blocks=blocks, rows=rows)
        binary = compile(source, store, toolchain=nvrtc_toolchain(), limit_s=60)
        assert isinstance(binary, Binary), binary
        bound = {
            "logits": torch.zeros((rows, vocab) if rows > 1 else vocab, dtype=DTYPES[dtype], device="cuda"),
            "token": torch.zeros(rows, dtype=torch.int64, device="cuda"),
            "position": torch.zeros(rows, dtype=torch.int64, device="cuda"),
            "logprobs": torch.zeros((rows, CONTEXT) if rows > 1 else CONTEXT, device="cuda"),
        }
        sampler = DeviceSampler(source, Module(Path(binary.path)), overlap=overlap, rows=rows, **bound)
        return Step(sampler=sampler, **bound)

    return made


def capability(arch: str) -> int:
    """90 for ``sm_90a``."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def variants(arch: str) -> tuple[int, ...]:
    """Blocks to test: one everywhere, clusters where they have the memory."""
    return (1, 8) if 90 <= capability(arch) < 120 else (1,)


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [
        *((vocab, dtype) for vocab in (1, 2, 50, 333, 1003) for dtype in DTYPES),
        (128_256, "fp16"),
        (151_936, "bf16"),
        (300_000, "fp32"),
    ],
)
def test_the_kernel_is_its_model_bit_for_bit(make: Make, arch: str, dtype: DType, vocab: int) -> None:
    draws = 4 if vocab <= 1003 else 2
    wanted = [
        (case, chosen(case.logits, case.sampling, range(draws))) for case in cases(vocab, DTYPES[dtype], seed=vocab)
    ]
    for blocks in variants(arch):
        step = make(vocab, dtype, blocks)
        for case, tokens in wanted:
            step.logits.copy_(case.logits)
            found = [step.draw(case.sampling, counter) for counter in range(draws)]
            assert found == tokens, (blocks, case.name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [50, 32_000])
def test_a_log_probability_is_the_unfiltered_ones(make: Make, arch: str, dtype: DType, vocab: int) -> None:
    for blocks in variants(arch):
        step = make(vocab, dtype, blocks)
        for case in cases(vocab, DTYPES[dtype], seed=1):
            step.logits.copy_(case.logits)
            step.logprobs.fill_(7.0)
            token = step.draw(case.sampling, 3, logprobs=True)
            want = torch.tensor(logprob(case.logits, token))
            torch.testing.assert_close(step.logprobs[FIRST + 3].cpu(), want, rtol=1e-6, atol=1e-6, equal_nan=True)
            assert int((step.logprobs != 7.0).sum()) == 1, case.name
            if bool(case.logits.isfinite().all()):
                exact = torch.log_softmax(case.logits.double(), dim=0)[token].float()
                torch.testing.assert_close(want, exact, rtol=1e-6, atol=2e-6)


def test_a_position_without_room_notes_nothing(make: Make) -> None:
    step = make(50, "bf16", 0)
    step.logprobs.fill_(7.0)
    for counter in (-FIRST - 1, CONTEXT - FIRST):
        step.draw(Sampling(temperature=1.0), counter, logprobs=True)
    assert bool((step.logprobs == 7.0).all())


MIXED = (
    Sampling(temperature=1.0, seed=21),
    Sampling(),
    Sampling(temperature=0.7, top_k=40, top_p=0.9, seed=22),
    Sampling(temperature=1.0, seed=23),
)
"""Settings of four rows: two that differ in their seed alone, a filtered one, and a greedy one among them."""


@pytest.mark.parametrize(("vocab", "dtype"), [(50, "bf16"), (333, "fp16"), (1003, "fp32"), (32_000, "bf16")])
def test_every_row_chooses_by_its_own_logits_settings_and_counter(
    make: Make, arch: str, dtype: DType, vocab: int
) -> None:
    given = list(inputs(vocab, seed=vocab).values())
    for blocks in variants(arch):
        step = make(vocab, dtype, blocks, rows=4)
        for at in range(len(given)):
            rows = [given[(at + row) % len(given)].to(DTYPES[dtype]) for row in range(4)]
            counters = [at, 0, 5, at + 1]
            step.logits.copy_(torch.stack(rows))
            wanted = [
                chosen(logits, sampling, [counter])[0]
                for logits, sampling, counter in zip(rows, MIXED, counters, strict=True)
            ]
            assert step.draws(MIXED, counters) == wanted, (blocks, at)


def test_rows_of_equal_logits_and_settings_choose_alike_and_another_seed_otherwise(make: Make, arch: str) -> None:
    alike = Sampling(temperature=1.0, seed=31)
    logits = inputs(32_000, 7)["near zero"].to(torch.bfloat16)
    for blocks in variants(arch):
        step = make(32_000, "bf16", blocks, rows=4)
        step.logits.copy_(logits.expand(4, -1))
        one, two, other, later = step.draws([alike, alike, Sampling(temperature=1.0, seed=32), alike], [3, 3, 3, 4])
        assert one == two
        assert len({one, other, later}) == 3


def test_every_row_notes_its_log_probability_at_its_own_position(make: Make, arch: str) -> None:
    given = inputs(333, 8)
    rows = [given[name].to(torch.float32) for name in ("a model's", "near zero", "ties everywhere", "all equal")]
    counters = [0, 7, 30, CONTEXT - FIRST]  # the last has no room
    for blocks in variants(arch):
        step = make(333, "fp32", blocks, rows=4)
        step.logits.copy_(torch.stack(rows))
        step.logprobs.fill_(7.0)
        tokens = step.draws(MIXED, counters, logprobs=True)
        noted = step.logprobs.cpu()
        for row in range(3):
            want = torch.tensor(logprob(rows[row], tokens[row]))
            torch.testing.assert_close(noted[row, FIRST + counters[row]], want, rtol=1e-6, atol=1e-6)
        assert int((noted != 7.0).sum()) == 3, blocks


def test_rows_that_nothing_was_set_for_take_the_largest(make: Make, arch: str) -> None:
    logits = inputs(1003, 9)["a model's"].to(torch.bfloat16)
    for blocks in variants(arch):
        step = make(1003, "bf16", blocks, rows=4)
        step.logits.copy_(torch.stack([logits.roll(row) for row in range(4)]))
        step.sampler.set(Sampling(temperature=1.0, seed=41), first=FIRST, row=2)
        step.position.fill_(FIRST)
        step.sampler.enqueue()
        found = step.token.tolist()
        for row in (0, 1, 3):
            assert found[row] == chosen(logits.roll(row), Sampling(), [0])[0], (blocks, row)
        assert found[2] == chosen(logits.roll(2), Sampling(temperature=1.0, seed=41), [0])[0], blocks


def test_tensors_for_another_number_of_rows_are_refused(make: Make) -> None:
    step = make(50, "bf16", 0, rows=4)
    with pytest.raises(IndexError):
        step.sampler.set(Sampling(), first=0, row=4)
    with pytest.raises(ValueError, match="rows"):
        make(50, "bf16", 0, rows=0)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.8, top_k=12, seed=2),
        Sampling(temperature=1.5, top_p=0.8, seed=3),
    ],
)
def test_frequencies_match_the_probabilities(make: Make, arch: str, sampling: Sampling) -> None:
    draws = 20_000
    logits = torch.randn(40, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    ids, weights = probabilities(logits, sampling)
    for blocks in variants(arch):
        step = make(40, "bf16", blocks)
        step.logits.copy_(logits)
        step.position.fill_(FIRST)
        step.sampler.set(sampling, first=FIRST)
        tokens = torch.empty(draws, dtype=torch.int64, device="cuda")
        for i in range(draws):
            step.sampler.enqueue()
            tokens[i : i + 1].copy_(step.token)
            step.position.add_(1)
        counts = torch.bincount(tokens, minlength=40).double().cpu()
        expected = weights * draws
        assert int(counts.sum()) == int(counts[ids].sum()), "a token that the filters leave out"
        chi_square = float(((counts[ids] - expected) ** 2 / expected).sum())
        freedom = ids.numel() - 1
        assert chi_square < freedom + 4.0 * (2.0 * freedom) ** 0.5 + 8.0  # beyond the 0.01 % point for 3 … 39 degrees


def test_one_graph_of_eight_draws_serves_any_setting(make: Make, arch: str) -> None:
    steps = 8
    logits = inputs(32_000, 5)["a model's"].to(torch.bfloat16)
    for blocks in variants(arch):
        step = make(32_000, "bf16", blocks)
        step.logits.copy_(logits)
        history = torch.zeros(CONTEXT, dtype=torch.int64, device="cuda")
        step.sampler.enqueue()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(steps):
                step.sampler.enqueue()
                history.index_copy_(0, step.position, step.token)
                step.position.add_(1)
        for sampling in (
            Sampling(temperature=1.0, seed=11),
            Sampling(temperature=0.7, top_k=50, top_p=0.9, seed=12),
            Sampling(),
        ):
            step.sampler.set(sampling, first=FIRST, logprobs=True)
            step.position.fill_(FIRST + 1)
            for _ in range(2):
                graph.replay()
            made = history[FIRST + 1 : FIRST + 1 + 2 * steps].tolist()
            assert made == chosen(logits, sampling, range(1, 1 + 2 * steps)), (blocks, sampling)


def test_launches_that_overlap_choose_the_same(make: Make, arch: str) -> None:
    """The kernel behind itself, each started before the one ahead has ended, where the device can."""
    logits = inputs(32_000, 6)["a model's"].to(torch.bfloat16)
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=13)
    for blocks in variants(arch):
        step = make(32_000, "bf16", blocks, overlap=capability(arch) >= 90)
        step.logits.copy_(logits)
        step.position.fill_(FIRST + 5)
        step.sampler.set(sampling, first=FIRST)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(16):
                step.sampler.enqueue()
        for _ in range(4):
            step.token.fill_(-1)
            graph.replay()
            assert step.token.tolist() == chosen(logits, sampling, [5])


def timed_us(body: Callable[[], object], times: int = 50, rounds: int = 11) -> float:
    """Median µs of one call in a graph of `times`."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            body()
    found = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / times)
    return sorted(found)[rounds // 2]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("vocab", [151_936, 128_256])
def test_what_it_takes_is_printed(make: Make, arch: str, dtype: DType, vocab: int) -> None:
    settings = {
        "greedy": Sampling(),
        "temperature": Sampling(temperature=0.8),
        "top-k 50": Sampling(temperature=0.8, top_k=50),
        "top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
        "top-k 50, top-p 0.95": Sampling(temperature=0.8, top_k=50, top_p=0.95),
        "temperature 100": Sampling(temperature=100.0),
    }
    values = inputs(vocab, 0)["a model's"].to(DTYPES[dtype])
    for blocks in variants(arch):
        step = make(vocab, dtype, blocks)
        step.logits.copy_(values)
        for name, sampling in settings.items():
            for logprobs in (False, True):
                step.sampler.set(sampling, first=0, logprobs=logprobs)
                spent = timed_us(step.sampler.enqueue)
                print(f"{vocab} {dtype} {blocks} blocks, {name}{', logprobs' * logprobs}: {spent:.2f} µs")
    logits = values.cuda()
    peer = timed_us(lambda: torch.multinomial(torch.softmax(logits.float() / 0.8, dim=-1), 1))
    print(f"{vocab} {dtype} torch softmax and multinomial, temperature alone: {peer:.2f} µs")
