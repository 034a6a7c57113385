"""The way from tasks to the cheapest cover: search regions that could enter it, choose kernels, cover all regimes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from agentcompile.backends import backend_of
from agentcompile.evaluation.time_budget import TimeBudget, acceptance_s, floor_of, step_timing_s
from agentcompile.events import ChoiceMade, Emit, Warned
from agentcompile.ir.graph import Phase
from agentcompile.ir.region import Region
from agentcompile.ir.trial import Choice, Kernel, Rule
from agentcompile.planning.chunks import capacity, chunks_of
from agentcompile.planning.first import FirstRegions
from agentcompile.planning.plans import NEAR, OPTIMISM, Planned, cheapest, contenders, cost_of, estimate, plan
from agentcompile.runs.stages import stage
from agentcompile.search import RegionStrategy
from agentcompile.system.probe import cpus_at_once, others_running
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.ranker import Ranker
from agentcompile.tuning.ranking import LEAVING_NS, Ranking
from agentcompile.tuning.scheduler import Finishing, TaskScheduler
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.untimed import Estimates

TIMED: tuple[Rule, ...] = ("isolated", "admitted")
"""Rules of choice under which candidates are timed."""
CONFIRM_S = 3.0
"""The least time in which the finalists of a region can be confirmed, in three processes."""


def search(
    prepared: PreparedModel,
    scheduler: TaskScheduler,
    tried: int,
    strategy: RegionStrategy,
    budget: TimeBudget,
    emit: Emit,
) -> None:
    """Search the regions that could enter the cheapest cover, evaluating `tried` candidates at most.

    Candidates are checked, built, validated and measured; the finalists are confirmed on fresh data.
    """
    with stage(emit, "search") as say:
        first = FirstRegions(prepared=prepared, scheduler=scheduler)
        needed, kind = [task.region for task in first.needed(())], prepared.here.target.kind
        kernels: list[tuple[Phase, int]] = []
        if _any_chunk(prepared):
            kernels = [(region.regime.phase, region.cost.flops) for region in needed]
        if least := floor_of(len(needed), budget.searching(), others_running(), cpus_at_once(), kind, kernels):
            emit(Warned(text=least))
        scheduler.evaluate_requests()
        scheduler.try_first_candidates(tried, first.needed, first.others)
        chosen = (*_worth(prepared, scheduler), *_worth_of_prompts(prepared, scheduler)) if tried else ()
        scheduler.search(chosen, tried, strategy)
        near = _worth(prepared, scheduler, NEAR)
        prompts = _worth_of_prompts(prepared, scheduler, NEAR)
        # With too little time for all, only the regions of the cheapest cover as it is now.
        if budget.confirming() < CONFIRM_S * (len(near) + len(prompts)):
            near, prompts = _worth(prepared, scheduler, 1.0), _worth_of_prompts(prepared, scheduler, 1.0)
        scheduler.confirm([*near, *(prompts if _any_chunk(prepared) else prepared.prompt_tasks)])
        untried = len(scheduler.trials.tasks) - len(scheduler.trials.by_region)
        said = f"{scheduler.trials.candidates} candidates, {len(chosen)} regions searched"
        say(f"{said}, {untried} not tried for lack of time" if untried else said)


def finishing(
    prepared: PreparedModel,
    rule: Rule,
    best_ns: Mapping[str, float],
    fallback_ns: Callable[[Region], float],
    accepted: Collection[str],
) -> Finishing:
    """Return how long a plan's kernels are accepted, and its steps and chunk timed, as quick as the machine is now.

    `best_ns` has the best time of a site by region id, `fallback_ns` returns its time in PyTorch. The kernels of
    regions in `accepted` need no acceptance. A rule that times no steps needs no time for that.
    """
    both_ns, kernels = list[tuple[Phase, float]](), dict[str, tuple[Phase, int]]()
    for cut in (*prepared.decode, prepared.prefill):
        plain = {id: fallback_ns(region) for id, region in cut.regions.items()}
        best = {id: best_ns.get(id, ns) for id, ns in plain.items()}
        phase, parts = cut.partition.regime.phase, cheapest(cut, best)
        both_ns.append((phase, estimate(cut, plain) + cost_of(cut, parts, best)))
        for part in parts:
            if best[part.region] < plain[part.region] and part.region not in accepted:
                kernels[part.region] = phase, cut.regions[part.region].cost.flops
    kind, others, cores = prepared.here.target.kind, others_running(), cpus_at_once()
    return Finishing(
        accept_s=acceptance_s([*kernels.values()], others, cores) if backend_of(kind).any_chunk else 0.0,
        steps_s=step_timing_s(both_ns, others, cores, kind) if rule == "admitted" else 0.0,
    )


def _worth(prepared: PreparedModel, scheduler: TaskScheduler, hope: float = OPTIMISM) -> tuple[TuneTask, ...]:
    """Return the tasks of decode steps that would enter a step's cheapest cover at `hope` times their best time."""
    return contenders(prepared.decode, prepared.tasks, scheduler.best_ns(), scheduler.fallback_ns, hope)


