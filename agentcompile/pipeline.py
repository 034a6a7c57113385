"""The flow on one screen: model → graphs → regions → spaces → advice → trials → choices → cover → plan → lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import agentcompile
from agentcompile import catalog
from agentcompile.admit import admit
from agentcompile.advice import adviser_of
from agentcompile.captures import load_model
from agentcompile.cuts import advise, bound, cut
from agentcompile.events import ChoiceMade, Emit, LockWritten, PlanAdmitted, RunFinished, RunStarted, Warned, silent
from agentcompile.history import History
from agentcompile.ir.trial import Choice, Plan, Trial
from agentcompile.layouts import LAYOUTS
from agentcompile.lockfile import Lock, write_lock
from agentcompile.machine import ceilings, judge_of, this_machine
from agentcompile.models import find_model, location
from agentcompile.notes import Notes
from agentcompile.options import Options
from agentcompile.plans import contenders, plan
from agentcompile.proving import StepClock, policy_digest
from agentcompile.regions.kinds import facts as kinds
from agentcompile.seal import Facts, seal
from agentcompile.stages import stage
from agentcompile.survey import Survey
from agentcompile.tune import Past, Tuner


def compile_model(options: Options, emit: Emit = silent, *, past: Sequence[Trial] = ()) -> Lock:
    """Compile `options.model` and write the lock to `options.out`; `past` are trials that this run already acknowledged.

    Raises AgentCompileError for whatever the user can fix.
    """
    begin, out = time.monotonic(), Path(options.out)
    here = this_machine(options)
    emit(
        RunStarted(
            model=options.model,
            target=here.target,
            options=options.digest,
            version=agentcompile.__version__,
            budget_trials=options.budget,
        )
    )
    adviser = adviser_of(options.advisor)
    roots = [catalog.default_root(), *(Path(folder) for folder in options.templates)]
    templates = catalog.load(roots, kinds=kinds(), layouts=LAYOUTS)
    with judge_of(here, options.seed) as judge, History(options.history) as history:
        if history.warning:
            emit(Warned(text=history.warning))
        with stage(emit, "capture") as say:
            model = load_model(find_model(options.model, options.cache), options.context, here.store, here.hashes)
            captured = model.captured
            say(f"{captured.info.architecture}, {captured.info.layers} layers, {captured.info.dtype}")
        with stage(emit, "probe") as say:
            ceiling = ceilings(here, judge)
            say(
                f"reads {ceiling.dram_bytes_per_s / 1e9:.1f} GB/s, from cache {ceiling.cache_bytes_per_s / 1e9:.1f} GB/s"
            )
        with stage(emit, "partition") as say:
            decode, prefill = cut(captured, here.target, ceiling, emit)
            say(f"{len(decode.partition.regions)} regions, weights in {decode.residency}")
        with stage(emit, "space") as say:
            spaces = bound(decode, templates, here.target, emit)
            say(f"{sum(len(space) for space in spaces)} points in {len(spaces)} regions")
        with stage(emit, "advise") as say:
            subjects = advise(spaces, adviser, ceiling, decode.residency, emit)
            say(adviser.label)
        policy = policy_digest(decode.residency)
        tuner = Tuner(here.target, judge, Past(past, history, policy), Notes(here.store), emit, options.seed)
        survey = Survey(decode, subjects, tuner)
        with stage(emit, "search") as say:
            survey.look(options.budget)
            chosen = contenders(decode, subjects, survey.best_ns(), survey.fallback_ns)
            survey.search(chosen, options.budget)
            survey.confirm(chosen)
            say(f"{survey.candidates} candidates, {len(chosen)} regions searched")
        with stage(emit, "choose") as say:
            rankings = survey.rankings()
            for region, ranking in rankings.items():
                emit(ChoiceMade(region=region, choice=ranking.best))
            say(f"{sum(bool(ranking.kernels) for ranking in rankings.values())} regions have a faster kernel")
        with stage(emit, "cover") as say:
            planned = plan(decode, prefill, subjects, rankings, survey.trials, survey.fallback_ns, ceiling)
            rejected: set[tuple[str, Choice]] = set()
            while failed := survey.accept(planned.decode):
                rejected.update(failed)
                planned = plan(
                    decode, prefill, subjects, rankings, survey.trials, survey.fallback_ns, ceiling, rejected
                )
            say(f"{len(planned.decode)} regions cover the step, estimated at {planned.decode_ns / 1e6:.3f} ms")
        with stage(emit, "admit") as say:
            clock = StepClock(here, judge, model, survey.sources())
            admitted = admit(decode, planned, rankings, survey.sources(), clock, emit, options.seed)
            for note in admitted.notes:
                emit(Warned(text=note))
            emit(PlanAdmitted(plan=admitted.plan))
            say(f"{admitted.plan.step_ns / 1e6:.3f} ms a step, PyTorch {admitted.plan.baseline_ns / 1e6:.3f} ms")
        with stage(emit, "lock") as say:
            plans = [admitted.plan, Plan(regime=prefill.partition.regime, parts=planned.prefill, exact=planned.exact)]
            about = Facts(target=here.target, captured=captured, location=location(options.model, out), policy=policy)
            lock = seal(about, [decode, prefill], plans, planned.layouts, survey.trials)
            written = write_lock(out, lock)
            emit(LockWritten(path=str(out), digest=written))
            say(str(out))
    emit(RunFinished(detail=str(out), seconds=time.monotonic() - begin))
    return lock


def inspect_model(options: Options, emit: Emit = silent) -> None:
    """Capture, cut and bound; nothing is built or timed but the machine's ceilings. Regions and spaces come as events."""
    here = this_machine(options)
    roots = [catalog.default_root(), *(Path(folder) for folder in options.templates)]
    templates = catalog.load(roots, kinds=kinds(), layouts=LAYOUTS)
    emit(RunStarted(model=options.model, target=here.target, options=options.digest, version=agentcompile.__version__))
    with judge_of(here, options.seed) as judge:
        model = load_model(find_model(options.model, options.cache), options.context, here.store, here.hashes)
        decode, _ = cut(model.captured, here.target, ceilings(here, judge), emit)
        bound(decode, templates, here.target, emit)
