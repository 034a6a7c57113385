"""Prompts on kernels: what a lock with them runs is what the checkpoint says, however a prompt is cut into chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.evaluation.chunk import at_length
from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.evaluation.step_clock import StepClock
from agentcompile.events import silent
from agentcompile.ir.program import NativeCall
from agentcompile.ir.template import COUNT
from agentcompile.ir.trial import Fallback
from agentcompile.lockfile.files import read_lock, write_lock
from agentcompile.measure import Timing
from agentcompile.replay.bind import bind
from agentcompile.replay.load import replay_lock
from agentcompile.replay.open import open_lock
from agentcompile.runtime import step
from agentcompile.runtime.model import CompiledModel
from agentcompile.runtime.sites import torch_site
from agentcompile.runtime.step import HostStep
from agentcompile.tuning.partitions import cut
from agentcompile.worker.activations import Windows
from agentcompile.worker.protocol import Feeding
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.models.tiny import Stepper

Make = Callable[[str, str], Path]
IDS = [int(i) for i in torch.randint(2, 500, (CONTEXT,), generator=torch.Generator().manual_seed(7))]
MODELS = [("tiny-qwen3", "bf16"), ("tiny-llama", "fp32")]
LENGTHS = (1, 2, 15, 16, 17, 33, CONTEXT - 1, CONTEXT)


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def lock(
    request: pytest.FixtureRequest, warm: Path, checkpoint: Make, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A lock whose prompts run on kernels, and its checkpoint."""
    out, model = tmp_path_factory.mktemp("prompts") / "p.lock.toml", checkpoint(*request.param)
    made = flows.plant(warm, model, CONTEXT, out, prompts=True)
    write_lock(out, made.seal())
    return out, model


@pytest.fixture(scope="module")
def opened(lock: tuple[Path, Path], warm: Path) -> CompiledModel:
    return replay_lock(lock[0], flows.options(warm, lock[1], CONTEXT))


def test_a_whole_chunk_is_one_list_of_launches(lock: tuple[Path, Path], warm: Path) -> None:
    program = open_lock(lock[0], flows.options(warm, lock[1], CONTEXT)).prefill
    assert program.native
    assert all(COUNT in call.pointers for call in program.calls if isinstance(call, NativeCall))
    kinds = {call.launch.entry for call in program.calls if isinstance(call, NativeCall)}
    assert {"attend", "multiply"} <= kinds


def test_behind_the_last_attention_a_chunk_is_computed_for_its_last_token_alone(
    lock: tuple[Path, Path], warm: Path
) -> None:
    program = open_lock(lock[0], flows.options(warm, lock[1], CONTEXT)).prefill
    calls = [call for call in program.calls if isinstance(call, NativeCall)]
    attends = max(at for at, call in enumerate(calls) if call.launch.entry == "attend")
    assert not any(call.last for call in calls[: attends + 1])
    assert sum(call.last for call in calls) >= 2
    names = {buffer.name: buffer for buffer in program.buffers}
    for call in (call for call in calls if call.last):
        read = [names[name] for name in call.pointers if name and names[name].role == "activation"]
        assert all(next(dim for dim in buffer.shape if dim != 1) == "T" for buffer in read), read


def test_no_row_of_an_earlier_chunk_is_read(lock: tuple[Path, Path], warm: Path) -> None:
    """Rows that a site behind the last attention leaves out hold NaN here, where else they hold what was before."""
    found = bind(open_lock(lock[0], flows.options(warm, lock[1], CONTEXT)))._open().generator.chunks
    assert isinstance(found, HostStep)
    for length in LENGTHS:
        ids, at = torch.tensor(IDS[:length]), torch.arange(length)
        expected = found.run(ids, at).clone()
        for buffer in found.program.buffers:
            if buffer.role == "activation" and buffer.name in found._bind(length).env:
                tensor = found._bind(length).env[buffer.name]
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)
        assert torch.equal(found.run(ids, at), expected), length


