"""The default adviser: a deterministic cost model from roofline, cache sizes and vector width.

For every candidate it predicts how far the kernel stays above the region's floor, as a sum of small relative losses,
each with its reason in words. The constants are rules of thumb for memory-bound decoding on CPUs, seen on two server
machines; they order the search and nothing else, so a wrong one only costs trials.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.backends import backend_of
from agentcompile.ir.advice import Advice, Hint, Question, Risk
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.template import Candidate, Param, ParamValue, Template

HEAD = 12
"""Candidates that get a sentence."""
HINTED = 3
"""Values that a hint names."""
SPREAD = 32
"""Candidates at the start of the ranking that are spread over the space."""
ALIKE, KIN = 0.02, 0.005
"""Relative penalty of a candidate for each neighbour ranked before it, and for each other candidate of its template.

They are about the error of the losses in one parameter, and in a template as a whole.
"""
BARRIER_NS = 1500
"""Nanoseconds of a launch with the barrier that follows it."""
SUMS, CACHED_SUMS = 2, 4
"""Independent sums that keep up with the data that a thread reads from DRAM, and from the last-level cache.

A multiply-add takes four to six cycles, in which DRAM delivers less than a vector and the last-level cache about two;
both are doubled, because vectors arrive unevenly.
"""
LIBRARY_CALL_NS = 5000
"""Nanoseconds to dispatch one PyTorch operator from Python with its arguments bound."""
PREFETCH_BYTES = 4096
"""Best distance in bytes of a software prefetch on streams from DRAM: it covers the latency and stays within a page."""
CACHED_PREFETCH_BYTES = 2048
"""Best distance in bytes for the last-level cache, whose latency is a few times shorter."""
VECTOR_BYTES = {"avx512f": 64, "avx2": 32, "neon": 16}

Role = Literal["prefetch", "streams", "unroll", "split", "tile", "threads", "other"]
"""The purpose of a template parameter."""
NAMES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("prefetch", re.compile(r"AHEAD|PREFETCH|DISTANCE")),
    ("split", re.compile(r"SPLIT|PARTS")),
    ("threads", re.compile(r"THREADS|WORKERS")),
    ("unroll", re.compile(r"UNROLL|VECS|VECTORS|CHAINS")),
    ("streams", re.compile(r"STREAMS|TILES|ROWS")),
    ("tile", re.compile(r"TILE|CHUNK|BLOCK|SLOTS")),
)
"""Patterns of parameter names; the first that matches decides the role."""
_TILES = "amx_bf16"
"""The instruction set of templates that multiply tiles of a chunk's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A relative loss above the floor with its reason; with a loss of 0 the reason names what is right."""

    share: float
    reason: str


@dataclass(frozen=True, slots=True)
class Heuristic:
    """An adviser that orders candidates by predicted time and asks nobody."""

    label: str = "heuristic"

    def advise(self, question: Question) -> Advice:
        """Order all candidates by predicted loss, ties in the space's order; the first `HEAD` get a sentence each."""
        machine = _Machine(question)
        templates = {template.id: template for template in question.templates}
        models = {id: _TemplateModel(template, machine) for id, template in templates.items()}
        scored: list[tuple[float, int, Candidate]] = []
        for at, candidate in enumerate(question.candidates):
            losses = models[candidate.template].losses(candidate)
            scored.append((sum(loss.share for loss in losses), at, candidate))
        scored.sort(key=lambda entry: entry[:2])
        order = _spread([(loss, candidate) for loss, _, candidate in scored])
        sentences = [
            (candidate.id, _sentence(models[candidate.template].losses(candidate))) for candidate in order[:HEAD]
        ]
        return Advice(
            label=self.label,
            order=tuple(candidate.id for candidate in order),
            hints=tuple(_hints(order, templates.values())),
            risks=tuple(risk for template in templates.values() for risk in _risks(template)),
            rationales=tuple(sentences),
        )


def _spread(ranked: Sequence[tuple[float, Candidate]]) -> list[Candidate]:
    """Spread the first `SPREAD` candidates of the ranking over the space; the others keep their order.

    The losses are wrong about a candidate's neighbours in the same way, and in part about its whole template, so the
    next of them tells less than its own loss says. Each chosen candidate therefore adds `ALIKE` to its neighbours'
    losses, and `KIN` to those of its template's other candidates.
    """
    added = [0.0] * len(ranked)
    totals = [loss for loss, _ in ranked]  # with what was added; infinite for one that is chosen
    own: dict[str, list[int]] = {}
    for at, (_, candidate) in enumerate(ranked):
        own.setdefault(candidate.template, []).append(at)
    taken = list[int]()
    while len(taken) < min(SPREAD, len(ranked)):
        chosen = totals.index(min(totals))
        taken.append(chosen)
        totals[chosen] = math.inf
        candidate = ranked[chosen][1]
        own[candidate.template].remove(chosen)
        for at in own[candidate.template]:
            differ = sum(map(operator.ne, ranked[at][1].params, candidate.params))
            added[at] += ALIKE if differ <= 1 else KIN
            totals[at] = ranked[at][0] + added[at]
    first = set(taken)
    return [ranked[at][1] for at in taken] + [one for at, (_, one) in enumerate(ranked) if at not in first]


