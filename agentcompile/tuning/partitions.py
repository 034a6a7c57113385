"""Both phases of a model cut into regions, and the bounded search space of each region."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcompile import check
from agentcompile.advice.advisers import Adviser
from agentcompile.backends import backend_of
from agentcompile.capture import Captured
from agentcompile.capture.batched import NotBatchableError, batched
from agentcompile.capture.chunked import at_tokens
from agentcompile.catalog import Catalog
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import residency
from agentcompile.events import Advised, BoundaryFound, Emit, GraphCaptured, Offer, RegionFound, SpaceBounded
from agentcompile.ir.advice import Question
from agentcompile.ir.digest import Json
from agentcompile.ir.graph import TOKENS, Graph
from agentcompile.ir.program import CHUNK
from agentcompile.ir.region import Port, Regime, Region
from agentcompile.ir.scope import region_dtype, scope
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Template
from agentcompile.ops.layouts import fits
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.summary import RegionFigures, Summary, summarise
from agentcompile.space import Space
from agentcompile.system.probe import processor
from agentcompile.tuning.tasks import TuneTask

_REASONS = 6
"""The most exclusion reasons that the event of a space names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The graph of one regime, the regions that it can be cut into, and the least cost of each."""

    graph: Graph
    partition: Partition
    summary: Summary
    residency: Residency

    @property
    def regions(self) -> Mapping[str, Region]:
        """The regions by id."""
        return {region.id: region for region in self.partition.regions}


def check_batches(batches: Sequence[int], kind: str) -> None:
    """Check that a kind of device, or one device such as ``cuda:0``, has steps for that many sequences.

    Raises:
        AgentCompileError: a batch of several sequences on a device that does not serve batches, as a CPU (usage).
    """
    if not backend_of(kind).serves_batches and max(batches, default=1) > 1:
        text = f"--batch {','.join(map(str, batches))}: steps of several sequences are made for CUDA devices alone"
        raise AgentCompileError(text, hint="leave it out: a list of prompts then runs one after another")


def regimes(context: int, kind: str, batches: Sequence[int] = (1,)) -> tuple[Regime, ...]:
    """Return the regimes of decode plans: one sequence at each range of contexts, shortest first, then larger batches.

    Raises:
        AgentCompileError: a batch of several sequences on a device that does not serve batches, as a CPU (usage).
    """
    check_batches(batches, kind)
    # A range that ends at two thirds of `context` or beyond is merged into the last: it is not worth its own plan.
    ends = [*(end for end in backend_of(kind).context_ends if 3 * end < 2 * context), context]
    firsts = [1, *(end + 1 for end in ends[:-1])]
    alone = [Regime(phase="decode", context=pair) for pair in zip(firsts, ends, strict=True)]
    return (*alone, *(Regime(phase="decode", batch=b, context=(1, context)) for b in sorted(set(batches)) if b > 1))


def graph_of(captured: Captured, regime: Regime, kind: str) -> tuple[Graph, int]:
    """Return the graph that a regime's plan covers, and the number of tokens that it processes.

    On a GPU a kernel is made for one number of tokens of a prefill: `CHUNK`, or what the KV cache holds where that is
    less. On a CPU it is given the number: the plan is for any length, and measured at `CHUNK`.

    Raises:
        AgentCompileError: the decoder holds one sequence only and the regime has several (usage).
    """
    if regime.phase == "prefill":
        if backend_of(kind).any_chunk:
            return captured.prefill, CHUNK
        tokens = min(CHUNK, captured.info.context) if open_ended(captured) else 1
        return at_tokens(captured.prefill, tokens), tokens
    try:
        return batched(captured.decode, regime.batch), regime.batch
    except NotBatchableError as error:
        text = f"{captured.info.name}: a step of {regime.batch} sequences: {error}"
        raise AgentCompileError(text, hint="leave --batch out: sequences then run one after another") from error


def open_ended(captured: Captured) -> bool:
    """Return whether a chunk may have any number of tokens; else the decoder was traced for one token only."""
    return any(TOKENS in value.shape for value in captured.prefill.values)


def cut(
    captured: Captured, target: Target, ceiling: Ceiling, emit: Emit, batches: Sequence[int] = (1,)
) -> tuple[tuple[Cut, ...], Cut]:
    """Cut the decode graph for every regime, and the prefill graph; return the decode cuts and the prefill cut.

    Decode regions are emitted as events here, prefill regions by `bound`.
    """
    context = captured.info.context
    lives = residency(captured.decode, target)
    for graph in (captured.decode, captured.prefill):
        unknown = tuple(dict.fromkeys(node.op for node in graph.nodes if node.op.startswith("aten.")))
        emit(GraphCaptured(phase=graph.phase, operators=len(graph.nodes), digest=graph.digest(), unknown=unknown))
    cuts = []
    for regime in (*regimes(context, target.kind, batches), Regime(phase="prefill", context=(1, context))):
        graph, tokens = graph_of(captured, regime, target.kind)
        found = partition(graph, regime, tokens=tokens)
        summary = summarise(graph, found, ceiling, lives)
        cuts.append(Cut(graph=graph, partition=found, summary=summary, residency=lives))
    told: set[str] = set()
    for one in cuts[:-1]:
        for row in one.summary.rows:
            if row.region.id not in told:
                emit(_found(row, target, one.graph))
        told |= set(one.regions)
    for boundary in cuts[0].partition.boundaries:
        emit(BoundaryFound(op=boundary.op, reason=boundary.reason, detail=boundary.detail, path=boundary.path))
    return tuple(cuts[:-1]), cuts[-1]


def _found(row: RegionFigures, target: Target, graph: Graph) -> RegionFound:
    region, places = row.region, {node.id: at for at, node in enumerate(graph.nodes)}
    return RegionFound(
        region=region.id,
        name=region.name,
        region_kind=region.kind,
        regime=region.regime.name,
        sites=len(region.sites),
        flops=region.cost.flops,
        bytes=region.cost.bytes,
        floor_ns=row.floor_ns,
        share=row.share,
        operators=tuple(node.op for node in region.body.nodes),
        ports=tuple(_interface(port) for port in region.ports),
        dims=tuple((name, value) for name, value in scope(region, target).items() if value),
        covers=tuple(sorted(places[node] for site in region.sites for node in site.nodes)),
    )


def _interface(port: Port) -> str:
    return f"{port.name}: {port.role}, {port.access}, {port.dtype} [{', '.join(map(str, port.shape))}]"


def _offer(template: Template) -> Offer:
    return Offer(
        template=template.id,
        language=template.language,
        about=template.about,
        params=template.params,
        requires=template.requires,
    )


def bound(cuts: Sequence[Cut], catalog: Catalog, target: Target, emit: Emit) -> tuple[Space, ...]:
    """Return the non-empty search spaces of regions that some template serves, cut by cut, largest share first.

    Of a prefill on a GPU only regions with a template are emitted as events: all others run in PyTorch.
    """
    spaces: list[Space] = []
    for row, graph in {row.region.id: (row, cut.graph) for cut in cuts for row in cut.summary.rows}.values():
        region = row.region
        refused: list[str] = []
        templates = []
        for template in catalog.serving(region.kind, region_dtype(region)):
            if not check.meant_for(template, target):
                continue
            findings = check.errors(check.applicable(region, template, target, layout_fits=fits))
            if findings:
                refused.append(f"{template.id}: {findings[0].text}")
            else:
                templates.append(template)
        if region.regime.phase == "prefill":
            if not templates and not backend_of(target.kind).any_chunk:
                continue
            emit(_found(row, target, graph))
        space = Space(region, templates, target)
        reasons = [*refused, *(f"{e.template}: {e.points} points: {e.reason}" for e in space.exclusions)]
        emit(
            SpaceBounded(
                region=region.id,
                templates=len(templates),
                points=len(space),
                rejected=space.rejected,
                reasons=tuple(reasons[:_REASONS]),
                offers=tuple(_offer(template) for template in templates),
            )
        )
        if len(space):
            spaces.append(space)
    return tuple(spaces)


def question_of(space: Space, ceiling: Ceiling, lives: Residency) -> Question:
    """Return the question to an adviser about a space of which nothing was tried."""
    return Question(
        region=space.region,
        target=space.target,
        ceiling=ceiling,
        residency=lives,
        templates=space.templates,
        candidates=tuple(space),
        processor=() if backend_of(space.target.kind).own_memory else _processor(),
    )


@functools.cache
def _processor() -> tuple[tuple[str, Json], ...]:
    return tuple(processor().items())


def advise(
    spaces: Sequence[Space], adviser: Adviser, ceiling: Ceiling, lives: Residency, emit: Emit
) -> tuple[TuneTask, ...]:
    """Ask the adviser about every space, and return the tasks; an answer only orders the candidates of its space."""
    tasks = []
    for space in spaces:
        question = question_of(space, ceiling, lives)
        candidates = tuple(question.candidates)
        advice = adviser.advise(question)
        # A ceiling taken on a busy machine is too low or too high: no kernel may be called impossible by it.
        floor = question.floor_ns if ceiling.calm else 0.0
        head = tuple(candidate.label for candidate in advice.sorted(candidates)[:3])
        note = advice.rationales[0][1] if advice.rationales else ""
        emit(Advised(region=space.region.id, adviser=adviser.label, head=head, note=note))
        tasks.append(TuneTask(region=space.region, space=space, advice=advice, residency=lives, floor_ns=floor))
    return tuple(tasks)