def test_prompts_of_every_length_have_the_logits_of_the_captured_graph(
    opened: CompiledModel, lock: tuple[Path, Path], warm: Path
) -> None:
    from agentcompile.capture.cached import load_model

    here = this_machine(flows.options(warm, lock[1], CONTEXT))
    captured = load_model(lock[1], CONTEXT, here.store, here.hashes).captured
    for length in LENGTHS:
        found = opened.prefill(IDS[:length])
        expected = Stepper(captured).feed("prefill", torch.tensor(IDS[:length]), 0)["logits"][0, 0].float()
        exact = captured.info.dtype == "fp32"
        away = float((found - expected).abs().max())
        assert away <= (1e-4 if exact else 0.06), length


def test_a_token_s_bits_do_not_depend_on_how_a_prompt_is_cut(lock: tuple[Path, Path], warm: Path) -> None:
    found = open_lock(lock[0], flows.options(warm, lock[1], CONTEXT))
    model = bind(found)
    step = model._open().generator.chunks
    assert isinstance(step, HostStep)

    def run(*parts: int) -> torch.Tensor:
        begin = 0
        for count in parts:
            ids, at = torch.tensor(IDS[begin : begin + count]), torch.arange(begin, begin + count)
            logits = step.run(ids, at)
            begin += count
        return logits.clone()

    whole = run(CONTEXT)
    for parts in ((1, CONTEXT - 1), (CONTEXT - 1, 1), (16, CONTEXT - 16), (15, 1, CONTEXT - 16)):
        assert torch.equal(run(*parts), whole), parts


def test_a_lock_s_chunks_and_decode_steps_give_the_tokens_of_the_usual_ones(
    lock: tuple[Path, Path], opened: CompiledModel, warm: Path, tmp_path: Path
) -> None:
    chunk, steps = 16, 3
    path, before = tmp_path / "own.lock.toml", read_lock(lock[0])
    plans = [replace(one, chunk=chunk, steps_up_to=steps) if one.phase == "prefill" else one for one in before.plan]
    write_lock(path, replace(before, plan=tuple(plans)))
    found = open_lock(path, flows.options(warm, lock[1], CONTEXT))
    own = bind(found)
    assert own._open().generator.chunks.capacity == chunk
    for length in (1, steps, steps + 1, chunk - 1, chunk, chunk + 1, chunk + steps, chunk + steps + 1, 2 * chunk + 1):
        ids = IDS[:length]
        last, expected = own.prefill(ids), opened.prefill(ids)
        if not 0 < length % chunk <= steps:  # the bits of a chunk's tokens do not depend on its length
            assert torch.equal(last, expected), length
        torch.testing.assert_close(
            last, expected, rtol=0, atol=1e-4 if found.model.captured.info.dtype == "fp32" else 0.06
        )
        made, usual = (model.generate(ids, max_new_tokens=6, ignore_eos=True) for model in (own, opened))
        assert made.tokens == usual.tokens, length  # type: ignore[union-attr]


def test_a_worker_times_prompts_in_chunks_and_in_decode_steps(lock: tuple[Path, Path], warm: Path) -> None:
    found = open_lock(lock[0], flows.options(warm, lock[1], CONTEXT))
    arms = [Feeding(tokens=count, chunk=chunk) for count in (2, CONTEXT) for chunk in (CONTEXT, 16, 0)]
    sources = {job.source.digest: job.source for job in found.jobs}
    with evaluator_of(found.here, 0) as evaluator:
        clock = StepClock(found.here, evaluator, found.model, dict)
        made = clock.prompts(
            found.alone[0][1],
            [(CONTEXT, found.prefill)],
            arms,
            sources=sources,
            rounds=3,
            claim=0.01,
            seed=1,
            seconds=9,
        )
    assert isinstance(made, Timing), made
    assert (made.live, made.failed) == (tuple(range(len(arms))), ())
    assert [made.median_ns(at) > 0 for at in made.live] == [True] * len(arms)


