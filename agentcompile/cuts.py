"""Both phases of a model cut into regions, with the spaces that templates leave for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcompile import check
from agentcompile.advice import Adviser
from agentcompile.capture import Captured
from agentcompile.catalog import Catalog
from agentcompile.events import Advised, BoundaryFound, Emit, GraphCaptured, RegionFound, SpaceBounded
from agentcompile.ir.advice import Question
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.layouts import fits
from agentcompile.machine import residency
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.summary import Row, Summary, summarise
from agentcompile.space import Space
from agentcompile.tune import Subject

CHUNK = 256
"""Tokens of a prefill chunk: long enough that its matrix products are compute bound, short enough to stay in cache."""
_REASONS = 6
"""Exclusions of a space that its event names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One phase: its graph, what could be a region, and what each costs at best."""

    graph: Graph
    partition: Partition
    summary: Summary
    residency: Residency

    @property
    def regions(self) -> Mapping[str, Region]:
        """Regions by id."""
        return {region.id: region for region in self.partition.regions}


def cut(captured: Captured, target: Target, ceiling: Ceiling, emit: Emit) -> tuple[Cut, Cut]:
    """Cut the decode and the prefill graph; the decode regions are announced, because only they are searched on CPU."""
    context = captured.info.context
    lives = residency(captured.decode, target)
    cuts = []
    for graph, regime, tokens in (
        (captured.decode, Regime(phase="decode", context=(1, context)), 1),
        (captured.prefill, Regime(phase="prefill", context=(1, context)), CHUNK),
    ):
        unknown = tuple(dict.fromkeys(node.op for node in graph.nodes if node.op.startswith("aten.")))
        emit(GraphCaptured(phase=graph.phase, operators=len(graph.nodes), digest=graph.digest(), unknown=unknown))
        found = partition(graph, regime, tokens=tokens)
        summary = summarise(graph, found, ceiling, lives)
        cuts.append(Cut(graph=graph, partition=found, summary=summary, residency=lives))
    for row in cuts[0].summary.rows:
        emit(_found(row, cuts[0]))
    for boundary in cuts[0].partition.boundaries:
        emit(BoundaryFound(op=boundary.op, reason=boundary.reason, detail=boundary.detail, path=boundary.path))
    return cuts[0], cuts[1]


def _found(row: Row, cut: Cut) -> RegionFound:
    return RegionFound(
        region=row.id,
        name=row.name,
        region_kind=row.kind,
        regime=cut.partition.regime.name,
        sites=row.sites,
        flops=row.flops,
        bytes=row.bytes,
        floor_ns=row.floor_ns,
        share=row.share,
    )


def bound(cut: Cut, catalog: Catalog, target: Target, emit: Emit) -> tuple[Space, ...]:
    """The space of every region that some template serves here, largest share first."""
    spaces: list[Space] = []
    for row in cut.summary.rows:
        region = cut.regions[row.id]
        refused: list[str] = []
        templates = []
        for template in catalog.serving(region.kind):
            if not check.meant_for(template, target):
                continue
            findings = check.errors(check.applicable(region, template, target, layout_fits=fits))
            if findings:
                refused.append(f"{template.id}: {findings[0].text}")
            else:
                templates.append(template)
        space = Space(region, templates, target)
        reasons = [*refused, *(f"{e.template}: {e.points} points: {e.reason}" for e in space.exclusions)]
        emit(
            SpaceBounded(
                region=row.id,
                templates=len(templates),
                points=len(space),
                rejected=space.rejected,
                reasons=tuple(reasons[:_REASONS]),
            )
        )
        if len(space):
            spaces.append(space)
    return tuple(spaces)


def advise(
    spaces: Sequence[Space], adviser: Adviser, ceiling: Ceiling, lives: Residency, emit: Emit
) -> tuple[Subject, ...]:
    """Ask the adviser about every space; an answer only orders what is there."""
    subjects = []
    for space in spaces:
        candidates = tuple(space)
        question = Question(
            region=space.region,
            target=space.target,
            ceiling=ceiling,
            residency=lives,
            templates=space.templates,
            candidates=candidates,
        )
        advice = adviser.advise(question)
        # A ceiling taken on a busy machine is too low or too high: no kernel may be called impossible by it.
        floor = question.floor_ns if ceiling.calm else 0.0
        head = tuple(candidate.label for candidate in advice.sorted(candidates)[:3])
        note = advice.rationales[0][1] if advice.rationales else ""
        emit(Advised(region=space.region.id, adviser=adviser.label, head=head, note=note))
        subjects.append(Subject(region=space.region, space=space, advice=advice, residency=lives, floor_ns=floor))
    return tuple(subjects)
