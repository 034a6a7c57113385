"""A lock of many plans run on a device: by context, by batch, prompts of every length; nothing in it was timed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agentcompile.bench.models.presets import materialise

from agentcompile.backends.cuda import CUDA
from agentcompile.capture import capture
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.replay.load import replay_lock
from agentcompile.runtime.model import CompiledModel, Completion
from tests.cpu import flows
from tests.models.tiny import Stepper

pytestmark = pytest.mark.gpu

CONTEXT = 96
ENDS = (16, 40)
BATCHES = (1, 2, 4)
PROMPTS = [[3, 77, 12, 205, 9, 33], [8], [150, 8, 41], [50] * 30, [9, 3], [44, 12, 6, 7], [1] * 13]


@pytest.fixture(scope="module", params=["tiny-qwen3 bf16", "tiny-llama fp16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, dtype = request.param.split()
    home = tmp_path_factory.mktemp(name)
    materialise(name, home / "model", dtype=dtype)
    return home


@pytest.fixture(scope="module")
def lock(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CUDA, "context_ends", ENDS)
        out = folder / "many.lock.toml"
        return flows.write(folder, folder / "model", CONTEXT, out, target="cuda:0", batch=BATCHES)


@pytest.fixture(scope="module")
def model(folder: Path, lock: Path) -> CompiledModel:
    options = Options(model=str(folder / "model"), context=CONTEXT, home=str(folder), target="cuda:0")
    return replay_lock(lock, options)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Stepper:
    return Stepper(capture(folder / "model", context=CONTEXT), "float64")


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    wide = expected.to(found.device)
    assert float((found.double() - wide).norm() / wide.norm()) < 0.04


def test_the_lock_has_a_plan_for_every_range_and_batch_and_kernels_in_the_prompt(lock: Path) -> None:
    plans = read_lock(lock).plan
    assert [(plan.batch, plan.context) for plan in plans if plan.phase == "decode"] == [
        (1, (1, 16)),
        (1, (17, 40)),
        (1, (41, CONTEXT)),
        (2, (1, CONTEXT)),
        (4, (1, CONTEXT)),
    ]
    (prefill,) = (plan for plan in plans if plan.phase == "prefill")
    kernels = {choice.name.partition("@")[0] for choice in prefill.choices if choice.use == "kernel"}
    assert kernels & {"qknorm-rope-append", "rope-append"}
    assert "add-rmsnorm" in kernels


def test_steps_at_every_context_are_the_references(model: CompiledModel, reference: Stepper) -> None:
    ids = [(7 * i + 3) % 250 for i in range(CONTEXT)]
    expected = reference.logits(torch.tensor(ids), ())
    found = model.logits(ids)
    for position in range(CONTEXT):
        close(found[position], expected[position])


@pytest.mark.parametrize("count", [1, 5, 8, 13, 16, 31, 32, 64, 65, CONTEXT - 1, CONTEXT])
def test_prompts_of_every_length_are_the_references(model: CompiledModel, reference: Stepper, count: int) -> None:
    ids = [(11 * i + 5) % 250 for i in range(count)]
    expected = reference.logits(torch.tensor(ids), (count,))
    first, again = model.prefill(ids), model.prefill(ids)
    close(first, expected[count - 1])
    assert torch.equal(first, again)


def each(model: CompiledModel, prompts: list[list[int]], **settings: object) -> list[Completion]:
    made = model.generate(prompts, ignore_eos=True, **settings)  # type: ignore[arg-type]
    assert isinstance(made, list)
    return made


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_sequences_side_by_side_follow_their_own_logits(model: CompiledModel, count: int) -> None:
    prompts = PROMPTS[:count]
    made = each(model, prompts, max_new_tokens=40)
    assert [one.tokens for one in each(model, prompts, max_new_tokens=40)] == [one.tokens for one in made]
    for ids, one in zip(prompts, made, strict=True):
        assert len(one.tokens) == 40
        logits = model.logits([*ids, *one.tokens[:-1]])[len(ids) - 1 :].float()
        taken = logits[torch.arange(40), torch.tensor(one.tokens, device=logits.device)]
        # Kernels for several sequences add up in another order: a near equal may be taken instead.
        assert float((logits.amax(-1) - taken).max()) < 0.05 * float(logits.std())


def test_draws_side_by_side_are_as_seeded_as_alone(model: CompiledModel) -> None:
    settings = {"max_new_tokens": 30, "temperature": 1.2, "top_k": 40, "logprobs": True}
    one, two = (each(model, PROMPTS[:4], seed=seed, **settings) for seed in (1, 2))
    assert [made.tokens for made in one] == [made.tokens for made in each(model, PROMPTS[:4], seed=1, **settings)]
    assert [made.tokens for made in one] != [made.tokens for made in two]
    for ids, made in zip(PROMPTS, one, strict=False):
        rows = torch.log_softmax(model.logits([*ids, *made.tokens[:-1]])[len(ids) - 1 :].double(), dim=-1)
        expected = rows[torch.arange(30), torch.tensor(made.tokens, device=rows.device)]
        assert made.logprobs == pytest.approx(expected.tolist(), abs=0.1)


def test_a_sequence_that_fills_its_cache_leaves_its_neighbours_alone(model: CompiledModel) -> None:
    prompts = [PROMPTS[0], [7] * (CONTEXT - 3), [11] * CONTEXT, PROMPTS[1]]
    made = each(model, prompts, max_new_tokens=60)
    assert [one.finish for one in made] == ["length", "context", "context", "length"]
    calm = each(model, [PROMPTS[0], PROMPTS[1]], max_new_tokens=60)
    assert [len(one.tokens) for one in made] == [60, 4, 1, 60]
    assert [len(one.tokens) for one in calm] == [60, 60]


def test_one_prompt_after_a_batch_is_what_it_was_before(model: CompiledModel) -> None:
    before = model.generate(PROMPTS[0], max_new_tokens=20, ignore_eos=True)
    each(model, PROMPTS, max_new_tokens=25)
    after = model.generate(PROMPTS[0], max_new_tokens=20, ignore_eos=True)
    assert isinstance(before, Completion)
    assert isinstance(after, Completion)
    assert before.tokens == after.tokens
