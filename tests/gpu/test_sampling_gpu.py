"""Choosing tokens on a device: its model bit for bit, the right frequencies, graphs, and what it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile, nvrtc_toolchain
from agentcompile.ir.graph import DType
from agentcompile.probe import probe_cuda
from agentcompile.runtime.device_sampling import DeviceSampler, sampler_source
from agentcompile.runtime.driver import Module
from agentcompile.runtime.sampling import Sampling, probabilities
from agentcompile.store import Store
from tests.kernels.sampling_model import cases, chosen, inputs, logprob

pytestmark = pytest.mark.gpu

DTYPES: dict[DType, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CONTEXT = 64
FIRST = 7
Make = Callable[..., "Step"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A sampler and what it is bound to."""

    sampler: DeviceSampler
    logits: torch.Tensor
    token: torch.Tensor
    position: torch.Tensor
    logprobs: torch.Tensor

    def draw(self, sampling: Sampling, counter: int, *, logprobs: bool = False) -> int:
        """The token of one launch."""
        self.position.fill_(FIRST + counter)
        self.token.fill_(-1)
        self.sampler.set(sampling, first=FIRST, logprobs=logprobs)
        self.sampler.enqueue()
        return int(self.token.item())


@pytest.fixture(scope="module")
def arch() -> str:
    return probe_cuda("cuda:0", toolchain="nvrtc").arch


@pytest.fixture(scope="module")
def make(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Make:
    store = Store(tmp_path_factory.mktemp("store"))

    def made(vocab: int, dtype: DType, blocks: int, overlap: bool = False) -> Step:
        source = sampler_source(vocab, dtype, arch, blocks=blocks)
        binary = compile(source, store, toolchain=nvrtc_toolchain(), limit_s=60)
        assert isinstance(binary, Binary), binary
        bound = {
            "logits": torch.zeros(vocab, dtype=DTYPES[dtype], device="cuda"),
            "token": torch.zeros(1, dtype=torch.int64, device="cuda"),
            "position": torch.zeros(1, dtype=torch.int64, device="cuda"),
            "logprobs": torch.zeros(CONTEXT, device="cuda"),
        }
        sampler = DeviceSampler(source, Module(Path(binary.path)), overlap=overlap, **bound)
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
