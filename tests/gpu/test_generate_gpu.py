"""A lock compiled on a device and run there: graphs against single steps, prompts of every length, draws, ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.lockfile.schema import Lock
from agentcompile.options import Options
from agentcompile.replay.bind import bind
from agentcompile.replay.load import replay_lock
from agentcompile.replay.open import open_lock
from agentcompile.runtime.model import CompiledModel, Completion
from agentcompile.runtime.sampling import Sampling, choose
from tests.gpu.conftest import CONTEXT

pytestmark = pytest.mark.gpu

IDS = [3, 77, 12, 205, 9, 33, 150, 8, 41]


@pytest.fixture(scope="module")
def model(settings: Options, lock_file: Path) -> CompiledModel:
    return replay_lock(lock_file, settings)


def one(model: CompiledModel, ids: list[int], **settings: object) -> Completion:
    made = model.generate(ids, **settings)  # type: ignore[arg-type]
    assert isinstance(made, Completion)
    return made


def served(model: CompiledModel, ids: list[int], made: Sequence[int]) -> torch.Tensor:
    """The logits that a generation chose `made` by: the prompt's cache comes from the prompt's kernels."""
    return model.logits([*ids, *made[:-1]], prompt=len(ids))


def test_the_lock_says_what_it_was_made_for(lock: Lock) -> None:
    assert lock.target.kind == "cuda"
    assert lock.target.arch.startswith("sm_")
    (decode,) = (plan for plan in lock.plan if plan.phase == "decode")
    assert all(choice.use == "kernel" for choice in decode.choices)


def test_graphs_of_several_steps_choose_what_single_steps_do(model: CompiledModel) -> None:
    tokens = one(model, IDS, max_new_tokens=60, ignore_eos=True).tokens
    assert len(tokens) == 60
    assert served(model, IDS, tokens).argmax(-1).tolist() == list(tokens)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 64, 65, CONTEXT - 1, CONTEXT])
def test_a_prompt_of_any_length_gives_the_logits_of_its_decode_steps(model: CompiledModel, count: int) -> None:
    ids = [(7 * i + 3) % 500 for i in range(count)]
    chunked, stepped = model.prefill(ids), model.logits(ids)[-1]
    assert float((chunked - stepped).norm() / stepped.norm()) < 0.05
    again = model.prefill(ids)
    assert torch.equal(chunked, again)


def test_draws_are_those_of_the_host(model: CompiledModel) -> None:
    settings = {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "seed": 5}
    made = one(model, IDS, max_new_tokens=50, ignore_eos=True, **settings)
    sampling = Sampling(temperature=1.3, top_k=50, top_p=0.9, seed=5)
    expected = [choose(row, sampling, at) for at, row in enumerate(served(model, IDS, made.tokens))]
    assert list(made.tokens) == expected
    assert one(model, IDS, max_new_tokens=50, ignore_eos=True, **settings).tokens == made.tokens
    assert one(model, IDS, max_new_tokens=50, ignore_eos=True, **(settings | {"seed": 6})).tokens != made.tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_are_the_unfiltered_ones(model: CompiledModel, temperature: float) -> None:
    made = one(model, IDS, max_new_tokens=30, ignore_eos=True, temperature=temperature, top_k=5, logprobs=True)
    rows = torch.log_softmax(served(model, IDS, made.tokens).double(), dim=-1)
    expected = rows[torch.arange(30), torch.tensor(made.tokens, device=rows.device)]
    assert made.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_greedy_again_after_a_draw(model: CompiledModel) -> None:
    before = one(model, IDS, max_new_tokens=20, ignore_eos=True).tokens
    one(model, IDS, max_new_tokens=20, ignore_eos=True, temperature=2.0, seed=3)
    assert one(model, IDS, max_new_tokens=20, ignore_eos=True).tokens == before


@pytest.mark.parametrize("how", [{}, {"temperature": 0.9, "seed": 4, "logprobs": True}], ids=["greedy", "drawn"])
def test_a_stream_that_was_left_does_not_show_in_the_next_generation(
    model: CompiledModel, how: dict[str, object]
) -> None:
    expected = one(model, IDS, max_new_tokens=40, ignore_eos=True, **how)
    for pieces in range(1, 6):
        stream = model.stream(IDS, max_new_tokens=40, ignore_eos=True, **how)  # type: ignore[arg-type]
        left = [token for _, piece in zip(range(pieces), stream, strict=False) for token in piece.tokens]
        stream.close()  # type: ignore[attr-defined]
        assert left == list(expected.tokens[: len(left)])
        again = one(model, IDS, max_new_tokens=40, ignore_eos=True, **how)
        assert (again.tokens, again.logprobs) == (expected.tokens, expected.logprobs)


def test_a_generation_ends_where_the_cache_does(model: CompiledModel) -> None:
    made = one(model, IDS, max_new_tokens=10_000, ignore_eos=True)
    assert made.finish == "context"
    assert len(made.tokens) == CONTEXT - len(IDS) + 1


def test_an_end_of_sequence_inside_a_graph_ends_the_generation(
    settings: Options, lock_file: Path, model: CompiledModel
) -> None:
    free = one(model, IDS, max_new_tokens=40, ignore_eos=True, temperature=1.0, seed=2).tokens
    late = next(token for at, token in enumerate(free) if at >= 11 and token not in free[:at])
    opened = open_lock(lock_file, settings)
    ends = replace(opened.model.captured, info=replace(opened.model.captured.info, eos=(late,)))
    ending = bind(replace(opened, model=replace(opened.model, captured=ends)))
    made = one(ending, IDS, max_new_tokens=40, temperature=1.0, seed=2)
    assert made.finish == "eos"
    assert made.tokens == free[: free.index(late) + 1]


def test_two_models_on_one_device_do_not_disturb_each_other(
    settings: Options, lock_file: Path, model: CompiledModel
) -> None:
    twin = replay_lock(lock_file, settings)
    alone = one(model, IDS, max_new_tokens=30, ignore_eos=True).tokens
    streams = [one_of.stream(IDS, max_new_tokens=30, ignore_eos=True) for one_of in (model, twin)]
    made: list[list[int]] = [[], []]
    for pieces in zip(*streams, strict=False):
        for own, piece in zip(made, pieces, strict=True):
            own.extend(piece.tokens)
    for own, stream in zip(made, streams, strict=True):
        own.extend(token for piece in stream for token in piece.tokens)
    assert made[0][: len(alone)] == list(alone)[: len(made[0])]
    assert made[1][: len(alone)] == list(alone)[: len(made[1])]
