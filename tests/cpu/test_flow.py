"""Checkpoint to lock to tokens: what a lock runs is what the checkpoint says, and running it needs nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import agentcompile
from agentcompile.events import Event, SearchProgress, TrialFinished
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.replay.load import replay_lock
from agentcompile.runs.session import RunDirectory
from agentcompile.tuning.trial_database import disturbed
from tests.cpu import flows
from tests.cpu.conftest import BUDGET, CONTEXT, SECONDS
from tests.cpu.courses import Course
from tests.models.tiny import Stepper

if TYPE_CHECKING:
    from agentcompile.runtime.model import CompiledModel

Make = Callable[[str, str], Path]
MODELS = [(name, dtype) for name in ("tiny-qwen3", "tiny-llama") for dtype in ("fp32", "bf16")]
IDS = [int(i) for i in torch.randint(2, 500, (40,), generator=torch.Generator().manual_seed(7))]


def opened(home: Path, lock: Path, model: Path) -> CompiledModel:
    return replay_lock(lock, flows.options(home, model, read_lock(lock).model.context))


def reference(home: Path, model: Path, lock: Path) -> Stepper:
    """The captured graph of a lock's model on the interpreter, in the model's own dtype."""
    from agentcompile.capture.cached import load_model
    from agentcompile.evaluation.machine import this_machine

    context = read_lock(lock).model.context
    here = this_machine(flows.options(home, model, context))
    return Stepper(load_model(model, context, here.store, here.hashes).captured)


def test_the_command_line_turns_a_checkpoint_into_a_lock_and_a_finished_run(compiled: Course) -> None:
    assert {plan.phase for plan in read_lock(compiled.lock).plan} == {"decode", "prefill"}
    status = flows.verb(compiled.home, "runs", "status", compiled.run, "--json")
    assert json.loads(status.out)["status"] == "done"


def test_a_compiled_lock_holds_in_another_process_without_drift(compiled: Course) -> None:
    done = flows.verb(compiled.home, "replay", compiled.lock, "--locked", "--threads", flows.THREADS)
    assert done.code == 0, done.err
    assert "0 drifted fields" in done.out


@pytest.fixture(scope="module")
def again(compiled: Course, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A second compilation of the same model, through the library: its lock and its events."""
    out, events = tmp_path_factory.mktemp("again") / "a.lock.toml", list[Event]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCOMPILE_HOME", str(compiled.home))
        patch.setenv("AGENTCOMPILE_SECONDS", str(SECONDS))
        agentcompile.compile(
            compiled.model, out=out, context=CONTEXT, threads=flows.THREADS, budget=BUDGET, strategy="random",
            emit=events.append,
        )  # fmt: skip
    return out, events


def test_a_lock_names_the_strategy_that_searched(compiled: Course, again: tuple[Path, list[Event]]) -> None:
    assert read_lock(compiled.lock).evidence.strategy == Options().strategy
    assert read_lock(again[0]).evidence.strategy == "random"


