"""Prefill plans carried over to lengths other than the one that they were found at.

A kernel is made for one number of tokens, so the plan is found at one (`CHUNK`) and carried over: node ids
are the same at every length, so each choice finds its sites again, and its template is specialised with the same
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentcompile import check
from agentcompile.capture import Captured
from agentcompile.capture.chunked import at_tokens
from agentcompile.evaluation.evaluator import EvaluationJob
from agentcompile.ir.graph import Graph
from agentcompile.ir.program import CHUNK, NativeCall, Program
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Source, Template
from agentcompile.ir.trial import Choice, Fallback, Kernel, Layouts, Part
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import fits
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.last import for_one
from agentcompile.runtime.lower import lower
from agentcompile.runtime.pieces import LENGTHS, PADDED, PIECES, in_pieces, served
from agentcompile.tuning.partitions import open_ended
from agentcompile.tuning.prepared import PreparedModel

Place = tuple[str, frozenset[str]]
"""A region kind, and the ids of the nodes of one of its sites."""


ROOM = 0.065
"""Share of the bytes of weights and KV cache that the activations of a chunk longer than `PADDED` tokens may take."""

LITTLE = 64 << 20
"""Bytes of activations that are little on any host, however small the model."""


def capacity(captured: Captured) -> int:
    """Return the tokens of the longest possible chunk; 1 where the decoder could not be traced for any number."""
    return _lengths(captured.info.context)[0] if open_ended(captured) else 1


def usual(captured: Captured) -> int:
    """Return the tokens of the chunks in which prompts run on a CPU unless a plan says otherwise."""
    return min(CHUNK, capacity(captured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A prefill plan at one length."""

    program: Program
    jobs: tuple[EvaluationJob, ...]
    """The kernels of the program, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """A prefill plan: `parts` cover `cut`, which was cut from `graph` at some number of tokens."""

    graph: Graph
    """The prefill graph for any number of tokens."""
    cut: Partition
    parts: tuple[Part, ...]
    templates: Mapping[str, Template]
    target: Target
    layouts: Layouts
    pinned: Mapping[tuple[str, str, Params], Source] = field(default_factory=dict)
    """Sources of a lock by region id, template digest and parameters; all others are made from the templates."""
    _made: dict[int, tuple[Chunk, Partition]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def at(self, tokens: int) -> Chunk:
        """Return the plan for `tokens` tokens, with logits for one of them.

        More than `PADDED` tokens run in pieces where that takes less memory. Sites whose template does not serve this
        length run in PyTorch.

        Raises:
            NotBindableError: the graph was traced for a fixed number of tokens.
        """
        chunks = {rows: self._alone(rows)[0] for rows in (tokens, 1)}
        program = self._for_one(tokens)
        for rows in PIECES if tokens > PADDED else ():
            chunks[rows] = self._alone(rows)[0]
            program = in_pieces(self._for_one(tokens), self._for_one(rows), self._regions(tokens))
            if _fits_in(program):
                break
        called = {call.source for call in program.calls if isinstance(call, NativeCall)}
        jobs = {job.source.digest: job for chunk in chunks.values() for job in chunk.jobs}
        return Chunk(program=program, jobs=tuple(job for digest, job in jobs.items() if digest in called))

    def _for_one(self, tokens: int) -> Program:
        return for_one(self._alone(tokens)[0].program, self._alone(1)[0].program, self._regions(tokens))

    def _regions(self, tokens: int) -> Mapping[str, Region]:
        return {region.id: region for region in self._alone(tokens)[1].regions}

    def longest(self, most: int) -> int:
        """Return the tokens of the longest chunk, up to `most`, whose activations fit in their share of memory."""
        *longer, usual = _lengths(most)
        return next((length for length in longer if _fits_in(self.at(length).program)), usual)

    def _alone(self, tokens: int) -> tuple[Chunk, Partition]:
        """Return the plan for `tokens` tokens, every site once, and the cut that it covers; each is made once."""
        if tokens not in self._made:
            self._made[tokens] = self._make(tokens)
        return self._made[tokens]

    def any_up_to(self, most: int) -> Chunk:
        """Return the plan for any number of tokens up to `most`, given to kernels that are made for as many (CPU)."""
        return self._carried(self.graph, most)[0]

    def _make(self, tokens: int) -> tuple[Chunk, Partition]:
        return self._carried(at_tokens(self.graph, tokens), tokens)

    def _carried(self, graph: Graph, tokens: int) -> tuple[Chunk, Partition]:
        cut = partition(graph, self.cut.regime, tokens=tokens)
        places = {
            (region.kind, frozenset(site.nodes)): (region, at)
            for region in cut.regions
            for at, site in enumerate(region.sites)
        }
        chosen: dict[tuple[str, Choice], list[int]] = {}
        jobs: dict[str, EvaluationJob] = {}
        for part in self.parts:
            for place in self._places(part):
                region, at = places[place]
                chosen.setdefault((region.id, self._choice(part.choice, region, jobs)), []).append(at)
        parts = [Part(region=id, choice=choice, sites=tuple(sorted(sites))) for (id, choice), sites in chosen.items()]
        sources = {digest: job.source for digest, job in jobs.items()}
        program = lower(graph, schedule(graph, cut, _in_order(parts, cut)), sources, dict(self.layouts))
        return Chunk(program=program, jobs=tuple(jobs.values())), cut

    def _places(self, part: Part) -> list[Place]:
        region = self.cut.region(part.region)
        sites = part.sites or range(len(region.sites))
        return [(region.kind, frozenset(region.sites[at].nodes)) for at in sites]

    def _choice(self, choice: Choice, region: Region, jobs: dict[str, EvaluationJob]) -> Choice:
        if isinstance(choice, Fallback):
            return choice
        template, params = self.templates[choice.candidate.template_digest], choice.candidate.params
        if found := check.errors(check.check(region, template, params, self.target, layout_fits=fits)):
            return Fallback(reason=f"{template.id} does not serve this length: {found[0].text}")
        candidate = replace(choice.candidate, region=region.id, regime=region.regime)
        own = self.pinned.get((region.id, choice.candidate.template_digest, params))
        source = own or specialise(template, region, params, self.target)
        jobs[source.digest] = EvaluationJob(candidate=candidate, region=region, template=template, source=source)
        return Kernel(
            candidate=candidate,
            source=source.digest,
            speedup=choice.speedup,
            half_width=choice.half_width,
            decided_by=choice.decided_by,
            reason=choice.reason,
        )

    def everywhere(self, capacity: int) -> dict[str, EvaluationJob]:
        """Return the kernels of every length that a chunk of up to `capacity` tokens may run at, by source digest."""
        return {job.source.digest: job for tokens in (1, *served(capacity)) for job in self.at(tokens).jobs}


def fits_beside(program: Program, tokens: int) -> bool:
    """Return whether the activations of `tokens` tokens take little memory: their share, or `LITTLE`."""
    return program.arena_bytes * tokens <= max(ROOM * _resident_bytes(program), LITTLE)


def chunks_of(prepared: PreparedModel, parts: Sequence[Part], layouts: Layouts) -> Chunks:
    """Return the prefill plan of `parts`, which cover the prefill cut, at any length."""
    return Chunks(
        graph=prepared.model.captured.prefill,
        cut=prepared.prefill.partition,
        parts=tuple(parts),
        templates={template.digest: template for task in prepared.prompt_tasks for template in task.space.templates},
        target=prepared.here.target,
        layouts=layouts,
    )


def _lengths(most: int) -> tuple[int, ...]:
    return (*(length for length in reversed(LENGTHS) if PADDED < length <= most), min(most, PADDED))


def _fits_in(program: Program) -> bool:
    return program.arena_bytes <= ROOM * _resident_bytes(program)


def _resident_bytes(program: Program) -> int:
    resident = {
        buffer.tensor: buffer.nbytes for buffer in program.buffers if buffer.role in ("weight", "constant", "state")
    }
    return sum(resident.values())


def _in_order(parts: Sequence[Part], cut: Partition) -> list[Part]:
    order = {region.id: at for at, region in enumerate(cut.regions)}
    return sorted(parts, key=lambda part: (order[part.region], part.sites))