class _Machine:
    def __init__(self, question: Question) -> None:
        self.target = question.target
        self.region = question.region
        self.dims = dict(question.region.dims)
        self.dram = question.residency == "dram"
        self.floor_ns = max(question.floor_ns, 1)
        self.dtype = region_dtype(question.region)
        self.item = ITEM_BYTES[self.dtype]
        self.vector_bytes = next((size for isa, size in VECTOR_BYTES.items() if isa in self.target.isa), 16)
        self.registers = 32 if self.vector_bytes in (64, 16) else 16
        self.threads = max(self.target.threads, 1)
        self.tiled = _TILES in self.target.isa and any(_TILES in template.arch for template in question.templates)

    @property
    def units(self) -> int:
        """The independent pieces of work that threads can share: rows of weights, or heads of the cache."""
        for name in ("rows", "kv_heads", "width", "vocab", "groups"):
            if name in self.dims:
                return max(self.dims[name], 1)
        return 1

    @property
    def heads(self) -> bool:
        """Whether threads share the work by heads of a cache, not by rows of weights."""
        return "kv_heads" in self.dims and "rows" not in self.dims

    @property
    def dot_products(self) -> str:
        """The ISA extension that multiplies pairs of this dtype into float32; empty when the machine has none."""
        return "avx512_bf16" if self.dtype == "bf16" and "avx512_bf16" in self.target.isa else ""


class _TemplateModel:
    """The losses of one template's candidates: what depends on the template alone is worked out once.

    A candidate's losses follow from a few small numbers, so most of the thousands of a space have one that is known.
    """

    def __init__(self, template: Template, machine: _Machine) -> None:
        self._fixed = tuple(_template_losses(template, machine))
        self._by_params = _param_losses(template, machine)

    def losses(self, candidate: Candidate) -> tuple[Loss, ...]:
        """Return the losses of a candidate of the template."""
        return (*self._fixed, *self._by_params(dict(candidate.params)))


def _template_losses(template: Template, machine: _Machine) -> Iterator[Loss]:
    """Yield the losses that no parameter changes: the call, the vectors, the layout and the launches."""
    if template.language == "library":
        share = 0.6 if machine.dtype == "bf16" else 0.1
        share += LIBRARY_CALL_NS * max(len(machine.region.body.nodes), 1) / machine.floor_ns
        yield Loss(share=share, reason="a library call, with PyTorch's dispatch and no fusion")
        return
    if backend_of(machine.target.kind).tuned_defaults:
        newer = any(arch.startswith("sm_90") for arch in template.arch) and "sm_80" not in template.arch
        text = "made for this generation of devices" if newer else "runs on every generation of devices"
        yield Loss(share=0.0 if newer else 0.02, reason=text)
        return
    asked = next((isa for isa in VECTOR_BYTES if isa in template.arch), "")
    if asked and VECTOR_BYTES[asked] < machine.vector_bytes:
        yield Loss(
            share=0.05, reason=f"vectors of {VECTOR_BYTES[asked]} bytes where {machine.vector_bytes} are to be had"
        )
    matrices = [port for port in machine.region.ports if port.role == "weight" and len(port.shape) == 2]
    if machine.tiled:
        if _TILES in template.arch:
            yield Loss(share=0.0, reason="a chunk of tokens multiplied in tiles (AMX)")
        else:
            yield Loss(share=0.5, reason="vectors, where tiles (AMX) multiply several times as much")
    if matrices and any(template.layout(port.family) != "row-major" for port in matrices):
        unit = ", multiplied in bf16 pairs" if machine.dot_products else ""
        yield Loss(share=0.0, reason=f"packed weights read as one stream{unit}")
    elif matrices:
        yield Loss(share=0.04, reason="row-major weights, summed across the vector at the end of each row")
    extra = max(len(template.launches) - 1, 0)
    if extra:
        yield Loss(share=extra * BARRIER_NS / machine.floor_ns, reason=f"{extra + 1} launches with a barrier each")