def test_compile_and_load_of_the_library_give_the_tokens_of_the_captured_graph(
    compiled: Course, again: tuple[Path, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(compiled.home))
    made = agentcompile.load(again[0], model=compiled.model).generate(IDS[:9], max_new_tokens=12, ignore_eos=True)
    assert not isinstance(made, list)
    expected = flows.greedy_on(reference(compiled.home, compiled.model, again[0]), IDS[:9], 12)
    assert list(made.tokens) == expected


def test_a_compile_reports_how_much_of_its_search_neither_built_nor_timed(compiled: Course) -> None:
    told = [event for event in RunDirectory.open(compiled.run).events() if isinstance(event, SearchProgress)][-1]
    assert told.overhead_s is not None
    assert 0 < told.overhead_s / told.elapsed_s < 1
    status = flows.verb(compiled.home, "runs", "status", compiled.run)
    assert f"{told.overhead_s:.1f} s of it" in status.out


def test_a_second_run_measures_nothing_that_the_database_knows(
    compiled: Course, again: tuple[Path, list[Event]]
) -> None:
    """What others disturbed, or time cut short, is not kept in the database, and may be measured again."""
    before = [e.trial for e in RunDirectory.open(compiled.run).events() if isinstance(e, TrialFinished)]
    known = {(trial.candidate.id, trial.fidelity) for trial in before if not (disturbed(trial) or trial.cut)}
    fresh = [e.trial for e in again[1] if isinstance(e, TrialFinished) and not e.trial.reused]
    assert {(trial.candidate.id, trial.fidelity) for trial in fresh} & known == set()


@pytest.mark.parametrize(("name", "dtype"), MODELS)
def test_a_step_of_kernels_agrees_with_the_captured_graph_at_every_position(
    name: str, dtype: str, warm: Path, checkpoint: Make, planted: Make
) -> None:
    lock, model = planted(name, dtype), checkpoint(name, dtype)
    found = opened(warm, lock, model).logits(IDS)
    expected = reference(warm, model, lock).logits(torch.tensor(IDS), ())
    for position in range(len(IDS)):
        a, b = found[position], expected[position].float()
        assert flows.mutual(a, b), position
        if dtype == "fp32":
            assert int(a.argmax()) == int(b.argmax()), position
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
        else:
            # Two roundings of bf16 at the magnitude of the row: what two orders of one sum may differ by.
            assert (a - b).abs().max() <= 4 * 2.0**-8 * b.abs().max(), position


@pytest.mark.parametrize(("name", "dtype"), MODELS)
def test_greedy_tokens_of_kernels_are_those_of_the_captured_graph_and_of_eager(
    name: str, dtype: str, warm: Path, checkpoint: Make, planted: Make
) -> None:
    lock, model = planted(name, dtype), checkpoint(name, dtype)
    compiled = opened(warm, lock, model)
    made = compiled.generate(IDS[:11], max_new_tokens=16, ignore_eos=True)
    assert not isinstance(made, list)
    stepper = reference(warm, model, lock)
    expected = flows.greedy_on(stepper, IDS[:11], 16)
    if dtype == "fp32":
        assert list(made.tokens) == expected == flows.eager(model, IDS[:11], 16)
        return
    # bf16: at the first mismatch each one's token must be among the other's five likeliest.
    for at, (one, other) in enumerate(zip(made.tokens, expected, strict=True)):
        if one != other:
            ids = [*IDS[:11], *expected[:at]]
            theirs = reference(warm, model, lock).logits(torch.tensor(ids), ())[len(ids) - 1]
            assert flows.mutual(compiled.logits(ids)[-1], theirs.float())
            return


def test_prefill_in_chunks_and_single_steps_agree(warm: Path, checkpoint: Make, planted: Make) -> None:
    model = opened(warm, planted("tiny-qwen3", "fp32"), checkpoint("tiny-qwen3", "fp32"))
    for count in (1, 2, 17, 40):
        torch.testing.assert_close(model.prefill(IDS[:count]), model.logits(IDS[:count])[-1], rtol=1e-4, atol=2e-5)


def test_a_step_of_library_calls_gives_the_tokens_of_the_captured_graph(
    warm: Path, checkpoint: Make, tmp_path: Path
) -> None:
    model = checkpoint("tiny-qwen3", "fp32")
    lock = flows.write(warm, model, CONTEXT, tmp_path / "library.lock.toml", library=True)
    made = opened(warm, lock, model).generate(IDS[:9], max_new_tokens=12, ignore_eos=True)
    assert not isinstance(made, list)
    assert list(made.tokens) == flows.greedy_on(reference(warm, model, lock), IDS[:9], 12)


@pytest.mark.alone
def test_the_sample_compiles_and_its_lock_writes_what_eager_writes(
    sampled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes does not depend on how long the search looked for something faster."""
    lock = tmp_path / "sample.lock.toml"
    done = flows.cli(
        sampled, "compile", flows.SAMPLE, "--context", flows.WALKED_CONTEXT, "--threads", flows.WALKED_THREADS,
        "--budget", BUDGET, "--seconds", SECONDS, "--out", lock, limit_s=900,
    )  # fmt: skip
    assert done.code == 0, done.err
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(sampled))
    model = agentcompile.load(lock, model=flows.SAMPLE)
    prompt = "def add(a, b):\n    return"
    made = model.generate(prompt, max_new_tokens=24)
    assert not isinstance(made, list)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(prompt)
    expected = flows.eager(flows.SAMPLE, ids, 24)
    at = next((i for i, (a, b) in enumerate(zip(made.tokens, expected, strict=False)) if a != b), None)
    if at is not None:
        shared = [*ids, *expected[:at]]
        stepper = reference(sampled, flows.SAMPLE, lock)
        theirs = stepper.logits(torch.tensor(shared), ())[len(shared) - 1].float()
        assert flows.mutual(model.logits(shared)[-1], theirs)


def test_a_lock_finds_its_model_by_the_way_from_the_lock(compiled: Course) -> None:
    location = read_lock(compiled.lock).model.location
    assert not Path(location).is_absolute()
    assert (compiled.lock.parent / location).resolve() == compiled.model.resolve()


def test_replay_and_generate_need_no_network_and_no_adviser(compiled: Course, planted: Make, warm: Path) -> None:
    guarded = {"PYTHONPATH": str(flows.NO_NETWORK)}
    threads = ("--threads", flows.THREADS)
    asked = ("--model", flows.SAMPLE, *threads, "--prompt", "def f(", "--max-new-tokens", 4)
    generate = ("generate", planted("sample", "bf16"), *asked)
    with ThreadPoolExecutor(2) as both:  # neither has a clock
        replayed = both.submit(flows.cli, compiled.home, "replay", compiled.lock, *threads, env=guarded)
        made = both.submit(flows.cli, warm, *generate, env=guarded)
        done, written = replayed.result(), made.result()
    assert done.code == 0, done.err
    assert written.code == 0, written.err
    assert written.out.startswith("def f(")


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import openai",
    ],
)
def test_the_guard_of_the_network_bites(code: str) -> None:
    import subprocess
    import sys

    env = flows.environment(Path("/nowhere"), {"PYTHONPATH": str(flows.NO_NETWORK)})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "this process has no" in done.stderr
