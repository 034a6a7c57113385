"""Prompts side by side: each gets what it gets alone, whoever sits beside it and whenever they come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcompile.capture.batched import batched
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.model import ModelInfo
from agentcompile.ir.program import Program
from agentcompile.runtime.batches import Batches
from agentcompile.runtime.device_step import DeviceStep
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.model import CompiledModel, Completion
from agentcompile.runtime.sampling import Sampling, choose
from agentcompile.runtime.step import HostStep
from tests.models import captures, tiny
from tests.models.lowered import in_pytorch

CONTEXT = 40
BATCHES = (2, 4)
PROMPTS = [[3, 17, 5, 60, 2, 9, 33], [8], [71, 4, 4], [50] * 20, [9, 3], [44, 12, 6, 7], [3, 17, 5, 60, 2, 9, 33]]


@dataclass
class Running:
    """What a row was given."""

    sampling: Sampling
    first: int
    logprobs: bool


class HostSteps:
    """Steps of several sequences on the host, one after another, and every token chosen there."""

    def __init__(self, program: Program, memory: Memory) -> None:
        self.rows, self.calls = program.batch, list[tuple[int, int]]()
        self._memory, self._step = memory, DeviceStep(program, memory, {}, overlap=False)
        self._running: dict[int, Running] = {}

    def add(self, row: int, token: int, position: int, sampling: Sampling, *, first: int, logprobs: bool) -> None:
        assert row not in self._running
        self._memory.tokens[row], self._memory.positions[row] = token, position
        self._running[row] = Running(sampling, first, logprobs)

    def remove(self, row: int) -> None:
        self._memory.positions[row] = 0
        self._running.pop(row, None)

    def steps(self, count: int, firsts: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[float]]]:
        assert {row for row, _ in firsts} == set(self._running)
        self.calls.append((self.rows, len(firsts)))
        made: dict[int, tuple[list[int], list[float]]] = {row: ([], []) for row, _ in firsts}
        for row, at in firsts:
            assert int(self._memory.positions[row]) == at
        for _ in range(count):
            self._step.enqueue()
            for row, told in self._running.items():
                position = int(self._memory.positions[row])
                logits = self._step.logits[row]
                token = choose(logits, told.sampling, position - told.first)
                made[row][0].append(token)
                made[row][1].append(float(torch.log_softmax(logits.double(), 0)[token]))
                self._memory.tokens[row], self._memory.positions[row] = token, position + 1
        return [made[row] for row, _ in firsts]


class Rig:
    """A tiny model that runs prompts alone, and one that runs them side by side."""

    def __init__(self, path: Path, eos: tuple[int, ...]) -> None:
        captured = captures.captured(path, CONTEXT)
        info = ModelInfo(
            **{name: getattr(captured.info, name) for name in ModelInfo.__dataclass_fields__} | {"eos": eos}
        )
        nothing: Any = None
        read, own = (
            Checkpoint.open(path).tensor,
            [in_pytorch(graph, CONTEXT) for graph in (captured.decode, captured.prefill)],
        )
        more = [in_pytorch(batched(captured.decode, batch), CONTEXT, batch=batch) for batch in BATCHES]
        self.memory = Memory([*own, *more], read, captured.constants)
        self.batched = [HostSteps(one, self.memory) for one in more]

        def model(memory: Memory, beside: Any) -> CompiledModel:
            decode = HostStep(own[0], memory, nothing, {})
            prefill = HostStep(own[1], memory, nothing, {}, capacity=16)
            return CompiledModel(info, decode, prefill, memory, tokenizer=None, checkpoint=path, beside=beside)

        self.alone = model(Memory(own, read, captured.constants), None)
        self.together = model(self.memory, lambda prefill: Batches(info, self.batched, prefill, self.memory, None))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("qwen3", tmp_path_factory.mktemp("tiny"), dtype=torch.float32)


@pytest.fixture(scope="module")
def plain(path: Path) -> Rig:
    return Rig(path, eos=())


@pytest.fixture
def rig(plain: Rig) -> Iterator[Rig]:
    for steps in plain.batched:
        steps.calls.clear()
    yield plain
    assert all(int(position) == 0 for position in plain.memory.positions[1:])


def each(model: CompiledModel, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
    made = model.generate(prompts, **settings)
    assert isinstance(made, list)
    return made


def same(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [(one.tokens, one.finish, one.prompt_tokens) for one in found] == [
        (one.tokens, one.finish, one.prompt_tokens) for one in expected
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "top_k": 30, "seed": 5}], ids=["greedy", "drawn"])
def test_prompts_of_any_length_get_what_they_get_alone(rig: Rig, count: int, settings: dict[str, Any]) -> None:
    prompts = PROMPTS[:count]
    found = each(rig.together, prompts, max_new_tokens=12, **settings)
    same(found, each(rig.alone, prompts, max_new_tokens=12, **settings))
    assert rig.batched[0].calls or rig.batched[1].calls


def test_sequences_that_end_leave_their_rows_to_others_and_few_move_together(path: Path, plain: Rig) -> None:
    often = [token for one in each(plain.alone, PROMPTS, max_new_tokens=15) for token in one.tokens[2:9:3]]
    rig = Rig(path, eos=tuple(often[:4]))
    found = each(rig.together, PROMPTS, max_new_tokens=15)
    same(found, each(rig.alone, PROMPTS, max_new_tokens=15))
    assert {one.finish for one in found} >= {"eos"}
    assert len({len(one.tokens) for one in found}) > 2
    rows = [rows for made in rig.batched for rows, _ in made.calls]
    assert set(rows) == {2, 4}


def test_a_prompt_that_fills_the_cache_ends_there_and_leaves_its_neighbours_alone(rig: Rig) -> None:
    prompts = [PROMPTS[0], [7] * (CONTEXT - 3), [11] * CONTEXT, [6]]
    found = each(rig.together, prompts, max_new_tokens=20)
    same(found, each(rig.alone, prompts, max_new_tokens=20))
    assert [one.finish for one in found] == ["length", "context", "context", "length"]


def test_log_probabilities_are_those_of_each_alone(rig: Rig) -> None:
    found = each(rig.together, PROMPTS[:3], max_new_tokens=6, logprobs=True)
    for one, other in zip(found, each(rig.alone, PROMPTS[:3], max_new_tokens=6, logprobs=True), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert len(one.logprobs) == len(one.tokens) == 6


def test_nothing_is_made_where_nothing_is_asked_for(rig: Rig) -> None:
    found = each(rig.together, PROMPTS[:3], max_new_tokens=0)
    assert [(one.tokens, one.finish) for one in found] == [((), "length")] * 3
    assert [one.finish for one in each(rig.together, PROMPTS[:3], max_new_tokens=1)] == ["length"] * 3


def test_one_prompt_runs_alone_and_a_list_after_it_is_right(rig: Rig) -> None:
    alone = rig.together.generate(PROMPTS[0], max_new_tokens=5)
    assert isinstance(alone, Completion)
    assert not rig.batched[0].calls
    same(each(rig.together, PROMPTS[:2], max_new_tokens=5), each(rig.alone, PROMPTS[:2], max_new_tokens=5))
    assert each(rig.together, PROMPTS[:1], max_new_tokens=5)[0].tokens == alone.tokens
