"""A draw looks at as few of the likeliest tokens as it needs, and says what sorting all of them would."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from agentcompile.runtime import sampling as module
from agentcompile.runtime.sampling import Sampling, choose, greatest_of_rows, probabilities, uniform


def by_definition(logits: torch.Tensor, sampling: Sampling, counter: int) -> int:
    ids, weights = probabilities(logits, sampling)
    index = int(torch.searchsorted(torch.cumsum(weights, dim=0), uniform(sampling.seed, counter), right=True))
    return int(ids[min(index, ids.numel() - 1)])


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("vocab", [1, 7, 300, 5000])
def test_a_draw_is_what_sorting_the_whole_vocabulary_says(
    spread: float, vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST", 5)
    generator = torch.Generator().manual_seed(vocab)
    for number, (temperature, top_k, top_p) in enumerate(
        itertools.product((0.3, 1.0, 7.0), (0, 1, 40), (0.1, 0.9, 1.0))
    ):
        # bf16 has ties wherever many scores lie near one another.
        logits = (torch.randn(vocab, generator=generator) * spread).to(torch.bfloat16)
        made = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=number)
        for counter in range(12):
            assert choose(logits, made, counter) == by_definition(logits, made, counter), made


def test_equal_scores_are_drawn_by_their_ids() -> None:
    logits = torch.zeros(1000)
    seen = {choose(logits, Sampling(temperature=1.0, top_p=0.5, seed=0), counter) for counter in range(400)}
    assert max(seen) < 500
    assert len(seen) > 200


def test_tokens_that_cannot_be_are_never_drawn() -> None:
    logits = torch.full((3000,), -torch.inf)
    logits[[5, 2000]] = torch.tensor([1.0, 1.0])
    assert {choose(logits, Sampling(temperature=1.0, seed=0), counter) for counter in range(50)} == {5, 2000}


@pytest.mark.parametrize(("vocab", "width"), [(128256, 256), (151936, 128), (512, 512), (7, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_largest_of_rows_is_the_first_of_the_largest(vocab: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    for spread in (0.01, 3.0):  # bf16 has hundreds of equals at the small one
        logits = (10 + torch.randn(vocab, generator=generator) * spread).to(dtype)
        first = int((logits == logits.max()).nonzero()[0])
        assert int(greatest_of_rows(logits, width)) == first
        assert choose(logits, Sampling(), 0) == first
    assert int(greatest_of_rows(torch.full((vocab,), -torch.inf, dtype=dtype), width)) == 0


def test_the_host_does_not_wait_for_the_row_of_the_greatest() -> None:
    with FakeTensorMode():  # refuses to read a value back
        logits = torch.empty(1024)
        assert greatest_of_rows(logits, 512).shape == ()
        values, ids = logits.view(-1, 512).max(dim=1)
        with pytest.raises(DataDependentOutputException):
            ids[values.argmax()]
