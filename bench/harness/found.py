"""From a trial's rounds to a case of the result: medians, tails, paired ratios, and ratios to the read floor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from agentcompile.ir.digest import digest
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.replay.open import OpenedLock

from .means import QUANTITIES, Quantity, design_effect, logs_of, speedups, total_speedup
from .rates import Round, estimate, same_tokens
from .result import ArmResult, Case, Floor, Interval, Mode, RegionShare, RoundTimes, Spread, State, samples_digest
from .trial import CHECKED_TOKENS, FP32, Outcome
from .workload import Workload

UNDISTURBED = "no round was undisturbed"
"""Why an arm that works has no times."""
Samples = dict[str, list[list[float]]]
"""By arm, a row for every generation: process, its round, seconds to the first token and from there to the last."""


def case_of(
    names: Sequence[str],
    *,
    model: str,
    workload: str,
    mode: Mode,
    asked: Workload,
    outcome: Outcome,
    absent: Mapping[str, str],
    baseline: str,
    cache_bytes: int,
    ceiling: Ceiling,
    cached: bool,
    compile_s: Mapping[str, float],
) -> tuple[Case, Samples]:
    """Return the case and its single generations.

    `absent` says by arm why it was not asked, `compile_s` how long its ahead-of-time compilation took. A step reads
    `cache_bytes` of keys and values in the mean. With `cached`, all that a step reads stays in the machine's caches,
    and the read rate is that of `ceiling`.
    """
    kept = [timed for timed in outcome.rounds if not timed.contended]
    reads = [timed.read_bytes_per_s for timed in kept or outcome.rounds]
    reads = [ceiling.cache_bytes_per_s] if cached and reads else reads
    floor = None
    if reads:
        floor = Floor(
            weight_bytes=asked.token_bytes - cache_bytes,
            cache_bytes=cache_bytes,
            read_bytes_per_s=median(reads),
            flops_per_s=ceiling.flops_per_s,
        )
    arms = tuple(
        _arm(name, asked, outcome, kept, absent.get(name, ""), baseline, floor, compile_s.get(name)) for name in names
    )
    samples = _samples(outcome.rounds)
    made = Case(
        model=model,
        workload=workload,
        mode=mode,
        prompt_tokens=len(asked.ids),
        new_tokens=asked.new,
        baseline=baseline,
        floor=floor,
        arms=arms,
        rounds=tuple(_times(timed) for timed in outcome.rounds),
        prompt=digest("suite-prompt/1", list(asked.ids)),
        checked_tokens=min(asked.new, CHECKED_TOKENS) if outcome.reference is not None else 0,
        reference=outcome.reasons.get(FP32, ""),
        samples=samples_digest(samples),
    )
    return made, samples


def _arm(
    name: str,
    asked: Workload,
    outcome: Outcome,
    kept: Sequence[Round],
    absent: str,
    baseline: str,
    floor: Floor | None,
    compile_s: float | None,
) -> ArmResult:
    visits = [visit for timed in kept if name in timed.visits for visit in timed.visits[name]]
    wrong = outcome.agreement.get(name)
    state, reason = _state(absent, outcome.reasons.get(name, ""), wrong or "", bool(visits))
    facts = {fact: str(value) for fact, value in outcome.facts.get(name, {}).items()}
    same, load_s = same_tokens(outcome.rounds, name), outcome.load_s.get(name, ())
    if not visits:
        return ArmResult(name=name, state=state, reason=reason, facts=facts, load_s=load_s, agrees=wrong, same=same)
    firsts = [first for visit in visits for first in visit.firsts_s]
    rests = [rest for visit in visits for rest in visit.rests_s]
    tokens = spread([rest / (asked.new - 1) for rest in rests])
    drawn = [visit.joules for visit in visits if visit.joules is not None]
    beside = [timed for timed in kept if name in timed.visits and baseline in timed.visits and name != baseline]
    return ArmResult(
        name=name,
        state=state,
        reason=reason,
        facts=facts,
        first_s=spread(firsts),
        token_s=tokens,
        total_s=spread([first + rest for first, rest in zip(firsts, rests, strict=True)]),
        tokens_per_s=1 / tokens.median,
        peak_memory_bytes=max(visit.peak_memory_bytes for visit in visits) or None,
        load_s=load_s,
        compile_s=compile_s,
        # Over the visits' new tokens, their prompts and warm-up included; None where it is not known of all.
        joules_per_token=sum(drawn) / (asked.new * sum(one.generations for one in visits))
        if len(drawn) == len(visits)
        else None,
        agrees=wrong,
        same=same,
        times_floor=tokens.median / floor.token_s if floor else None,
        speedup=estimate([math.log(timed.token_s(baseline) / timed.token_s(name)) for timed in beside]),
        first_speedup=estimate([math.log(timed.first_s(baseline) / timed.first_s(name)) for timed in beside]),
    )


def _state(absent: str, failed: str, wrong: str, timed: bool) -> tuple[State, str]:
    if absent:
        return "absent", absent
    if failed:
        return "failed", failed
    if wrong:
        return "wrong", wrong
    return ("measured", "") if timed else ("failed", UNDISTURBED)


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the 95th percentile (nearest rank) of one or more values."""
    ordered = sorted(values)
    return Spread(median=median(ordered), p95=ordered[math.ceil(0.95 * len(ordered)) - 1], count=len(ordered))


