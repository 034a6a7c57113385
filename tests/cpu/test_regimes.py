"""Several decode plans in one lock: every step runs where its plan was made for, and text does not show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcompile.backends.cpu import CPU
from agentcompile.errors import AgentCompileError
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.order import ordered
from agentcompile.lockfile.schema import Lock
from agentcompile.replay.load import replay_lock
from agentcompile.runtime.model import CompiledModel, Completion
from agentcompile.runtime.native import DecodedTokens
from agentcompile.runtime.regimes import Regimes
from agentcompile.tuning.partitions import regimes
from tests.cpu import flows
from tests.cpu.conftest import SAMPLE_CONTEXT

Make = Callable[[str, str], Path]
ENDS = (12, 40)
PROMPT = "def add(a, b):\n"


@pytest.fixture(scope="module")
def parts(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lock of the sample whose decode plans end at `ENDS` and at the end of the cache."""
    out = tmp_path_factory.mktemp("regimes") / "agentcompile.lock.toml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CPU, "context_ends", ENDS)
        return flows.write(warm, flows.SAMPLE, SAMPLE_CONTEXT, out)


def load(warm: Path, lock: Path) -> CompiledModel:
    return replay_lock(lock, flows.options(warm, flows.SAMPLE, SAMPLE_CONTEXT))


@pytest.fixture(scope="module")
def several(warm: Path, parts: Path) -> CompiledModel:
    return load(warm, parts)


@pytest.fixture(scope="module")
def single(warm: Path, planted: Make) -> CompiledModel:
    return load(warm, planted("sample", "bf16"))


def one(model: CompiledModel, prompt: Any, **settings: Any) -> Completion:
    made = model.generate(prompt, **settings)
    assert isinstance(made, Completion)
    return made


def test_a_lock_holds_a_plan_for_every_range_and_regions_without_a_state_once(parts: Path) -> None:
    lock = read_lock(parts)
    decode = [plan for plan in lock.plan if plan.phase == "decode"]
    assert [plan.context for plan in decode] == [(1, 12), (13, 40), (41, SAMPLE_CONTEXT)]
    ids = [{choice.region: choice.name for choice in plan.choices} for plan in decode]
    shared = set(ids[0]) & set(ids[1]) & set(ids[2])
    assert shared
    assert all("attention" not in ids[0][region] for region in shared)
    for own in ids:
        assert {name.partition("@")[0] for region, name in own.items() if region not in shared} == {
            "qknorm-rope-attention-decode"
        }


def test_text_goes_on_over_the_ends_of_ranges(several: CompiledModel, single: CompiledModel) -> None:
    expected = one(single, PROMPT, max_new_tokens=60)
    assert len(expected.tokens) + expected.prompt_tokens > ENDS[-1]
    assert one(several, PROMPT, max_new_tokens=60).tokens == expected.tokens
    pieces = [piece.tokens for piece in several.stream(PROMPT, max_new_tokens=60)]
    assert tuple(token for tokens in pieces for token in tokens) == expected.tokens


def test_a_sampled_text_draws_the_same_over_the_ends_of_ranges(several: CompiledModel, single: CompiledModel) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 50, "temperature": 0.8, "top_p": 0.9, "seed": 4}
    assert one(several, PROMPT, **settings).tokens == one(single, PROMPT, **settings).tokens


def test_logits_of_every_position_are_those_of_one_plan(several: CompiledModel, single: CompiledModel) -> None:
    ids = list(range(300, 300 + ENDS[-1] + 3))
    found, expected = several.logits(ids), single.logits(ids)
    assert torch.allclose(found, expected, atol=0.15, rtol=0.05)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_the_cache_ends_where_the_last_range_does(several: CompiledModel) -> None:
    made = one(several, [5] * (SAMPLE_CONTEXT - 2), max_new_tokens=40, ignore_eos=True)
    assert made.finish == "context"
    assert len(made.tokens) == 3


class Fake:
    """A loop that makes tokens equal to their position up to its end, and notes where it was called."""

    def __init__(self, name: str, memory: Any, end: int, called: list[tuple[str, int, int]], stop: int = -1) -> None:
        self.name, self.memory, self.end, self.called, self.stop = name, memory, end, called, stop

    def begin(self, sampling: Any, *, first: int, logprobs: bool) -> bool:
        return self.name != "host"

    def decoder(self, stop_ids: Any, context: int) -> Any:
        return None if self.name == "python" else Fake(self.name, self.memory, context, self.called, *stop_ids)

    def again(self) -> Any:
        return self.name

    def draw(self, logits: Any, at: int, *, more: bool) -> DecodedTokens | None:
        return DecodedTokens(tokens=(at,), reason="limit", logprobs=(float(self.end),))

    def steps(self, count: int, *, at: int, more: bool) -> DecodedTokens:
        first = int(self.memory.position[0])
        assert first == at
        self.called.append((self.name, first, count))
        made = list(range(first, min(first + count, self.end)))
        if self.stop in made:
            made = made[: made.index(self.stop) + 1]
            self.memory.position[0] = first + len(made)
            return DecodedTokens(tokens=tuple(made), reason="stop")
        self.memory.position[0] = first + len(made)
        return DecodedTokens(tokens=tuple(made), reason="context" if first + len(made) >= self.end else "limit")


