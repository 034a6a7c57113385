"""How PyTorch's compiled arms draw: the distribution that is asked for, and the same decoder behind every arm."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from agentcompile.bench.harness.drawing import chooser, draw
from agentcompile.bench.harness.engines import Eager
from agentcompile.bench.harness.rates import agrees
from agentcompile.bench.harness.serving import LiveArm, own_command

from agentcompile.runtime.sampling import Sampling, probabilities
from tests.models.tiny import write

DRAWS = 4000
SAMPLING = {"temperature": 0.8, "top_p": 0.5, "seed": 3}
ROOMY = 0.6
"""Of the mass, what a token of the nucleus may lie within when its logits were rounded."""


def tally(logits: torch.Tensor, temperature: float, top_p: float) -> Counter[int]:
    torch.manual_seed(5)
    return Counter(draw(logits.expand(DRAWS, -1), temperature, top_p)[:, 0].tolist())


@pytest.mark.parametrize(("temperature", "top_p"), [(0.8, 0.95), (1.5, 0.5), (1.0, 1.0), (0.3, 0.9)])
def test_tokens_are_drawn_with_the_probabilities_that_sorting_gives(temperature: float, top_p: float) -> None:
    logits = 2 * torch.randn(1, 60, generator=torch.Generator().manual_seed(7))
    ids, weights = probabilities(logits[0], Sampling(temperature=temperature, top_p=top_p))
    found = tally(logits, temperature, top_p)
    assert set(found) <= set(ids.tolist())
    expected = [(int(token), DRAWS * float(weight)) for token, weight in zip(ids, weights, strict=True)]
    chi = sum((found[token] - count) ** 2 / count for token, count in expected)
    # Six deviations of the statistic: a wrong set, or draws without the temperature, are hundreds away.
    assert chi <= len(expected) - 1 + 6 * math.sqrt(2 * len(expected))


def test_the_likeliest_token_is_kept_however_little_is_asked_for() -> None:
    assert set(tally(torch.tensor([[0.0, 1.0, 0.5]]), 1.0, 1e-6)) == {1}


def test_tokens_of_no_probability_are_never_drawn() -> None:
    assert set(tally(torch.tensor([[-math.inf, 0.0, -math.inf, 0.0]]), 1.0, 1.0)) == {1, 3}


def test_without_sampling_the_likeliest_token_is_chosen() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert chooser(None)(logits).tolist() == [[1]]
    torch.manual_seed(0)
    drawn = chooser({"temperature": 5.0, "top_p": 1.0})(logits.expand(200, -1))
    assert {token for (token,) in drawn.tolist()} == {0, 1, 2}


def test_a_draw_is_one_graph_for_a_compiler() -> None:
    choose = torch.compile(chooser(SAMPLING), fullgraph=True, dynamic=False, backend="eager")
    assert choose(torch.tensor([[0.0, 90.0, 1.0]])).tolist() == [[1]]


@pytest.mark.parametrize("name", ["gpt-fast", "hf-compile"])
def test_an_arm_makes_the_tokens_of_fp32_and_draws_from_what_fp32_finds_likely(name: str, tmp_path: Path) -> None:
    """What is compiled is run as it is written: compiling it takes a minute, and is no part of what is asked here."""
    ids, new = [3, 1, 4, 1, 5, 9], 12
    model = write("qwen3", tmp_path / "model", dtype=torch.bfloat16)
    request = {
        "arm": name, "model": str(model), "threads": 1, "device": "cpu", "context": 32, "prompts": [len(ids)],
        "sampling": SAMPLING,
    }  # fmt: skip
    arm = LiveArm(name, own_command("harness.engines", {"TORCHDYNAMO_DISABLE": "1"}), tmp_path / "arm.log")
    timed = {"do": "generate", "ids": ids, "new": new, "warm": 4, "least_s": 0.0}
    try:
        arm.load(request, 300)
        tops = arm.ask({"do": "tops", "ids": ids, "new": new, "count": 5}, 60)
        plain = arm.ask(timed, 60)
        drawn, other = (arm.ask({**timed, "sampling": {**SAMPLING, "seed": seed}}, 60) for seed in (3, 4))
    finally:
        arm.close()
    reference = Eager({**request, "dtype": "fp32", "threads": torch.get_num_threads()})
    assert agrees(reference.tops(ids, new, 5), (tops["tokens"], tops["tops"])) == ""  # type: ignore[arg-type]
    assert plain["tokens"] == tops["tokens"]
    assert len({tuple(tops["tokens"]), tuple(drawn["tokens"]), tuple(other["tokens"])}) == 3
    # Each drawn token is in the nucleus of the sequence that it was drawn in, by fp32's logits, with room for bf16.
    with torch.inference_mode():
        logits = reference._model(torch.tensor([[*ids, *drawn["tokens"]]])).logits[0, len(ids) - 1 : -1]
    for token, row in zip(drawn["tokens"], logits, strict=True):
        allowed, _ = probabilities(row, Sampling(temperature=SAMPLING["temperature"], top_p=ROOMY))
        assert token in allowed.tolist()
