"""Whatever chose a kernel, the gate has the last word: what a person or a rule without a clock took falls back, too.

The runs are written down and not searched. A kernel for the position tables that is wrong at one position is noted as
accepted, as if every check of it alone had passed, so that the whole model alone can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcompile import catalog
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import (
    ChoiceMade,
    Event,
    ModelChecked,
    PlanAdmitted,
    RunStarted,
    StageFinished,
    StageStarted,
    StepsTimed,
    TrialFinished,
)
from agentcompile.ir.codec import encode
from agentcompile.ir.trial import Kernel, Plan, Trial
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import LockChoice
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts as kinds
from agentcompile.runs.session import Journal, RunDirectory
from agentcompile.system.notes import Notes
from agentcompile.tuning.partitions import bound, cut
from agentcompile.tuning.trial_database import note_accepted
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.gates import planted
from tests.unit import runs

Checkpoints = Callable[[str, str], Path]
STALE_NS = 7
"""What the step took with the wrong kernel, as a run that is written down says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A run whose plans are settled and whose lock is not written."""

    home: Path
    run: RunDirectory
    lock: Path
    region: str
    """The one that has a wrong kernel to choose."""
    wrong: Kernel

    def resume(self) -> list[Event]:
        """Go on to the lock; the new events."""
        known = len(list(self.run.events()))
        done = flows.verb(self.home, "compile", "--resume", "--run-dir", self.run.path)
        assert done.code == 0, done.err
        return list(self.run.events())[known:]

    def choice(self) -> LockChoice:
        plan = next(plan for plan in read_lock(self.lock).plan if plan.phase == "decode")
        return next(choice for choice in plan.choices if choice.region == self.region)


def written(home: Path, model: Path, folder: Path, *, chosen: bool, step_ns: int = 0, **more: Any) -> Written:
    """A run of a right plan, in which the wrong kernel is `chosen`, or only there to be."""
    lock, templates = folder / "a.lock.toml", folder / "templates"
    made = flows.plant(home, model, CONTEXT, lock)
    wrong, region = planted(made, templates, "once")
    kernel = next(part.choice for part in wrong[0].parts if part.region == region)
    assert isinstance(kernel, Kernel)
    asked = flows.options(home, model, CONTEXT, out=str(lock), templates=(str(templates),), **more)
    run, target = RunDirectory.create(folder / "run", encode(asked)), made.facts.target
    told: list[Event] = [RunStarted(model=str(model), target=target, options=asked.digest, version="0")]
    decode, _ = cut(made.model.captured, target, flows.CEILING, told.append, asked.batch)
    found = catalog.load([catalog.default_root(), templates], kinds=kinds(), layouts=LAYOUTS)
    bound(decode, found, target, told.append)
    template = next(one for one in found.templates if one.digest == kernel.candidate.template_digest)
    where = decode[0].regions[region]
    source = specialise(template, where, kernel.candidate.params, target)
    note_accepted(
        Notes(this_machine(asked).store),
        EvaluationJob(candidate=kernel.candidate, region=where, template=template, source=source),
        target,
    )
    covers = [wrong[0].parts if chosen else made.planned.decode[0], made.planned.prefill]
    trials = [trial for own in made.trials.values() for trial in own]
    trials.append(Trial(candidate=kernel.candidate, source=kernel.source, verdict=runs.measured(), fidelity="confirm"))
    told += [StageStarted(stage="search"), *(TrialFinished(trial=trial) for trial in trials)]
    told += [
        ChoiceMade(region=part.region, choice=part.choice) for part in covers[0] if isinstance(part.choice, Kernel)
    ]
    for one, parts, ns in zip(made.cuts, covers, (step_ns, 0), strict=True):
        plan = Plan(
            regime=one.partition.regime,
            parts=parts,
            exact=True,
            step_ns=ns,
            baseline_ns=9 * ns,
            log_ratio=2.197 if ns else 0.0,
            half_width=0.001 if ns else 0.0,
            comparison="FASTER" if ns else "INCONCLUSIVE",
        )
        told.append(PlanAdmitted(plan=plan, layouts=made.planned.layouts))
    told.append(StageFinished(stage="admit"))
    with Journal(run) as journal:
        for event in told:
            journal.append(event)
    return Written(home=home, run=run, lock=lock, region=region, wrong=kernel)


def timed(events: list[Event]) -> list[Plan]:
    """Plans of decode steps that were admitted."""
    return [event.plan for event in events if isinstance(event, PlanAdmitted) and event.plan.phase == "decode"]


def fell_back(found: Written, events: list[Event]) -> None:
    """The wrong kernel, and it alone, is not in the lock, which says why, and whose model is right."""
    choice = found.choice()
    assert choice.use == "fallback"
    assert "the whole model is wrong with its kernel: " in choice.reason
    assert "position 5" in choice.reason
    decode = next(plan for plan in read_lock(found.lock).plan if plan.phase == "decode")
    others = [choice for choice in decode.choices if choice.region != found.region]
    assert not any("whole model" in choice.reason for choice in others)
    assert any(choice.use == "kernel" for choice in others)
    assert {row.verdict for row in read_lock(found.lock).evidence.model} == {"pass"}
    checks = [event.check for event in events if isinstance(event, ModelChecked)]
    assert (checks[0].ok, checks[-1].ok) == (False, True)


def test_a_step_that_lost_a_kernel_is_timed_again_and_the_lock_has_its_own_time(
    warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    found = written(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path, chosen=True, step_ns=STALE_NS)
    events = found.resume()
    fell_back(found, events)
    (again,) = timed(events)
    (step,) = read_lock(found.lock).evidence.steps
    assert any(isinstance(event, StepsTimed) for event in events)
    assert step.step_ns == again.step_ns > 100 * STALE_NS
    assert step.log_ratio == f"{again.log_ratio:.4f}" != "2.1970"
    # Whoever goes on with the run once more has it all: nothing is fed, and only what others disturbed is timed.
    before, more = found.lock.read_bytes(), found.resume()
    assert not [event for event in more if isinstance(event, ModelChecked)]
    if not again.contended:
        assert not [event for event in more if isinstance(event, (StepsTimed, PlanAdmitted))]
        assert found.lock.read_bytes() == before


@pytest.mark.parametrize("rule", ["first", "isolated"])
def test_what_a_rule_took_that_times_no_step_goes_through_the_gate(
    rule: str, warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    found = written(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path, chosen=True, choose=rule)
    events = found.resume()
    fell_back(found, events)
    assert not any(isinstance(event, StepsTimed) for event in events)
    lock = read_lock(found.lock)
    assert lock.policy.choose == rule
    assert not lock.evidence.steps


def test_what_a_person_took_goes_through_the_gate_and_the_step_is_timed_without_it(
    warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    found = written(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path, chosen=False, step_ns=STALE_NS)
    asked = ("decide", found.run.path, "--region", found.region)
    done = flows.verb(warm, *asked, "--use", found.wrong.candidate.id, "--reason", "it looks right")
    assert done.code == 0, done.err
    events = found.resume()
    fell_back(found, events)
    with_it, without_it = timed(events)
    chosen = {part.region: part.choice for part in with_it.parts}[found.region]
    assert isinstance(chosen, Kernel)
    assert (chosen.candidate, chosen.decided_by) == (found.wrong.candidate, "human")
    (step,) = read_lock(found.lock).evidence.steps
    assert (step.step_ns, step.log_ratio) == (without_it.step_ns, f"{without_it.log_ratio:.4f}")
    assert step.step_ns > 100 * STALE_NS


def test_an_approved_kernel_that_makes_the_model_wrong_falls_back_all_the_same(
    warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    found = written(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path, chosen=True, step_ns=STALE_NS)
    done = flows.verb(warm, "decide", found.run.path, "--region", found.region, "--approve")
    assert done.code == 0, done.err
    fell_back(found, found.resume())
    (step,) = read_lock(found.lock).evidence.steps
    assert step.step_ns > 100 * STALE_NS


def test_the_right_choice_of_a_person_is_held_against_float32_too(
    warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    found = written(warm, checkpoint("tiny-qwen3", "fp32"), tmp_path, chosen=False, step_ns=STALE_NS)
    done = flows.verb(warm, "decide", found.run.path, "--region", found.region, "--reject", "--reason", "not this one")
    assert done.code == 0, done.err
    events = found.resume()
    assert [event.check.ok for event in events if isinstance(event, ModelChecked)] == [True]
    assert (found.choice().use, found.choice().reason) == ("fallback", "rejected by user: not this one")
    assert {row.verdict for row in read_lock(found.lock).evidence.model} == {"pass"}
