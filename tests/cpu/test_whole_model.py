"""The last gate before a lock: right models pass, one wrong kernel is found, and a wrong capture stops all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile import capture
from agentcompile import checkpoint as checkpoint_reader
from agentcompile.capture.structure import Caches
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.jobs import Failed
from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.events import ChoiceMade, Event, ModelChecked, Warned
from agentcompile.ir.trial import Fallback, TimedOut
from agentcompile.lockfile.files import read_lock
from agentcompile.runs.session import RunDirectory
from agentcompile.verification.whole_model import units
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.gates import gate, planted
from tests.models import tiny

Checkpoints = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def made(warm: Path, checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> flows.Planted:
    out = tmp_path_factory.mktemp("whole") / "a.lock.toml"
    return flows.plant(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT, out)


@pytest.fixture(scope="module")
def evaluator(warm: Path, made: flows.Planted) -> Iterator[WorkerEvaluator]:
    with evaluator_of(this_machine(flows.options(warm, made.model.captured.checkpoint, CONTEXT)), 0) as found:
        yield found


def test_a_kernel_that_is_wrong_from_some_position_on_is_found_and_the_others_stay(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    (wrong, region), events = planted(made, tmp_path, "wrong"), list[Event]()
    left, found = gate(warm, made, evaluator, events, tmp_path).right(wrong, made.planned.layouts)
    assert found.ok
    assert {one.phase for one in found.phases} == {"decode", "prefill"}
    assert {region for region, _ in units(wrong)} - {region for region, _ in units(left)} == {region}
    fallen = next(part.choice for part in left[0].parts if part.region == region)
    assert isinstance(fallen, Fallback)
    assert "position 3" in fallen.reason
    assert [event.region for event in events if isinstance(event, ChoiceMade)] == [region]
    assert [event.text for event in events if isinstance(event, Warned)]
    # Whoever takes the run up again asks nobody: all of it is in the events.
    known = {event.plans: event.check for event in events if isinstance(event, ModelChecked)}
    again = replace(gate(warm, made, evaluator, events, tmp_path), evaluator=None, known=known)  # type: ignore[arg-type]
    assert again.right(wrong, made.planned.layouts) == (left, found)


def test_a_kernel_that_crashes_in_the_model_alone_falls_back(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    wrong, region = planted(made, tmp_path, "crash")
    left, found = gate(warm, made, evaluator, [], tmp_path).right(wrong, made.planned.layouts)
    assert found.ok
    fallen = next(part.choice for part in left[0].parts if part.region == region)
    assert isinstance(fallen, Fallback)
    assert "crashed" in fallen.reason


def test_a_kernel_that_hangs_in_the_model_is_ended_and_says_where(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    wrong, _ = planted(made, tmp_path, "hang")
    request = gate(warm, made, evaluator, [], tmp_path).request(wrong, made.planned.layouts)
    ended = evaluator.feed(replace(request, out=str(tmp_path / "logits")), patience_s=3.0)
    assert isinstance(ended, Failed)
    assert isinstance(ended.verdict, TimedOut)


@pytest.mark.parametrize("name", ["phi3-longrope", "roberta", "recurrent-gemma", "moshi"])
def test_a_model_that_is_captured_wrong_is_never_locked(name: str, warm: Path, tmp_path: Path) -> None:
    model, lock = tiny.write(name, tmp_path / name), tmp_path / "a.lock.toml"
    settings = ("--context", 128, "--threads", flows.THREADS, "--choose", "pytorch")
    done = flows.verb(warm, "compile", model, *settings, "--out", lock, "--run-dir", tmp_path / "run")
    assert done.code in (4, 2), done.out + done.err
    assert name in ("recurrent-gemma", "phi3-longrope") or done.code == 4
    done.refuses(done.code)
    assert not lock.exists()


def test_the_gate_itself_stops_a_recurrent_model_that_no_config_and_no_capture_refused(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the refusals its states are constants of the graph: right for one token, and wrong after it."""
    monkeypatch.setattr(checkpoint_reader, "refuse_unsupported", lambda *_: None)
    monkeypatch.setattr(capture, "caches_of", lambda *_: Caches(layers=3, kv_heads=2, head_dim=16))
    model, lock = tiny.write("recurrent-gemma", tmp_path / "model"), tmp_path / "a.lock.toml"
    settings = ("--context", 128, "--threads", flows.THREADS, "--choose", "pytorch")
    done = flows.verb(warm, "compile", model, *settings, "--out", lock, "--run-dir", tmp_path / "run")
    done.refuses(4, "with no kernel the captured model differs from transformers")
    assert not lock.exists()
    (event,) = (event for event in RunDirectory.open(tmp_path / "run").events() if isinstance(event, ModelChecked))
    assert not event.check.ok


def test_a_model_that_normalises_what_lies_in_another_order_is_right(warm: Path, tmp_path: Path) -> None:
    """Its keys are normalised behind the rotation, where PyTorch leaves heads and positions the other way round."""
    model, lock = tiny.write("hunyuan", tmp_path / "model"), tmp_path / "a.lock.toml"
    settings = ("--context", 128, "--threads", flows.THREADS, "--choose", "pytorch")
    done = flows.verb(warm, "compile", model, *settings, "--out", lock, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    assert {row.verdict for row in read_lock(lock).evidence.model} == {"pass"}


def test_the_lock_says_how_near_to_float32_the_model_is_and_a_resumed_run_checks_nothing_again(
    warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    lock, run = tmp_path / "a.lock.toml", tmp_path / "run"
    settings = ("--context", CONTEXT, "--threads", flows.THREADS, "--choose", "pytorch")
    done = flows.verb(warm, "compile", checkpoint("tiny-llama", "bf16"), *settings, "--out", lock, "--run-dir", run)
    assert done.code == 0, done.err
    rows = {row.phase: row for row in read_lock(lock).evidence.model}
    assert set(rows) == {"decode", "prefill"}
    for row in rows.values():
        assert (row.oracle, row.verdict) == ("transformers", "pass")
        assert float(row.kl) <= 2 * float(row.kl_eager)
        assert {1, 2, 17} <= set(row.prompts)
    before = lock.read_bytes()
    lock.unlink()
    assert flows.verb(warm, "compile", "--resume", "--run-dir", run).code == 0
    assert lock.read_bytes() == before
    assert sum(isinstance(event, ModelChecked) for event in RunDirectory.open(run).events()) == 1
