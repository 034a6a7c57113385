"""Generation: what comes out depends on the prompt and the settings alone, however it is asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcompile.errors import AgentCompileError
from agentcompile.replay.load import replay_lock
from agentcompile.runtime.model import CompiledModel, Completion
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT, SAMPLE_CONTEXT

Make = Callable[[str, str], Path]
PROMPT = "def add(a, b):\n    return"
IDS = [17, 301, 42, 7, 255, 99, 480]


def load(warm: Path, lock: Path, model: Path, context: int) -> CompiledModel:
    return replay_lock(lock, flows.options(warm, model, context))


@pytest.fixture(scope="module")
def sample(warm: Path, planted: Make) -> CompiledModel:
    """The sample checkpoint: it has a tokenizer, and its text means something."""
    return load(warm, planted("sample", "bf16"), flows.SAMPLE, SAMPLE_CONTEXT)


@pytest.fixture(scope="module")
def tiny(warm: Path, planted: Make, checkpoint: Make) -> CompiledModel:
    """A model without a tokenizer, and with a short cache."""
    return load(warm, planted("tiny-llama", "fp32"), checkpoint("tiny-llama", "fp32"), CONTEXT)


def one(model: CompiledModel, prompt: Any, **settings: Any) -> Completion:
    made = model.generate(prompt, **settings)
    assert isinstance(made, Completion)
    return made


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.9, "seed": 3}, {"logprobs": True}, {"stop": ["\n\n", "def"]}],
    ids=["greedy", "sampled", "logprobs", "stop"],
)
def test_the_pieces_of_a_stream_join_to_what_generate_returns(sample: CompiledModel, settings: dict[str, Any]) -> None:
    whole = one(sample, PROMPT, max_new_tokens=40, **settings)
    pieces = list(sample.stream(PROMPT, max_new_tokens=40, **settings))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert tuple(token for piece in pieces for token in piece.tokens) == whole.tokens
    assert [piece.finish for piece in pieces if piece.finish] == [whole.finish]


def test_the_text_is_the_tokens_decoded(sample: CompiledModel) -> None:
    assert sample.tokenizer is not None
    made = one(sample, PROMPT, max_new_tokens=40, temperature=1.3, seed=5, ignore_eos=True)
    assert len(made.tokens) == 40
    assert made.text == sample.tokenizer.decode(made.tokens)


def test_text_and_its_token_ids_are_the_same_prompt(sample: CompiledModel) -> None:
    assert sample.tokenizer is not None
    ids = sample.tokenizer.encode(PROMPT)
    text, given = one(sample, PROMPT, max_new_tokens=12), one(sample, ids, max_new_tokens=12)
    assert text.tokens == given.tokens
    assert text.prompt_tokens == len(ids)
    assert one(sample, torch.tensor(ids), max_new_tokens=12).tokens == text.tokens


def test_a_list_of_ragged_prompts_gives_each_what_it_gives_alone(sample: CompiledModel) -> None:
    prompts = ["import", PROMPT, "class A:\n    def __init__(self, name, value):\n        self."]
    together = sample.generate(prompts, max_new_tokens=10)
    assert isinstance(together, list)
    assert [made.tokens for made in together] == [one(sample, p, max_new_tokens=10).tokens for p in prompts]


def test_one_bad_prompt_of_a_list_is_refused_before_any_is_run(sample: CompiledModel) -> None:
    ran = []
    with pytest.raises(AgentCompileError, match="empty"):
        ran.append(sample.generate([PROMPT, ""], max_new_tokens=10**6))
    assert not ran


def test_nothing_from_a_stop_string_on_is_given_out(sample: CompiledModel) -> None:
    free = one(sample, PROMPT, max_new_tokens=40)
    stop = free.text[5:9]
    assert len(stop) == 4
    made = one(sample, PROMPT, max_new_tokens=40, stop=[stop])
    assert made.finish == "stop"
    assert made.text == free.text[: free.text.index(stop)]


def test_no_token_after_a_stop_string_is_returned_however_the_chunks_fall(sample: CompiledModel) -> None:
    """Chunks grow with the clock; the loop that makes one token at a time knows no chunk."""
    stop = one(sample, PROMPT, max_new_tokens=60).text[20:24]
    chunked = one(sample, PROMPT, max_new_tokens=60, stop=stop)
    single = one(sample, PROMPT, max_new_tokens=60, stop=stop, logprobs=True)
    assert chunked.finish == "stop"
    assert chunked.tokens == single.tokens
    assert len(single.logprobs) == len(single.tokens)


def test_a_stop_string_by_itself_is_one_and_not_its_letters(sample: CompiledModel) -> None:
    free = one(sample, PROMPT, max_new_tokens=30)
    stop = free.text[6:10]
    assert one(sample, PROMPT, max_new_tokens=30, stop=stop).text == free.text[: free.text.index(stop)]


def test_generation_ends_at_an_end_of_sequence_token_unless_told_not_to(tiny: CompiledModel) -> None:
    """The seed is the first whose free run draws the token; the run that may end there is a prefix of it."""
    (eos,) = tiny.info.eos
    for seed in range(200):
        free = one(tiny, IDS, max_new_tokens=40, temperature=2.0, seed=seed, ignore_eos=True)
        if eos in free.tokens:
            break
    at = free.tokens.index(eos)
    made = one(tiny, IDS, max_new_tokens=40, temperature=2.0, seed=seed)
    assert made.finish == "eos"
    assert made.tokens == free.tokens[: at + 1]


def test_the_native_loop_ends_at_an_end_of_sequence_token(warm: Path, planted: Make, checkpoint: Make) -> None:
    from dataclasses import replace

    lock, model = planted("tiny-llama", "fp32"), checkpoint("tiny-llama", "fp32")
    free = one(load(warm, lock, model, CONTEXT), IDS, max_new_tokens=20, ignore_eos=True)
    late = next(token for at, token in enumerate(free.tokens) if at >= 3 and token not in free.tokens[:at])
    from agentcompile.replay.bind import bind
    from agentcompile.replay.open import open_lock

    opened = open_lock(lock, flows.options(warm, model, CONTEXT))
    captured = opened.model.captured
    ends = replace(captured, info=replace(captured.info, eos=(late,)))
    made = one(bind(replace(opened, model=replace(opened.model, captured=ends))), IDS, max_new_tokens=20)
    assert made.finish == "eos"
    assert made.tokens == free.tokens[: free.tokens.index(late) + 1]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(tiny: CompiledModel) -> None:
    settings = {"max_new_tokens": 24, "temperature": 1.5, "ignore_eos": True}
    first, again = (one(tiny, IDS, seed=11, **settings) for _ in range(2))
    assert first.tokens == again.tokens
    assert one(tiny, IDS, seed=12, **settings).tokens != first.tokens


def test_one_candidate_is_greedy_whatever_the_temperature(tiny: CompiledModel) -> None:
    greedy = one(tiny, IDS, max_new_tokens=20, ignore_eos=True)
    for only in ({"top_k": 1}, {"top_p": 1e-9}):
        made = one(tiny, IDS, max_new_tokens=20, temperature=5.0, seed=1, ignore_eos=True, **only)
        assert made.tokens == greedy.tokens, only


def test_top_k_draws_among_the_k_likeliest_of_each_step(tiny: CompiledModel) -> None:
    made = one(tiny, IDS, max_new_tokens=20, temperature=50.0, top_k=3, seed=2, ignore_eos=True)
    rows = tiny.logits([*IDS, *made.tokens[:-1]])[len(IDS) - 1 :]
    for row, token in zip(rows, made.tokens, strict=True):
        assert token in row.topk(3).indices.tolist()
    assert made.tokens != one(tiny, IDS, max_new_tokens=20, ignore_eos=True).tokens


@pytest.mark.parametrize(
    "how",
    [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 3.0, "top_p": 0.7}, {"temperature": 9.0, "top_k": 40}],
    ids=["greedy", "whole", "top-p", "top-k"],
)
def test_both_loops_give_the_same_tokens(how: dict[str, Any], tiny: CompiledModel) -> None:
    native = one(tiny, IDS, max_new_tokens=30, ignore_eos=True, **how)
    python = one(tiny, IDS, max_new_tokens=30, ignore_eos=True, logprobs=True, **how)
    assert native.tokens == python.tokens
    assert native.finish == python.finish


def test_log_probabilities_are_those_of_the_unfiltered_distribution(tiny: CompiledModel) -> None:
    made = one(tiny, IDS, max_new_tokens=12, temperature=1.0, top_k=4, seed=3, logprobs=True, ignore_eos=True)
    rows = torch.log_softmax(tiny.logits([*IDS, *made.tokens[:-1]]).double(), -1)[len(IDS) - 1 :]
    expected = [float(row[token]) for row, token in zip(rows, made.tokens, strict=True)]
    assert made.logprobs == pytest.approx(expected, abs=1e-4)
    assert all(value < 0 and math.isfinite(value) for value in made.logprobs)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_as_many_tokens_as_asked(count: int, tiny: CompiledModel) -> None:
    long = one(tiny, IDS, max_new_tokens=10, ignore_eos=True)
    made = one(tiny, IDS, max_new_tokens=count, ignore_eos=True)
    assert made.tokens == long.tokens[:count]
    assert made.finish == "length"


@pytest.mark.parametrize("settings", [{}, {"logprobs": True}], ids=["native", "python"])
@pytest.mark.parametrize("free", [0, 1, 5])
def test_a_cache_is_filled_to_its_last_slot_and_no_further(
    free: int, settings: dict[str, Any], tiny: CompiledModel
) -> None:
    ids = [2 + (37 * i) % 500 for i in range(CONTEXT - free)]
    made = one(tiny, ids, max_new_tokens=100, ignore_eos=True, **settings)
    assert made.finish == "context"
    # The last token that is made needs no slot of its own.
    assert len(made.tokens) == free + 1


def test_a_prompt_that_fills_the_cache_gives_the_token_of_its_last_position(tiny: CompiledModel) -> None:
    ids = [2 + (37 * i) % 500 for i in range(CONTEXT)]
    assert one(tiny, ids, max_new_tokens=1, ignore_eos=True).tokens[0] == int(tiny.logits(ids)[-1].argmax())


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "empty": ([], {}, "empty"),
    "long": ([5] * (CONTEXT + 1), {}, f"{CONTEXT + 1} tokens is longer than the cache of {CONTEXT}"),
    "outside": ([5, 512], {}, "512 is outside the vocabulary of 512"),
    "negative-id": ([-1], {}, "-1 is outside"),
    "text": ("hello", {}, "no tokenizer"),
    "stop": (IDS, {"stop": ["x"]}, "stop"),
    "count": (IDS, {"max_new_tokens": -1}, "max_new_tokens: -1"),
    "temperature": (IDS, {"temperature": -0.5}, "temperature: -0.5"),
    "nan": (IDS, {"temperature": math.nan}, "temperature"),
    "top-k": (IDS, {"top_k": -1}, "top_k: -1"),
    "top-p": (IDS, {"top_p": 0.0}, "top_p: 0.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_request_that_cannot_be_is_refused_at_once_and_the_model_stays_usable(case: str, tiny: CompiledModel) -> None:
    prompt, settings, words = BAD[case]
    for ask in (tiny.generate, tiny.stream):
        with pytest.raises(AgentCompileError, match=words) as raised:
            ask(prompt, **settings)
        assert raised.value.hint
    assert len(one(tiny, IDS, max_new_tokens=2, ignore_eos=True).tokens) == 2


def test_a_second_thread_is_refused_while_one_generates(tiny: CompiledModel) -> None:
    stream = tiny.stream(IDS, max_new_tokens=30, ignore_eos=True)
    next(stream)
    refused: list[str] = []

    def second() -> None:
        try:
            tiny.generate(IDS, max_new_tokens=2)
        except AgentCompileError as error:
            refused.append(error.message)

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(30)
    stream.close()  # type: ignore[attr-defined]
    assert refused == ["this model is already generating"]


def test_a_stream_that_was_left_early_leaves_the_model_usable(tiny: CompiledModel) -> None:
    expected = one(tiny, IDS, max_new_tokens=12, ignore_eos=True).tokens
    for piece in tiny.stream([9] * 20, max_new_tokens=20, ignore_eos=True):
        assert piece.tokens
        break
    assert one(tiny, IDS, max_new_tokens=12, ignore_eos=True).tokens == expected


def test_what_was_generated_before_does_not_show(tiny: CompiledModel) -> None:
    expected = one(tiny, IDS, max_new_tokens=12, ignore_eos=True).tokens
    one(tiny, [3 + i for i in range(40)], max_new_tokens=8, ignore_eos=True)
    assert one(tiny, IDS, max_new_tokens=12, ignore_eos=True).tokens == expected


def test_how_many_threads_run_a_prompt_changes_no_bit(sample: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that fewer may where other processes want the cores."""
    before, found = torch.get_num_threads(), []
    monkeypatch.setattr("agentcompile.runtime.openmp.others_running", lambda: 0)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append([sample.prefill(IDS * repeats) for repeats in (1, 4, 12)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_two_models_of_one_process_do_not_disturb_each_other(
    warm: Path, planted: Make, checkpoint: Make, tiny: CompiledModel, sample: CompiledModel
) -> None:
    twin = load(warm, planted("tiny-llama", "fp32"), checkpoint("tiny-llama", "fp32"), CONTEXT)
    asked: list[tuple[CompiledModel, list[int], int]] = [(tiny, IDS, 24), (twin, IDS[::-1], 24), (sample, IDS, 24)]
    alone = [
        one(model, ids, max_new_tokens=count, ignore_eos=True, logprobs=True).tokens for model, ids, count in asked
    ]
    streams = [model.stream(ids, max_new_tokens=count, ignore_eos=True, logprobs=True) for model, ids, count in asked]
    assert _interleaved(streams) == alone


def test_two_models_generate_in_two_threads_at_once(
    warm: Path, planted: Make, checkpoint: Make, tiny: CompiledModel
) -> None:
    twin = load(warm, planted("tiny-llama", "fp32"), checkpoint("tiny-llama", "fp32"), CONTEXT)
    expected = one(tiny, IDS, max_new_tokens=30, ignore_eos=True).tokens
    found: dict[int, list[tuple[int, ...]]] = {0: [], 1: []}

    def work(at: int, model: CompiledModel) -> None:
        for _ in range(10):
            found[at].append(one(model, IDS, max_new_tokens=30, ignore_eos=True).tokens)

    threads = [threading.Thread(target=work, args=item) for item in enumerate((tiny, twin))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {0: [expected] * 10, 1: [expected] * 10}


def _interleaved(streams: list[Iterator[Any]]) -> list[tuple[int, ...]]:
    """One piece of each in turn, until all have ended."""
    made: list[list[int]] = [[] for _ in streams]
    running = set(range(len(streams)))
    while running:
        for at in sorted(running):
            piece = next(streams[at], None)
            if piece is None:
                running.discard(at)
            else:
                made[at] += piece.tokens
    return [tuple(tokens) for tokens in made]


def test_a_base_model_has_no_chat_template_and_says_so(sample: CompiledModel) -> None:
    assert sample.tokenizer is not None
    with pytest.raises(AgentCompileError, match="no chat template") as raised:
        sample.tokenizer.template([{"role": "user", "content": "hello"}])
    assert raised.value.hint