def test_the_kernels_of_a_longer_chunk_are_those_of_the_lock_made_for_as_many_tokens(
    warm: Path, checkpoint: Make, tmp_path: Path
) -> None:
    context, path, model = 300, tmp_path / "long.lock.toml", checkpoint("tiny-qwen3", "bf16")
    lock = flows.plant(warm, model, context, path, prompts=True).seal()
    plans = [replace(one, chunk=context, steps_up_to=2) if one.phase == "prefill" else one for one in lock.plan]
    write_lock(path, replace(lock, plan=tuple(plans)))
    found = open_lock(path, flows.options(warm, model, context))
    assert found.chunk == context
    assert found.prefill.native
    assert {call.source for call in found.prefill.calls if isinstance(call, NativeCall)} == {
        job.source.digest for job in found.carried
    }
    assert not {job.source.digest for job in found.carried} & {job.source.digest for job in found.jobs}
    assert {dict(job.region.dims)["tokens"] for job in found.carried} == {context}
    assert {(job.candidate.template, job.candidate.params) for job in found.carried} <= {
        (job.candidate.template, job.candidate.params) for job in found.jobs
    }
    called = {job.source.digest for job in found.called}
    assert called >= {job.source.digest for job in found.carried}
    decode = {call.source for _, one in found.decode for call in one.calls if isinstance(call, NativeCall)}
    assert called == decode | {job.source.digest for job in found.carried}  # those for 256 tokens are not even built


def test_the_windows_of_a_timed_chunk_have_positions_that_follow_one_another(warm: Path, checkpoint: Make) -> None:
    from agentcompile.capture.cached import load_model

    here = this_machine(flows.options(warm, checkpoint("tiny-qwen3", "bf16"), CONTEXT))
    model = load_model(checkpoint("tiny-qwen3", "bf16"), CONTEXT, here.store, here.hashes)
    _, prefill = cut(model.captured, here.target, flows.CEILING, silent)
    region = next(one for one in prefill.partition.regions if one.kind == "qknorm-rope-attention-prefill")
    made = at_length(region, 20)
    ports = [port for port in made.ports if port.role not in ("weight", "state", "output")]
    windows = Windows(made, ports, seed=3, device="cpu")
    for window in range(3):
        found = windows.at(window)
        assert found["positions"].tolist() == list(range(CONTEXT - 20, CONTEXT))
        assert not torch.equal(found["q"], windows.at(window + 1)["q"])
    assert (windows.place("positions")[1], windows.place("q")[1]) == (0, 64)


@pytest.mark.parametrize(("few", "threads", "dismissed"), [(1 << 60, 1, False), (0, 2, True)])
def test_pytorch_s_threads_do_not_spin_beside_the_kernels_of_a_chunk(
    few: int, threads: int, dismissed: bool, warm: Path, checkpoint: Make, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A region of few operations runs on one thread; after a larger one PyTorch's other threads end."""
    seen: list[str | int] = []
    out, model = tmp_path / "mixed.lock.toml", checkpoint("tiny-llama", "bf16")
    made = flows.plant(warm, model, CONTEXT, out, prompts=True)
    first = made.planned.prefill[0].region
    prefill = tuple(
        replace(part, choice=Fallback(reason="to see")) if part.region == first else part
        for part in made.planned.prefill
    )
    write_lock(out, replace(made, planned=replace(made.planned, prefill=prefill)).seal())

    def spied(*args: object, **more: object) -> Callable[[], None]:
        site = torch_site(*args, **more)  # type: ignore[arg-type]
        return lambda: (seen.append(torch.get_num_threads()), site())[1]

    monkeypatch.setattr(step, "torch_site", spied)
    monkeypatch.setattr(step, "_FEW", few)
    monkeypatch.setattr(step, "dismiss_threads", lambda: seen.append("dismissed"))
    opened = replay_lock(out, flows.options(warm, model, CONTEXT))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        chunks = opened._open().generator.chunks
        assert isinstance(chunks, HostStep)
        seen.clear()
        chunks.run(torch.tensor(IDS[:8]), torch.arange(8))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [one for one in seen if one != "dismissed"] == [threads] * seen.count(threads) != []
    assert ("dismissed" in seen) is dismissed