def _worth_of_prompts(
    prepared: PreparedModel, scheduler: TaskScheduler, hope: float = OPTIMISM
) -> tuple[TuneTask, ...]:
    """Return the like of a prefill; none on a device where a chunk has few candidates, which are tried at first."""
    if not _any_chunk(prepared):
        return ()
    return contenders([prepared.prefill], prepared.prompt_tasks, scheduler.best_ns(), scheduler.fallback_ns, hope)


def _any_chunk(prepared: PreparedModel) -> bool:
    return backend_of(prepared.here.device).any_chunk


def choose(ranker: Ranker, rule: Rule, emit: Emit) -> dict[str, Ranking]:
    """Return by region id the ranking that `rule` makes: kernels that beat PyTorch, or the reason why none does.

    Under the rule "first" it has untimed kernels in the adviser's order; under "pytorch" it has none.
    """
    with stage(emit, "choose") as say:
        match rule:
            case "pytorch":
                rankings = ranker.all_fallback()
            case "first":
                rankings = ranker.by_order()
            case "isolated" | "admitted":
                rankings = ranker.by_time()
        for region, ranking in rankings.items():
            emit(ChoiceMade(region=region, choice=ranking.best))
        what = "a faster kernel" if rule in TIMED else "a kernel"
        say(f"{sum(bool(ranking.kernels) for ranking in rankings.values())} regions have {what}")
    return rankings


def cover(
    prepared: PreparedModel,
    scheduler: TaskScheduler,
    ranker: Ranker,
    acceptance: Acceptance,
    rankings: Mapping[str, Ranking],
    rule: Rule,
    emit: Emit,
) -> Planned:
    """Return the cheapest covers of all regimes whose kernels all pass the full correctness suite.

    Where the rule times nothing, costs are roofline estimates. Under the rule "first" a kernel that does not pass is
    replaced by the adviser's next one.
    """
    rejected: set[tuple[str, Choice]] = set()

    def planned() -> Planned:
        ranked = ranker.by_order(rejected) if rule == "first" else rankings
        about = Estimates(ceiling=prepared.ceiling, residency=prepared.prefill.residency, rankings=ranked)
        return plan(
            prepared.decode,
            prepared.prefill,
            [*prepared.tasks, *prepared.prompt_tasks],
            ranked,
            scheduler.trials.by_region,
            scheduler.fallback_ns if rule in TIMED else about.fallback_ns,
            prepared.ceiling,
            prepared.here.target.kind,
            rejected,
            None if rule in TIMED else about.kernel_ns,
            None if backend_of(prepared.here.device).queued or rule != "admitted" else LEAVING_NS,
        )

    with stage(emit, "cover") as say:
        found = planned()
        while failed := not_accepted(prepared, acceptance, found):
            rejected.update(failed)
            if rule in TIMED:  # the fallback's reason no longer fits the candidates
                why = {region: ranker.of(region).fallback for region, _ in failed}
                rankings = {id: replace(one, fallback=why.get(id, one.fallback)) for id, one in rankings.items()}
            found = planned()
        for part in {part.region: part for parts in (*found.decode, found.prefill) for part in parts}.values():
            if part.region in rankings and rankings[part.region].is_near(part.choice):
                emit(ChoiceMade(region=part.region, choice=part.choice))
        say(f"{len(found.decode[0])} regions make up the step, estimated at {found.decode_ns / 1e6:.3f} ms")
    return found


def not_accepted(prepared: PreparedModel, acceptance: Acceptance, found: Planned) -> tuple[tuple[str, Choice], ...]:
    """Return the (region id, choice) pairs of a plan that fail; prefill kernels must be correct at every length."""
    if failed := acceptance.accept([part for parts in (*found.decode, found.prefill) for part in parts]):
        return failed
    if not prepared.prompt_tasks or backend_of(prepared.here.device).any_chunk:
        return ()
    jobs = chunks_of(prepared, found.prefill, found.layouts).everywhere(capacity(prepared.model.captured))
    wrong = {(one.template_digest, one.params) for one in acceptance.failing(list(jobs.values()), "length")}
    kernels = [(part, part.choice) for part in found.prefill if isinstance(part.choice, Kernel)]
    return tuple(
        (part.region, kernel)
        for part, kernel in kernels
        if (kernel.candidate.template_digest, kernel.candidate.params) in wrong
    )
