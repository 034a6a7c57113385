"""The adviser's first in a GPU's flow, on the host: steps and prompts are covered and accepted, nothing is timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
import torch

from agentcompile import catalog
from agentcompile.advice.advisers import adviser_of
from agentcompile.build import nvrtc_toolchain
from agentcompile.capture.cached import Model
from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import Evaluator
from agentcompile.evaluation.machine import Machine
from agentcompile.evaluation.time_budget import TimeBudget
from agentcompile.events import silent
from agentcompile.ir.trial import BuildFailed, Kernel, Part
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.planning.covering import choose, cover
from agentcompile.planning.plans import Planned
from agentcompile.planning.steps import untimed_steps
from agentcompile.regions.kinds import facts as kinds
from agentcompile.system.store import Store
from agentcompile.tuning.partitions import advise, bound, cut
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.session import TuningSession, tuning_session
from agentcompile.tuning.trial_database import TrialDatabase
from tests.cpu.flows import CEILING
from tests.cpu.test_chunk_plans import CONTEXT
from tests.models import captures, tiny
from tests.models.planned import GPU
from tests.unit.test_untimed import Checker


@dataclass
class Rig:
    """A tiny model ready to be searched for a GPU, and a evaluator that passes whatever it is not told to fail."""

    ready: PreparedModel
    store: Store
    checker: Checker

    def session(self) -> TuningSession:
        ready = replace(self.ready, here=replace(self.ready.here, store=self.store))
        known, evaluator = TrialDatabase((), None, "p"), cast(Evaluator, self.checker)
        budget = TimeBudget(0.0, GPU)
        return tuning_session(ready, evaluator, known, budget, lambda task: task.advice, Steering(), silent, 0)

    def covered(self, tuning: TuningSession) -> Planned:
        rankings = choose(tuning.ranker, "first", silent)
        return cover(self.ready, tuning.scheduler, tuning.ranker, tuning.acceptance, rankings, "first", silent)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    captured = captures.captured(tiny.write("qwen3", tmp_path / "model", dtype=torch.bfloat16), CONTEXT)
    decode, prefill = cut(captured, GPU, CEILING, silent)
    templates = catalog.load([catalog.default_root()], kinds=kinds(), layouts=LAYOUTS)
    adviser = adviser_of("heuristic")
    tasks, prompts = (
        advise(bound(cuts, templates, GPU, silent), adviser, CEILING, prefill.residency, silent)
        for cuts in (decode, [prefill])
    )
    store = Store(tmp_path / "store")
    here = Machine(target=GPU, toolchain=nvrtc_toolchain(), store=store, hashes=tmp_path / "hashes", device="cuda:0")
    model = Model(captured=captured, constants=tmp_path / "constants")
    ready = PreparedModel(
        here=here,
        model=model,
        ceiling=CEILING,
        decode=decode,
        prefill=prefill,
        tasks=tasks,
        prompt_tasks=prompts,
    )
    return Rig(ready, store, Checker())


def kernels(parts: tuple[Part, ...]) -> dict[str, Kernel]:
    return {part.region: part.choice for part in parts if isinstance(part.choice, Kernel)}


def test_steps_and_prompts_take_the_advisers_first_and_its_next_where_that_fails(rig: Rig) -> None:
    planned = rig.covered(rig.session())
    first = kernels(planned.decode[0])
    assert first
    assert {kernel.decided_by for kernel in first.values()} == {"adviser"}
    assert all(plan.step_ns == 0 for plan in untimed_steps(rig.ready, planned, silent))
    orders = {task.region.id: task for task in (*rig.ready.tasks, *rig.ready.prompt_tasks)}
    for region, kernel in {**first, **kernels(planned.prefill)}.items():
        task = orders[region]
        same = [one for one in task.advice.sorted(tuple(task.space)) if one.template == kernel.candidate.template]
        assert kernel.candidate == same[0]
    # Whatever was to ship was built and checked, and the next of the order follows one that fails.
    region, failing = next(iter(first.items()))
    assert {kernel.candidate.id for kernel in first.values()} <= set(rig.checker.asked)
    assert rig.checker.depths == {"accept", "length"}, "those of a prompt at lengths other than the usual one, too"
    again = Rig(rig.ready, Store(rig.store.root.with_name("other")), Checker())
    again.checker.verdicts = {failing.candidate.id: BuildFailed(log="error")}
    other = again.session()
    found = kernels(again.covered(other).decode[0])
    assert failing.candidate.id not in {kernel.candidate.id for kernel in found.values()}
    assert [trial.candidate.id for trial in other.trials.of(region)] == [failing.candidate.id]