def _times(timed: Round) -> RoundTimes:
    return RoundTimes(
        process=timed.process,
        kept=not timed.contended,
        token_s={name: timed.token_s(name) for name in timed.visits},
        first_s={name: timed.first_s(name) for name in timed.visits},
        read_bytes_per_s=timed.read_bytes_per_s,
        machine=timed.machine,
        others=max((visit.others for pair in timed.visits.values() for visit in pair), default=0.0),
        waited={name: max(visit.waited for visit in pair) for name, pair in timed.visits.items()},
    )


def widened(cases: Sequence[Case]) -> tuple[tuple[Case, ...], dict[str, float]]:
    """Return the cases with intervals widened by how much processes differ, and the `design_effect` of each quantity.

    A quantity of which too few arms have more than one process has no entry, and its intervals stay as they are.
    """
    factors = {quantity: design_effect(speedups(cases, quantity)) for quantity in QUANTITIES}
    found = []
    for case in cases:
        arms = []
        for arm in case.arms:
            token, first = (_widened(case, arm, quantity, factors[quantity]) for quantity in ("token", "first"))
            total = total_speedup(case, arm, factors["total"])
            arms.append(replace(arm, speedup=token, first_speedup=first, total_speedup=total))
        found.append(replace(case, arms=tuple(arms)))
    return tuple(found), {quantity: factor for quantity, factor in factors.items() if factor is not None}


def _widened(case: Case, arm: ArmResult, quantity: Quantity, effect: float | None) -> Interval | None:
    known = arm.speedup if quantity == "token" else arm.first_speedup
    if known is None or effect is None:
        return known
    return logs_of(case, quantity, arm.name, case.baseline).mean(effect).ratio(known.rounds)


def _samples(rounds: Sequence[Round]) -> Samples:
    found: Samples = {}
    counted: dict[int, int] = {}
    for timed in rounds:
        number = counted[timed.process] = counted.get(timed.process, -1) + 1
        for name, pair in timed.visits.items():
            found.setdefault(name, []).extend(
                [float(timed.process), float(number), first, rest]
                for visit in pair
                for first, rest in zip(visit.firsts_s, visit.rests_s, strict=True)
            )
    return found


def region_shares(opened: OpenedLock, ceiling: Ceiling, residency: Residency) -> tuple[RegionShare, ...]:
    """Return the time of each region of a lock's first decode plan, longest first, from the lock's evidence."""
    lock = opened.lock
    known = {job.region.id: job.region for job in opened.jobs}
    measured = {one.region: one for one in lock.evidence.regions}
    found = []
    for choice in next((plan.choices for plan in lock.plan if plan.phase == "decode"), ()):
        evidence = measured.get(choice.region)
        if evidence is None:
            continue
        region = known.get(choice.region)
        kernel = choice.use == "kernel"
        params = ", ".join(f"{name}={value}" for name, value in choice.params.items())
        found.append(
            RegionShare(
                name=choice.name,
                kind=choice.name.partition("@")[0],
                sites=choice.sites,
                ns=float(evidence.median_ns if kernel else evidence.baseline_ns),
                floor_ns=region.floor_ns(ceiling, residency) if region else 0.0,
                choice=(f"{choice.template}({params})" if params else choice.template) if kernel else "pytorch",
            )
        )
    return tuple(sorted(found, key=lambda one: -one.ns * one.sites))