class Cache:
    """Token and position, as memory has them."""

    def __init__(self) -> None:
        self.token, self.position = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self.stood = 0

    def stand(self, token: int, position: int) -> None:
        self.token[0], self.position[0] = token, position
        self.stood = position


def over(*names: str) -> tuple[Regimes, Any, list[tuple[str, int, int]]]:
    memory: Any = Cache()
    called: list[tuple[str, int, int]] = []
    steps: list[Any] = [(10 * (i + 1), Fake(name, memory, 10 * (i + 1), called)) for i, name in enumerate(names)]
    return Regimes(steps, memory), memory, called


@pytest.mark.parametrize(("position", "name"), [(0, "a"), (9, "a"), (10, "b"), (19, "b"), (20, "c"), (29, "c")])
def test_a_step_runs_where_its_position_is_served(position: int, name: str) -> None:
    found, _, _ = over("a", "b", "c")
    found.rewind(0, position)
    assert found.again() == name


@pytest.mark.parametrize(
    ("position", "count", "made", "reason", "calls"),
    [
        (7, 3, (7, 8, 9), "limit", [("a", 7, 3)]),
        (7, 4, (7, 8, 9, 10), "limit", [("a", 7, 4), ("b", 10, 1)]),
        (7, 99, tuple(range(7, 30)), "context", [("a", 7, 99), ("b", 10, 96), ("c", 20, 86)]),
        (30, 5, (), "context", []),
        (12, 99, tuple(range(12, 25)), "context", [("b", 12, 99), ("c", 20, 91)]),
    ],
)
def test_loops_follow_one_another(
    position: int, count: int, made: tuple[int, ...], reason: str, calls: list[tuple[str, int, int]]
) -> None:
    found, _, called = over("a", "b", "c")
    loop = found.decoder((), 25 if position == 12 else 30)
    assert loop is not None
    found.rewind(0, position)
    result = loop.steps(count, at=position, more=False)
    assert (result.tokens, result.reason) == (made, reason)
    assert called == calls


def test_a_stop_ends_the_loops_in_the_range_where_it_is_found() -> None:
    found, memory, called = over("a", "b", "c")
    loop = found.decoder((14,), 30)
    assert loop is not None
    found.rewind(0, 8)
    result = loop.steps(20, at=8, more=True)
    assert (result.tokens[-1], result.reason, int(memory.position[0])) == (14, "stop", 15)
    assert [name for name, _, _ in called] == ["a", "b"]


@pytest.mark.parametrize(("at", "end"), [(0, 10), (9, 10), (10, 20), (29, 30)])
def test_a_prompts_last_logits_are_for_the_loop_that_serves_its_last_token(at: int, end: int) -> None:
    loop = over("a", "b", "c")[0].decoder((), 30)
    assert loop is not None
    made = loop.draw(torch.empty(0), at, more=False)
    assert made is not None
    assert (made.tokens, made.logprobs) == ((at,), (end,))


def test_loops_need_every_step_to_do_without_python_and_to_choose_so() -> None:
    assert over("a", "python")[0].decoder((), 20) is None
    loop = over("a", "host")[0].decoder((), 20)
    assert loop is not None
    anything: Any = None
    assert not loop.begin(anything, first=0, logprobs=False)


@pytest.mark.parametrize(
    ("context", "ends"),
    [(2048, [512, 2048]), (600, [600]), (769, [512, 769]), (40960, [512, 2048, 8192, 40960]), (64, [64])],
)
def test_ranges_of_context_on_a_gpu(context: int, ends: list[int]) -> None:
    found = regimes(context, "cuda", (1, 8, 4))
    alone = [regime.context for regime in found if regime.batch == 1]
    assert [last for _, last in alone] == ends
    assert [first for first, _ in alone] == [1, *(end + 1 for end in ends[:-1])]
    assert [(regime.batch, regime.context) for regime in found[len(alone) :]] == [(4, (1, context)), (8, (1, context))]


def test_one_range_serves_a_cpu() -> None:
    assert [regime.context for regime in regimes(40960, "cpu")] == [(1, 40960)]


def test_several_sequences_are_refused_on_a_cpu() -> None:
    with pytest.raises(AgentCompileError, match="--batch 1,4") as refused:
        regimes(2048, "cpu", (1, 4))
    assert "one after another" in refused.value.hint


def _gap(lock: Lock) -> Lock:
    return replace(lock, plan=tuple(plan for plan in lock.plan if plan.context != (13, 40)))


def _twice(lock: Lock) -> Lock:
    return replace(lock, plan=(lock.plan[0], *lock.plan))


def _short(lock: Lock) -> Lock:
    return replace(lock, plan=tuple(plan for plan in lock.plan if plan.phase != "decode" or plan.context[0] != 41))


def _no_prefill(lock: Lock) -> Lock:
    return replace(lock, plan=tuple(plan for plan in lock.plan if plan.phase == "decode"))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_gap, "reach 12 tokens of context, the next serves 41"),
        (_twice, "reach 12 tokens of context, the next serves 1 "),
        (_short, f"reach 40 of {SAMPLE_CONTEXT} tokens"),
        (_no_prefill, "0 plans for prefill"),
    ],
)
def test_a_lock_that_leaves_a_length_out_is_refused(parts: Path, spoil: Callable[[Lock], Lock], text: str) -> None:
    with pytest.raises(AgentCompileError, match=text) as refused:
        ordered(parts, spoil(read_lock(parts)))
    assert refused.value.hint == "compile again"