def _param_losses(template: Template, machine: _Machine) -> Callable[[Mapping[str, ParamValue]], Iterable[Loss]]:
    """Return a function from the values of a template's parameters to their losses."""
    # The rules are about streams from memory; kernels of a chunk multiply what is in a cache.
    if backend_of(machine.target.kind).tuned_defaults or "decode" not in template.phases:
        return lambda values: _from_defaults(template, values)
    roles: dict[Role, list[Param]] = {}
    for param in template.params:
        roles.setdefault(role_of(param), []).append(param)
    other = _table(roles.get("other", ()), _far)
    prefetch = _table(roles.get("prefetch", ()), lambda param, value: _prefetch(param, int(value), machine))
    tile = _table(roles.get("tile", ()), lambda param, value: _tile(param, int(value), machine))
    streams_loss = functools.cache(lambda streams: _streams(streams, machine))
    registers_loss = functools.cache(lambda chains: _registers(chains, machine))
    balance_loss = functools.cache(lambda rows, split, threads: _balance(rows, split, threads, machine))
    tile_rows = max((_tile_rows(layout) for _, layout in template.layouts), default=1)

    def losses(values: Mapping[str, ParamValue]) -> Iterator[Loss]:
        numbers = {role: [int(values[param.name]) for param in roles[role]] for role in roles if role != "other"}
        yield from (known[values[name]] for name, known in other)
        yield from (known[values[name]] for name, known in prefetch)
        streams = math.prod(max(value, 1) for value in numbers.get("streams", ()))
        unroll = math.prod(max(value, 1) for value in numbers.get("unroll", ()))
        if "streams" in numbers:
            yield streams_loss(streams)
        # The elements of a head are independent sums already, and only one head reads adjacent keys.
        if ("streams" in numbers or "unroll" in numbers) and not machine.heads:
            yield registers_loss(streams * unroll)
        if template.language != "library":
            split = math.prod(max(value, 1) for value in numbers.get("split", ()))
            threads = min(numbers.get("threads", ()), default=machine.threads)
            rows = (1 if machine.heads else streams) * tile_rows
            yield balance_loss(rows, split, min(max(threads, 1), machine.threads))
        yield from (known[values[name]] for name, known in tile)

    return losses


def _table(
    params: Iterable[Param], loss: Callable[[Param, ParamValue], Loss]
) -> list[tuple[str, dict[ParamValue, Loss]]]:
    """Return for each parameter its name and the loss of every value of its domain."""
    return [(param.name, {value: loss(param, value) for value in param.domain}) for param in params]


def _far(param: Param, value: ParamValue) -> Loss:
    """Return a small loss by the distance from the default, for a parameter of unknown purpose."""
    away = abs(param.domain.index(value) - param.domain.index(param.default))
    return Loss(share=0.01 * away, reason=f"{param.name}={value}")


def _from_defaults(template: Template, values: Mapping[str, ParamValue]) -> Iterator[Loss]:
    """Yield a small loss for each parameter by its distance from the default.

    On a GPU bytes in flight, co-residency and latency interact, and no simple rule was found: the defaults won on one
    device, and their neighbours are nearly as good. For a chunk's kernels on a CPU no rule was sought.
    """
    for param in template.params:
        away = abs(param.domain.index(values[param.name]) - param.domain.index(param.default))
        yield Loss(share=0.02 * away, reason=f"{param.name}={values[param.name]}")


def _prefetch(param: Param, value: int, machine: _Machine) -> Loss:
    """Return the loss of a prefetch distance.

    DRAM wants a software prefetch about a page ahead, the last-level cache a shorter one; without prefetch both lose.
    """
    distance = in_bytes(param, value, machine.target.line_bytes)
    place = "DRAM" if machine.dram else "cache"
    if distance <= 0:
        return Loss(share=0.2 if machine.dram else 0.05, reason=f"no prefetch on a stream from {place}")
    best = PREFETCH_BYTES if machine.dram else CACHED_PREFETCH_BYTES
    away = math.log2(distance / best)
    # Too short leaves latency uncovered; too long wastes only the end of a stream.
    share = 0.005 * away if away > 0 else -(0.03 if machine.dram else 0.015) * away
    return Loss(share=share, reason=f"a prefetch {distance} bytes ahead of a stream from {place}")


def _streams(streams: int, machine: _Machine) -> Loss:
    """Return the loss of the number of streams that a thread reads.

    DRAM serves one long stream a thread well. From a cache a few streams share the loads of the activation; these come
    from the first cache at a multiple of the rate of the last, so the gain is small.
    """
    share = 0.005 * math.log2(streams) if machine.dram else 0.01 * abs(math.log2(streams / 2))
    many = f"{streams} streams" if streams > 1 else "one stream"
    return Loss(share=share, reason=f"{many} a thread from {'DRAM' if machine.dram else 'cache'}")


