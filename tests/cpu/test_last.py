"""The end of a chunk for the token whose logits are wanted: which calls, and that they make the same logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.capture import Captured
from agentcompile.capture.chunked import at_tokens
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import Graph
from agentcompile.ir.program import Program, TorchCall
from agentcompile.ir.region import Regime, Region
from agentcompile.regions.partition import partition
from agentcompile.runtime.device_step import DeviceStep
from agentcompile.runtime.last import for_one
from agentcompile.runtime.memory import Memory
from tests.models import captures, tiny
from tests.models.lowered import clashes, in_pytorch
from tests.models.planned import plan_of

CONTEXT, TOKENS = 64, 16


def known(graph: Graph) -> dict[str, Region]:
    cut = partition(graph, Regime(phase="prefill", context=(1, CONTEXT)), tokens=TOKENS)
    return {region.id: region for region in cut.regions}


class Model:
    """A tiny model's chunk of `TOKENS` tokens, whole and with an end for one."""

    def __init__(self, path: Path, singly: bool) -> None:
        self.singly = singly
        self.captured: Captured = captures.captured(path, CONTEXT)
        self.graph = at_tokens(self.captured.prefill, TOKENS)
        alone = at_tokens(self.captured.prefill, 1)
        self.whole = in_pytorch(self.graph, CONTEXT, tokens=TOKENS, singly=singly)
        self.single = in_pytorch(alone, CONTEXT, tokens=1, singly=singly)
        self.short = for_one(self.whole, self.single, known(self.graph))
        self.memory = Memory([self.whole], Checkpoint.open(path).tensor, self.captured.constants)

    def logits(self, program: Program, ids: list[int], row: int) -> torch.Tensor:
        tokens = torch.tensor(ids + [0] * (TOKENS - len(ids)))
        fed = tokens, torch.arange(TOKENS)
        step = DeviceStep(program, self.memory, {}, overlap=False, fed=fed, row=torch.tensor([row]))
        step.enqueue()
        return step.logits.float().clone()


@pytest.fixture(scope="module", params=[(kind, singly) for kind in ("qwen3", "llama") for singly in (False, True)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    kind, singly = request.param
    return Model(tiny.write(kind, tmp_path_factory.mktemp(kind)), singly)


@pytest.mark.parametrize("count", [TOKENS, TOKENS - 1, 5, 1])
def test_the_logits_of_any_token_are_those_of_a_chunk_that_ends_with_it(model: Model, count: int) -> None:
    ids = [(5 * i + 3) % 90 for i in range(count)]
    found = model.logits(model.short, ids, count - 1)
    exact = at_tokens(model.captured.prefill, count)
    whole = in_pytorch(exact, CONTEXT, tokens=count)
    fed = torch.tensor(ids), torch.arange(count)
    step = DeviceStep(whole, model.memory, {}, overlap=False, fed=fed)
    step.enqueue()
    expected = step.logits.float()
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_only_what_follows_the_last_attention_is_for_one(model: Model) -> None:
    rows = [call for call in model.short.calls if isinstance(call, TorchCall) and "row" in call.uses]
    # What attention adds to the residual stream, and the stream; or their sum, where one region makes it.
    assert len(rows) == (2 if model.singly else 1)
    assert len(model.short.calls) == len(model.whole.calls) + len(rows)
    first = model.short.calls.index(rows[0])
    assert model.short.calls[:first] == model.whole.calls[:first]
    last = [at for at, call in enumerate(model.whole.calls) if any(name.startswith("v.") for name in call.uses)][-1]
    assert first - last in (1, 2, 3)  # attention's own region, and the product behind it
    named = {buffer.name: buffer for buffer in model.short.buffers}
    for call in model.short.calls[first + len(rows) :]:
        assert all(named[name].shape[:2] == (1, 1) for name in call.uses if named[name].role == "activation")
    assert not clashes(model.short)
    assert model.short.arena_bytes <= model.whole.arena_bytes


def test_plans_that_differ_stay_whole(model: Model) -> None:
    regions = known(model.graph)
    longer = replace(model.single, calls=(*model.single.calls, model.single.calls[-1]))
    assert for_one(model.whole, longer, regions) is model.whole
    assert for_one(model.single, model.single, regions) is model.single
    assert for_one(model.whole, model.single, {}) is model.whole


def test_a_plan_of_kernels_ends_with_the_kernels_of_one_token(tmp_path: Path) -> None:
    found = plan_of(captures.captured(tiny.write("qwen3", tmp_path), 256), 256)
    program, single = found.at(64).program, found.at(1).program
    named = {buffer.name: buffer for buffer in program.buffers}
    assert named["row"].role == "row"
    gathers = [at for at, call in enumerate(program.calls) if "row" in call.uses]
    rest = program.calls[gathers[-1] + 1 :]
    assert [call.kind for call in rest] == [call.kind for call in single.calls[-len(rest) :]]
    assert not any(getattr(call, "overlaps", False) for call in rest)
    assert not clashes(program)
