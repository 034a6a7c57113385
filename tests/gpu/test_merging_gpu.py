"""What a device does in other ways than the host: two products as one, results turned, the largest of many logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentcompile.backends.cuda import CUDA
from agentcompile.capture import capture
from agentcompile.checkpoint import Checkpoint
from agentcompile.evaluation.machine import this_machine
from agentcompile.evaluation.step_clock import binaries
from agentcompile.ops.attention import tokens_first
from agentcompile.options import Options
from agentcompile.runtime import device_step
from agentcompile.runtime.arena import Arena
from agentcompile.runtime.device_step import captured
from agentcompile.runtime.driver import Module
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.merging import _batched, _stepped
from agentcompile.runtime.sampling import Sampling, choose
from tests.gpu.conftest import CONTEXT
from tests.models.planned import plan_of

pytestmark = pytest.mark.gpu

TOKENS = 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "hidden", "columns"), [(8, 2048, 512), (128, 2048, 512), (500, 1000, 264), (64, 64, 8192)]
)
def test_two_products_in_one_arena_are_two_products(rows: int, hidden: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    weights = Arena(4 * columns * hidden * 2 + 4096, "cuda")
    one, _, other = (weights.take((columns, hidden), dtype).normal_(std=hidden**-0.5) for _ in range(3))
    results = Arena(3 * rows * columns * 2 + 4096, "cuda")
    made, between, second = (results.take((1, rows, columns), dtype).fill_(torch.nan) for _ in range(3))
    x = torch.randn(1, rows, hidden, device="cuda").to(dtype)
    w, y = _stepped(one, other), _stepped(made, second)
    assert w is not None
    assert y is not None

    def both() -> None:
        _batched({"x": x}, "x", w.transpose(1, 2), y)

    graph = captured(both)
    made.fill_(torch.nan)
    graph.replay()
    for found, weight in ((made, one), (second, other)):
        expected = x.double() @ weight.double().t()
        assert float((found - expected).norm() / expected.norm()) < 0.01
    assert between.isnan().all()


def test_a_chunk_of_merged_products_is_the_chunk_of_single_ones(
    settings: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, path = this_machine(settings, kind="cuda"), Path(settings.model)
    found = capture(path, context=CONTEXT)
    chunk = plan_of(found, CONTEXT, products=False).at(TOKENS)
    sources = {job.source.digest: job.source for job in chunk.jobs if job.source.language != "library"}
    modules = {name: Module(Path(built.path)) for name, built in binaries(here, sources, sorted(sources)).items()}
    memory = Memory([chunk.program], Checkpoint.open(path).tensor, found.constants, "cuda")
    arena = Arena(2 * chunk.program.arena_bytes + (1 << 20), "cuda")
    made, pitches = [], []
    for blocks in (132, 0):
        monkeypatch.setattr(CUDA, "blocks_at_once", lambda *_, blocks=blocks: blocks)
        for state in memory.states():
            state.zero_()
        tokens, positions = 7 * torch.arange(TOKENS, device="cuda") % 90, torch.arange(TOKENS, device="cuda")
        step = device_step.DeviceStep(
            chunk.program, memory, modules, overlap=True, fed=(tokens, positions), row=positions[-1:],
            span=(0, TOKENS - 1), arena=arena,
        )  # fmt: skip
        graph = captured(step.enqueue)
        for state in memory.states():
            state.zero_()
        arena.view(0, (arena.nbytes,), torch.uint8).fill_(0xFF)  # as other lengths leave it
        graph.replay()
        made.append([step.logits.double(), *(state[:, :, :TOKENS].double() for state in memory.states())])
        pitches.append(sum(int(step.env[name]) > 0 for name in step.env if name.startswith("pitch#")))
    assert pitches == [1, 0]  # of two layers: in the first the angles are made between queries and keys
    for merged, single in zip(*made, strict=True):
        assert float((merged - single).norm() / single.norm()) < 0.02


@pytest.mark.parametrize(("heads", "tokens", "width"), [(32, 128, 64), (16, 3000, 128), (5, 7, 80)])
def test_a_turned_result_is_the_result(heads: int, tokens: int, width: int) -> None:
    made = torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16)
    found = tokens_first(made)
    assert torch.equal(found, made)
    assert found.transpose(1, 2).is_contiguous()
    assert tokens_first(found) is found


@pytest.mark.parametrize("vocab", [128256, 151936, 50257])
def test_the_greedy_token_is_the_first_of_the_largest(vocab: int) -> None:
    logits = torch.randn(vocab, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        first = int((logits == logits.max()).nonzero()[0])
        assert choose(logits, Sampling(), 0) == first
        logits[first] = -1.0
