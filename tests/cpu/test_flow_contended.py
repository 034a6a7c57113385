"""A run that ended on a busy machine: it says so the same everywhere, and taken up again on a quiet one it is timed."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile import catalog
from agentcompile.events import ChoiceMade, PlanAdmitted, TrialFinished
from agentcompile.ir.codec import encode
from agentcompile.ir.trial import Kernel, Measured, Part, Plan, Trial, interval
from agentcompile.lockfile.files import read_lock, write_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.measure.clock import Others
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts as kind_facts
from agentcompile.replay.write import lock_of
from agentcompile.runs.session import Journal, RunDirectory
from agentcompile.runs.tables import plan_line, rough
from agentcompile.tuning.ranking import Traits, rank
from tests.cpu import courses, flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.courses import Course
from tests.unit import runs

TRIES = 3
"""Of a confirmation, where the machine that the tests run on is not quiet itself."""
QUIET = 0.1
"""Share of the processors' time that others may take where a confirmation must succeed."""


def copied(course: Course, folder: Path, disturbed: float) -> Course:
    """A finished run, its lock not written yet, as it would be had others disturbed so much of its step's timing."""
    run, lock = folder / "run", folder / "a.lock.toml"
    shutil.copytree(course.run, run, ignore=shutil.ignore_patterns("control.sock"))
    asked = run / "options.json"
    assert str(course.lock) in asked.read_text()
    asked.write_text(asked.read_text().replace(str(course.lock), str(lock)))
    records = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    timed = [record["event"] for record in records if record["event"]["kind"] == "plan-admitted"]
    for event in (event for event in timed if event["plan"]["step_ns"]):
        event["plan"] |= {"disturbed": disturbed, "comparison": "INCONCLUSIVE" if disturbed else "FASTER"}
    (run / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return replace(course, run=run, lock=lock)


@pytest.fixture
def contended(compiled: Course, tmp_path: Path) -> Course:
    """A run whose lock says that others disturbed the timing of its step."""
    made, found = copied(compiled, tmp_path, 0.9), read_lock(compiled.lock)
    steps = tuple(replace(step, contended=True, disturbed="0.900") for step in found.evidence.steps)
    assert steps
    flows.rewrite(found, made.lock, evidence=replace(found.evidence, steps=steps))
    return made


def others() -> float:
    """What others take of the processors' time while we take none."""
    seen = Others()
    time.sleep(1.0)
    return seen.share()


SEARCHING = {"trial-started", "trial-finished", "choice-made"}


def resumed(course: Course) -> tuple[flows.Ended, list[dict[str, Any]]]:
    """Go on with a run: how that ended, and its new events."""
    known = len(courses.lines(course.run))
    done = flows.verb(course.home, "compile", "--resume", "--run-dir", course.run)
    assert done.code == 0, done.err
    return done, courses.lines(course.run)[known:]


def kinds(events: list[dict[str, Any]]) -> set[str]:
    return {event["kind"] for event in events}


def choices(lock: Lock) -> list[tuple[str, str, str]]:
    return [(choice.region, choice.use, choice.source) for plan in lock.plan for choice in plan.choices]


def test_a_resumed_run_times_its_contended_plan_again_and_its_lock_loses_the_label(contended: Course) -> None:
    before = read_lock(contended.lock)
    for _ in range(TRIES):
        done, new = resumed(contended)
        assert kinds(new).isdisjoint(SEARCHING), kinds(new)
        assert {"steps-timed", "plan-admitted", "lock-written"} <= kinds(new)
        after = read_lock(contended.lock)
        if not any(step.contended for step in after.evidence.steps):
            break
        assert "contended: " in done.out + done.err
    else:
        if (share := others()) > QUIET:
            pytest.skip(f"other processes take {share:.0%} of this machine: nothing can be confirmed on it")
    assert [step.contended for step in after.evidence.steps] == [False] * len(before.evidence.steps)
    assert "contended: " not in done.out + done.err
    assert [step.step_ns for step in after.evidence.steps] != [step.step_ns for step in before.evidence.steps]
    if all(event["plan"]["comparison"] == "FASTER" for event in new if event["kind"] == "plan-admitted"):
        assert choices(after) == choices(before)
    # Once more there is nothing to confirm, and what was confirmed stays.
    _, again = resumed(contended)
    assert kinds(again).isdisjoint({*SEARCHING, "steps-timed", "plan-admitted"}), kinds(again)
    assert read_lock(contended.lock).evidence.steps == after.evidence.steps


def test_a_resumed_run_whose_plan_was_not_contended_times_nothing(compiled: Course, tmp_path: Path) -> None:
    made = copied(compiled, tmp_path, 0.0)
    _, new = resumed(made)
    assert kinds(new).isdisjoint({*SEARCHING, "steps-timed", "plan-admitted"}), kinds(new)
    assert read_lock(made.lock)


LOG_RATIO = 0.2
"""1.2214: with the two digits that an estimate deserves 1.2."""
DISTURBED = 0.61
WIDE = {"COLUMNS": "240"}
"""A screen on which no row of a table takes two lines."""


def in_one_region(made: flows.Planted) -> tuple[Part, Trial]:
    """The kernel that a ranking takes for a region whose confirmation others disturbed, and that confirmation."""
    part = next(part for part in made.planned.decode[0] if isinstance(part.choice, Kernel))
    (known,) = made.trials[part.region]
    assert isinstance(known.verdict, Measured)
    m = replace(known.verdict.measurement, log_ratio=LOG_RATIO, half_width=0.4, disturbed=DISTURBED)
    seen = replace(known, verdict=replace(known.verdict, measurement=replace(m, comparison="INCONCLUSIVE")))
    found = catalog.load([catalog.default_root()], kinds=kind_facts(), layouts=LAYOUTS)
    templates = {template.id: template for template in found.templates}
    return replace(part, choice=rank([seen], templates, traits=lambda _: Traits()).best), seen


def ended_busy(made: flows.Planted, part: Part, trial: Trial, run: Path, lock: Path) -> Plan:
    """Write the run and the lock of a plan that others disturbed, alone and in the step; return the plan."""
    regime, region = made.cuts[0].partition.regime, made.cuts[0].regions[part.region]
    parts = tuple(part if one.region == part.region else one for one in made.planned.decode[0])
    plan = replace(
        runs.PLAN, regime=regime, parts=parts, log_ratio=0.3, half_width=0.4, comparison="INCONCLUSIVE",
        disturbed=DISTURBED,
    )  # fmt: skip
    chunk = Plan(regime=made.cuts[-1].partition.regime, parts=made.planned.prefill, exact=True)
    assert len(made.cuts) == 2
    trials = {**made.trials, part.region: (trial,)}
    write_lock(lock, lock_of(made.facts, made.cuts, [plan, chunk], made.planned.layouts, trials))
    with Journal(RunDirectory.create(run, encode(flows.options(run, flows.SAMPLE, CONTEXT)))) as journal:
        for event in (
            runs.STARTED, replace(runs.FOUND, region=part.region, name=region.name, regime=regime.name),
            TrialFinished(trial=trial), ChoiceMade(region=part.region, choice=part.choice), PlanAdmitted(plan=plan),
        ):  # fmt: skip
            journal.append(event)
    return plan


def test_a_contended_run_says_the_same_in_explain_the_lock_the_plan_line_and_the_ratio_columns(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    run, lock = tmp_path / "run", tmp_path / "a.lock.toml"
    made = flows.plant(warm, checkpoint("tiny-llama", "fp32"), CONTEXT, lock)
    part, trial = in_one_region(made)
    assert isinstance(part.choice, Kernel)
    name = made.cuts[0].regions[part.region].name
    plan = ended_busy(made, part, trial, run, lock)

    # explain: the reason of the choice and the row of the trial.
    told = flows.verb(warm, "explain", name, "--run-dir", run, env=WIDE).out.splitlines()
    why = next(line for line in told if line.startswith("runs "))
    assert f": ~1.2× (measured: about 1.2x pytorch, contended: {DISTURBED:.0%} of the rounds disturbed)" in why
    row = next(line for line in told if "measured (confirm)" in line)
    assert "~1.2×" in row
    assert f"contended: {DISTURBED:.0%} of the rounds disturbed" in row

    # The ratio columns and the plan line.
    status = flows.verb(warm, "runs", "status", run, env=WIDE).out.splitlines()
    assert "~1.2×" in next(line for line in status if line.lstrip().startswith(name))
    line = plan_line(plan)
    assert line in status
    assert f"1.35× (0.90–2.01), contended: {DISTURBED:.0%} of the rounds disturbed" in line

    # The lock: the label, and numbers that are these when they are shown.
    evidence = read_lock(lock).evidence
    own = next(one for one in evidence.regions if one.region == part.region)
    assert own.contended
    assert rough(math.exp(float(own.log_ratio)), 2) == "1.2"
    (step,) = evidence.steps
    assert (step.contended, float(step.disturbed)) == (True, DISTURBED)
    ends = interval(float(step.log_ratio), float(step.half_width))
    assert ends is not None
    assert f"{math.exp(float(step.log_ratio)):.2f}× ({ends[0]:.2f}–{ends[1]:.2f})" in line