def _registers(chains: int, machine: _Machine) -> Loss:
    """Return the loss of too few or too many independent sums.

    They hide the latency of the multiply-add units; more than the registers hold are spilled at every step.
    """
    room, wanted = machine.registers - 4, SUMS if machine.dram else CACHED_SUMS
    if chains > room:
        share = 0.1 + 0.3 * math.log2(chains / room)
        return Loss(share=share, reason=f"{chains} sums spill from {machine.registers} registers")
    away = math.log2(chains / wanted)
    share = 0.01 * away if away > 0 else 0.05 * away * away
    return Loss(share=share, reason=f"{chains} sums in flight in {machine.registers} registers")


def _tile_rows(layout: str) -> int:
    """Return the rows that a packed layout keeps together, from its name: 16 for `rows16-k2`."""
    found = re.match(r"rows(\d+)", layout)
    return int(found[1]) if found else 1


def _balance(rows: int, split: int, threads: int, machine: _Machine) -> Loss:
    """Return the loss of an uneven share of work: the slowest thread decides, because pieces are not divided.

    Splitting helps only where there are too few pieces.
    """
    pieces = max(math.ceil(machine.units / rows), 1) * split
    idle = math.ceil(pieces / threads) * threads / pieces - 1
    slow = machine.threads / threads - 1 if machine.floor_ns > 2 * BARRIER_NS else 0.0
    merge = 0.02 * math.log2(split) if pieces // split >= machine.threads else 0.0
    return Loss(share=min(idle, 1.0) + slow + merge, reason=f"{pieces} pieces over {threads} threads")


def _tile(param: Param, value: int, machine: _Machine) -> Loss:
    """Return the loss of a tile size: keys and values should fill about half of the first cache.

    For tiles of rows, the loss grows with the distance from the default.
    """
    width = machine.dims.get("head_dim", 0)
    if not width:
        away = abs(param.domain.index(value) - param.domain.index(param.default))
        return Loss(share=0.005 * away, reason=f"{param.name}={value}")
    nbytes = 2 * max(value, 1) * width * machine.item
    half = max(machine.target.cache_bytes[0] // 2, 1) if machine.target.cache_bytes else 1 << 14
    share = 0.05 * math.log2(nbytes / half) if nbytes > half else 0.01 * math.log2(half / nbytes)
    return Loss(share=share, reason=f"{param.name}={value} looks at {nbytes} bytes at a time")


def role_of(param: Param) -> Role:
    """Return the role of a parameter; `other` when its name matches no pattern, or a value of it is not a number."""
    if not all(isinstance(value, int) for value in param.domain):
        return "other"
    return next((role for role, pattern in NAMES if pattern.search(param.name)), "other")


def in_bytes(param: Param, value: int, line_bytes: int) -> int:
    """Return a prefetch distance in bytes.

    The value counts cache lines when the domain is at most 128 or the `about` line speaks of lines and not of bytes.
    """
    numbers = [number for number in param.domain if isinstance(number, int)]
    lines = "line" in param.about and "byte" not in param.about
    return value * line_bytes if lines or max(numbers) <= 128 else value


def _sentence(losses: Iterable[Loss]) -> str:
    largest = sorted(losses, key=lambda loss: loss.share)
    total = sum(loss.share for loss in largest)
    text = "; ".join(loss.reason for loss in largest[:3]) or "one way to run it"
    if len(largest) > 3 and largest[-1].share >= 0.02:
        text += f"; but {largest[-1].reason}"
    return f"{text}: about {100 * total:.0f} % above the roofline."


def _hints(order: list[Candidate], templates: Iterable[Template]) -> Iterator[Hint]:
    for template in templates:
        own = [dict(candidate.params) for candidate in order if candidate.template == template.id]
        for param in template.params:
            values = tuple(dict.fromkeys(params[param.name] for params in own))[:HINTED]
            if len(param.domain) > 1 and values:
                yield Hint(template=template.id, param=param.name, values=values)


def _risks(template: Template) -> Iterator[Risk]:
    if not template.deterministic:
        yield Risk(template=template.id, text="its result may differ between runs")
    for value, dtype in template.rounds:
        yield Risk(template=template.id, text=f"it rounds {value} to {dtype}, which costs accuracy")
    if template.workspaces:
        yield Risk(template=template.id, text="its workspace competes with the weights for cache")
