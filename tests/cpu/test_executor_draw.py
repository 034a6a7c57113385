"""Draws of the native loop: those of `sampling.choose`, for any logits, filters and draw number."""

from __future__ import annotations

import ctypes
import itertools
from functools import cache
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile, compile_executor, find_toolchain
from agentcompile.ir.template import Source
from agentcompile.runtime.native import Call, Executor, Library, NativeDecoder
from agentcompile.runtime.sampling import Sampling, choose
from agentcompile.system.store import Store

DRAWS, FEW = 60, 6
NOTHING = 'struct args {}; extern "C" void nothing(const args& a, int rank, int size) {}'
SHAPES = {
    "peaked": lambda vocab: torch.randn(vocab) * 4,
    "flat": lambda vocab: torch.randn(vocab) * 0.01,
    "ties": lambda vocab: torch.randint(-3, 3, (vocab,)).float(),
    "masked": lambda vocab: torch.randn(vocab).masked_fill(torch.arange(vocab) % 3 > 0, float("-inf")),
    "far": lambda vocab: torch.where(torch.arange(vocab) == vocab // 2, 900.0, torch.randn(vocab)),
}


class Loop:
    """A decode loop whose step leaves the logits as they are."""

    def __init__(self, folder: Path, flags: tuple[str, ...]) -> None:
        source = Source(language="cpp", text=NOTHING, launches=(), workspaces=())
        made = compile(source, Store(folder / "kernel"), toolchain=find_toolchain(), limit_s=60)
        assert isinstance(made, Binary)
        self._calls = [Call.of(Library(Path(made.path)), "nothing", ())]
        self._executor = Executor(
            compile_executor(Store(folder / "executor"), toolchain=find_toolchain(), flags=flags), 2
        )

    def draws(self, logits: torch.Tensor, sampling: Sampling, first: int, count: int) -> tuple[int, ...]:
        """The tokens of `count` steps from position `first` on."""
        token, position = ctypes.c_int64(0), ctypes.c_int64(first)
        own = ctypes.addressof(token)
        decoder = NativeDecoder(
            self._executor,
            self._calls,
            ids=own,
            token=own,
            position=ctypes.addressof(position),
            stop_ids=(),
            context=first + count + 1,
            logits=logits,
        )
        assert decoder.begin(sampling, first=first, logprobs=False)
        found = decoder.steps(count)
        assert found.reason == "limit"
        assert token.value == found.tokens[-1]
        return found.tokens


@pytest.fixture(scope="module", params=[(), ("-march=native",)], ids=["any", "here"])
def loop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return Loop(tmp_path_factory.mktemp("loop"), request.param)


@cache
def drawn(shape: str, vocab: int, dtype: torch.dtype) -> tuple[torch.Tensor, dict[Sampling, tuple[int, ...]]]:
    """Logits, and what Python draws from them: once for the loops of all flags, for Python takes longest."""
    torch.manual_seed(vocab)
    logits = SHAPES[shape](vocab).to(dtype)
    filters = itertools.product((0.7, 1.0, 3.0), (0, 1, 50, 10**6), (1.0, 0.9, 1e-6))
    wanted = {}
    for number, (temperature, top_k, top_p) in enumerate(filters):
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=number - 3)
        alone = 1 in (vocab, top_k) or top_p < 1e-3  # one token is left, whatever the number of the draw
        count = FEW if alone or vocab >= 4096 else DRAWS
        wanted[sampling] = tuple(choose(logits, sampling, n) for n in range(count))
    return logits, wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 7, 300, 4096, 33_001])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loop_draws_what_is_drawn_in_python(loop: Loop, shape: str, vocab: int, dtype: torch.dtype) -> None:
    logits, wanted = drawn(shape, vocab, dtype)
    assert len(wanted) == 36
    for sampling, tokens in wanted.items():
        assert loop.draws(logits, sampling, 11, len(tokens)) == tokens, sampling


def test_only_finite_scores_are_drawn_and_nothing_hangs(loop: Loop) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9)
    nan, inf = float("nan"), float("inf")
    assert loop.draws(torch.full((40,), nan), sampling, 0, 3) == (0, 0, 0)
    assert loop.draws(torch.full((40,), -inf), sampling, 0, 3) == (0, 0, 0)
    assert loop.draws(torch.tensor([0.0, inf, inf]), sampling, 0, 3) == (1, 1, 1)
    assert set(loop.draws(torch.tensor([nan, 1.0, nan, 1.0]), sampling, 0, 50)) == {1, 3}


def test_log_probabilities_and_unknown_logits_are_left_to_python(loop: Loop) -> None:
    token = ctypes.c_int64(0)
    own = ctypes.addressof(token)
    decoder = NativeDecoder(loop._executor, loop._calls, ids=own, token=own, position=own, stop_ids=(), context=4)
    assert decoder.begin(Sampling(), first=0, logprobs=False)
    assert not decoder.begin(Sampling(), first=0, logprobs=True)
    assert not decoder.begin(Sampling(temperature=1.0), first=0, logprobs=False)
