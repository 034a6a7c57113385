"""The correctness suite: every case against the bound, poison, redzones, untouched inputs, repeats.

`run` launches the candidate once on dense buffers, by port and workspace name. It is called many times and must not
keep state between calls. The caller handles crashes and hangs: this runs inside a worker with a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentcompile.ir.region import Port, Region
from agentcompile.ir.template import Depth
from agentcompile.ir.trial import NumericReport
from agentcompile.ops import reference
from agentcompile.ops.reference import DTYPES
from agentcompile.validate import exact
from agentcompile.validate.arena import POISONS, Fence, Poison
from agentcompile.validate.bound import Bounded
from agentcompile.validate.cases import Case, cases, costly, many
from agentcompile.validate.choices import first_of_class
from agentcompile.validate.chunk import AnyChunk
from agentcompile.validate.chunk_lengths import ChunkLengths
from agentcompile.validate.compare import finish
from agentcompile.validate.endurance import MakeLoop, PlainLoop, endure
from agentcompile.validate.inputs import Generator
from agentcompile.validate.production import House, Late, Quarters
from agentcompile.validate.prompt_walk import PromptWalker
from agentcompile.validate.propagate import Drawn, propagate
from agentcompile.validate.rig import Instruments, Result, Rig, Run, Serial, TestedKernel, other_ways
from agentcompile.validate.scaling import scaled
from agentcompile.validate.sweep import Sweeper
from agentcompile.validate.tally import Tally
from agentcompile.validate.tolerance import ROUNDOFF, TINY, DeclaredArithmetic, rounding
from agentcompile.validate.walk import Walker

_SIDES: dict[Depth, tuple[Fence, ...]] = {
    "search": ("after",),
    "length": ("after", "before"),
    "accept": ("after", "before"),
}
"""The sides on which buffers border an unmapped page, by depth."""
_TOGETHER, _KEPT_BYTES = 32, 64 << 20
"""The number of repeats that are compared at once, and the bytes that they may take until then."""
_UNSEEN = 0.37
"""The place of an everyday case that is drawn once more: no other draw is like it."""
_SITES = (0, 1, 3)  # the draws of parameters, one for each simulated site
_TURNS = (0, 1, 0, 1, 2, 0, 1, 2, 0, 2, 1, 1, 0, 2)
"""The order of the sites: two of them in turn, as in a step with an even number, all three in turn, as with an odd one,
then each after each other one and once after itself."""
_SHARED = 1 << 26
"""The weight elements beyond which a region is too large to hold for several sites; a step has one such region."""
_ORDERED = 2  # the number of cases on which the order of the ranks is tested
_EVERYDAY = ("normal", "outliers", "large")
"""The styles whose errors enter the pooled ratio. Attention takes the first only: large scores amplify rounding."""


def validate(
    region: Region,
    facts: DeclaredArithmetic,
    run: Run,
    *,
    seed: int,
    repeats: int,
    depth: Depth,
    serial: Serial | None = None,
    tokens: int = 0,
    tools: Instruments | None = None,
    fences: bool = True,
    house: House | None = None,
    late: Late | None = None,
    launches: int = 0,
    loop: MakeLoop | None = None,
    chunk: AnyChunk | None = None,
) -> NumericReport:
    """Validate one candidate of `region`.

    `search` runs a handful of cases and stops at the first failure; `accept` runs and reports everything, `length` with
    a third of the cases. `serial`
    shows a missing barrier: no rank may wait for another, so any order of ranks gives the same bits. `tokens` replaces
    symbolic extents; 0 takes the region's own, or 1. `fences` is for kernels that run where the buffers are: a copy
    elsewhere has no unmapped page behind it. In buffers that `house` lays out as the runtime does, every case runs
    again, then `launches` more in `loop` if given; `late` launches there behind a running kernel. A kernel that serves
    a `chunk` of any number of tokens is accepted at many of them; `region` is the one at one number.
    """
    tally = Tally()
    suite = _Suite(
        region=region,
        facts=facts,
        run=run,
        tally=tally,
        tools=tools or Instruments(),
        seed=seed,
        tokens=tokens or dict(region.dims).get("tokens", 1),
        serial=serial,
        house=house,
        chunk=chunk,
    )
    tried, found = 0, cases(region, depth)
    full = max(range(len(found)), key=lambda at: found[at].length)
    early = suite.unseen(found[0]) if costly(region) else None  # one reference less, at a turn that is easier to guess
    for case in found:
        drawn = suite.draw(case)
        result = suite.evaluate(drawn)
        if tried == 0 or depth != "search":
            suite.at_home(drawn, result, late if tally.ok else None)
        going = tally.ok or depth != "search"
        if tried == 0 and going:
            suite.repeat(drawn, repeats)
        if tried < _ORDERED and going and serial is not None:
            suite.in_order(drawn, serial)
        if tried < _ORDERED and going:
            suite.other_ways(drawn)
        # A kernel that is known to overrun its buffers would crash the process here.
        if fences and tried in (0, full) and tally.ok:
            for side in _SIDES[depth]:
                suite.fence(drawn, side)
        if tried == 0 and going:  # last, since it leaves other inputs in the buffers
            other = replace(case, place=_UNSEEN)
            inputs, made = early or suite.unseen(other)
            suite.saw(drawn if early else suite.with_reference(other, inputs), made)
        tried += 1
        if depth == "search" and not tally.ok:
            break
    if depth != "search" and tally.ok:  # a candidate that failed a case needs no more tests
        tried += suite.everywhere(depth)
    if launches and tally.ok:
        suite.endure(cases(region, "search")[0], launches, loop)
    finish(tally)
    checks = tuple(tally.checks.values())
    return NumericReport(checks=checks, error_ratio=tally.error_ratio, cases=tried, repeats=repeats)


@dataclass(kw_only=True)
class _Suite(TestedKernel):
    house: House | None = None
    chunk: AnyChunk | None = None

    def __post_init__(self) -> None:
        self._generator = Generator(self.region, seed=self.seed, tokens=self.tokens)
        self._rig = Rig(self)
        self._which: int | None = None
        self._parameters: dict[str, Tensor] = {}
        self._uses = dict(self.region.body.outputs)
        self._quarters: Quarters | None = None
        if self.house is not None:
            self._quarters = Quarters(self.region, self.facts, self.run, self.house, tokens=self.tokens)

    def draw(self, case: Case) -> Drawn:
        self._use(case.weights)
        drawn = self.tools.recall(case, self._drawn)
        self._rig.load({name: tensor for name, tensor in drawn.inputs.items() if name not in self._parameters})
        for note in drawn.out.notes:
            self.tally.add("bound", 0.0, 0.0, note)
        return drawn

    def _drawn(self, case: Case) -> Drawn:
        return self.with_reference(case, self._generator.draw(case, self._parameters))

    def with_reference(self, case: Case, inputs: dict[str, Tensor]) -> Drawn:
        """Return the inputs of a case with their reference, computed now."""
        body = self.region.body
        sharp = case.style in ("level", "keen")
        out = propagate(body, inputs, self.facts, tokens=self.tokens, sharp=sharp, keen=case.keen)
        if case.light:
            return Drawn(case=case, inputs=inputs, out=out, eager={})
        appends = {port.name for port in self.region.ports if port.access == "append"}
        mine = {name: t.clone() if name in appends else t for name, t in inputs.items()}
        eager = {**reference.run(body, mine), **{name: mine[name] for name in mine if name in appends}}
        return Drawn(case=case, inputs=inputs, out=out, eager=eager)

    def everywhere(self, depth: Depth) -> int:
        """Run light cases, walks, sweeps and several sites; return how many inputs were tested."""
        count = 0
        for case in many(self.region, self.seed, depth):
            self.evaluate(self.draw(case), POISONS[count % len(POISONS) :][:1])
            count += 1
        if count:
            self._rig.untouched("many rows")
        self._use(0)
        everyday = Case(style="normal", place=_UNSEEN)
        count += scaled(self, self._rig, lambda: self._parameters | self._generator.draw(everyday, self._parameters))
        walker, prompts = Walker(self, self._rig, self._parameters), PromptWalker(self, self._parameters, self.chunk)
        count += prompts.walk() if prompts.applies else walker.walk()
        if self.chunk is not None and (each := ChunkLengths(self, self._parameters, self.chunk)).applies:
            count += each.launch()
        return count + Sweeper(walker).sweep() + self._sites()

    def _sites(self) -> int:
        """Launch for several sites in turn; they share workspaces and the kernel, and nothing else."""
        weights = sum(port.role == "weight" and math.prod(map(int, port.shape)) for port in self.region.ports)
        if weights > _SHARED or costly(self.region):
            return 0
        here, found, first = self._rig, list[tuple[Rig, Drawn]](), dict[int, Result]()
        length = cases(self.region, "search")[0].length
        for at, which in enumerate(_SITES):
            if at > 0:
                self._rig, self._which = Rig(self, spaces=here), None
            found.append((self._rig, self.draw(Case(style="normal", length=length, place=at / 8, weights=which))))
        self._rig, self._which = here, None
        for n, at in enumerate(_TURNS):
            (rig, drawn), where = found[at], f"occurrence {at} of {len(found)}, turn {n}"
            result = rig.launch(list(drawn.out.appends.values()), POISONS[n % len(POISONS)], where)
            rig.untouched(where)
            if at in first and self.facts.deterministic:
                rig.same("sites", first[at], result, where)
            else:
                first[at] = result
                self._bounds(drawn, result)
        return len(_TURNS)

    def _use(self, which: int) -> None:
        if which != self._which:
            self._which = which
            self._parameters = self._generator.parameters(which)
            self._rig.load(self._parameters)
            if self._quarters is not None:
                self._quarters.load(self._parameters)

    def evaluate(self, drawn: Drawn, patterns: Sequence[Poison] = POISONS) -> Result:
        """Launch once for every poison and compare all that was written; return the results of the first launch."""
        where, appends = drawn.case.name, list(drawn.out.appends.values())
        results = [self._rig.launch(appends, pattern, where, inputs=drawn.inputs) for pattern in patterns]
        if not drawn.case.light:  # hashing the weights costs more than the launch
            self._rig.untouched(where)
        if self.facts.deterministic:
            for other in results[1:]:
                self._rig.same("poison", results[0], other, f"{where}, poisoned {other.pattern}")
        for result in results[:1] if self.facts.deterministic else results:
            self._bounds(drawn, result)
        if drawn.case.style in ("exact", "halves"):
            exact.compare(self.region, self.facts, drawn, results[0].tensors, self.tally, self.tokens)
        return results[0]

    def at_home(self, drawn: Drawn, result: Result, late: Late | None) -> None:
        """Launch in the runtime's buffers, with what the last case left there; the bits must equal `result`."""
        if self._quarters is None:
            return
        self._quarters.load({name: tensor for name, tensor in drawn.inputs.items() if name not in self._parameters})
        appends, where = list(drawn.out.appends.values()), f"{drawn.case.name}, in the runtime's buffers"
        found = {"production": (self._quarters.launch(appends), where)}
        if late is not None:
            behind = self._quarters.launch_early(late, drawn.inputs, appends)
            found["overlap"] = behind, f"{where}, begun before its inputs were there"
        for check, (other, where) in found.items():
            if self.facts.deterministic:
                self._rig.same(check, result, other, where)
            else:
                self._bounds(drawn, other)

    def endure(self, case: Case, launches: int, loop: MakeLoop | None) -> None:
        """Launch as often as a long generation does, then validate the everyday case once more."""
        if self._quarters is not None:
            drawn = self.draw(case)
            loop = loop or (lambda buffers, turns: PlainLoop(self.run, buffers, turns))
            endure(self, self._quarters, loop, launches=launches, parameters=self._parameters, length=case.length)
            self.evaluate(drawn)

    def unseen(self, case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Launch on inputs of which this process holds no result; return them, and copies of all that it may write.

        Everywhere else the reference lies in memory while the candidate runs, which may read whatever it finds there.
        """
        self._use(case.weights)
        inputs = self._generator.draw(case, self._parameters)
        self._rig.load({name: tensor for name, tensor in inputs.items() if name not in self._parameters})
        states = [port.name for port in self.region.ports if port.access == "append"]
        found = self._rig.launch([], POISONS[0], f"{case.name}, before its result exists").tensors
        return inputs, found | {name: self._rig.buffer(name).clone() for name in states}

    def saw(self, drawn: Drawn, unseen: dict[str, Tensor]) -> None:
        """Compare what a launch left that was made before its reference."""
        appended = {append.port: append.entries(unseen[append.port]) for append in drawn.out.appends.values()}
        self._bounds(drawn, Result(tensors=unseen | appended, pattern=POISONS[0]))

    def repeat(self, drawn: Drawn, repeats: int) -> None:
        """Launch `repeats` times on the same inputs; a nondeterministic template need only stay within its bounds."""
        where, appends = drawn.case.name, list(drawn.out.appends.values())
        first = self._rig.launch(appends, POISONS[0], where)
        # A device is queried once for many launches, because each answer waits for all queued work.
        together = max(1, min(_TOGETHER, _KEPT_BYTES // max(first.nbytes, 1)))
        for begin in range(1, repeats, together):
            some = range(begin, min(begin + together, repeats))
            again = {
                f"{where}, repeat {index}": self._rig.launch(appends, POISONS[index % 2], where, checked=False)
                for index in some
            }
            self._rig.redzones(f"{where}, repeats {some[0]} to {some[-1]}")
            if self.facts.deterministic:
                self._rig.all_same("repeats", first, again)
            else:
                for result in again.values():
                    self._bounds(drawn, result)

    def fence(self, drawn: Drawn, side: Fence) -> None:
        """Launch on buffers that end, or begin, at unmapped pages, where even an unused read past them faults."""
        where, appends = f"{drawn.case.name}, unmapped {side}", list(drawn.out.appends.values())
        fenced = Rig(self, fenced=side)
        fenced.mirror(self._rig)
        other = fenced.launch(appends, POISONS[1], where)
        if self.facts.deterministic:
            self._rig.same("fence", self._rig.launch(appends, POISONS[0], where), other, where)

    def other_ways(self, drawn: Drawn) -> None:
        """Launch with buffers that lie in the other ways that the template allows; the bits must be the same."""
        for check, how, run in other_ways(self.facts, self.run, self.tokens):
            self._otherwise(check, drawn, how, run)

    def _otherwise(self, check: str, drawn: Drawn, how: str, run: Run) -> None:
        where, appends = f"{drawn.case.name}, {how}", list(drawn.out.appends.values())
        base = self._rig.launch(appends, POISONS[0], where)
        self._rig.same(check, base, self._rig.launch(appends, POISONS[1], where, run=run), where)

    def in_order(self, drawn: Drawn, serial: Serial) -> None:
        """Launch with the ranks one after another, forwards and backwards; all three ways must leave the same bits."""
        if not self.facts.deterministic:
            return
        where, appends = drawn.case.name, list(drawn.out.appends.values())
        base = self._rig.launch(appends, POISONS[0], where)
        for backwards in (False, True):
            where = f"{drawn.case.name}, ranks {'in reverse' if backwards else 'in turn'}"

            def run(buffers: Mapping[str, Tensor], backwards: bool = backwards) -> None:
                serial(buffers, backwards)

            self._rig.same("order", base, self._rig.launch(appends, POISONS[1], where, run=run), where)

    def _bounds(self, drawn: Drawn, result: Result) -> None:
        for append in drawn.out.appends.values():
            stored = append.new.value.to(drawn.inputs[append.port].dtype)
            model = append.entries(drawn.eager[append.port]) if append.port in drawn.eager else stored
            self._compare(drawn, append.port, result.tensors[append.port], append.new, model)
        for port in self.region.ports:
            if port.role == "output":
                self._output(drawn, port, result.tensors[port.name])

    def _output(self, drawn: Drawn, port: Port, y: Tensor) -> None:
        use = self._uses[port.name]
        bounded = drawn.out.seen(use, self.tokens).map(lambda tensor: tensor.reshape(y.shape))
        if use.value in drawn.out.logits:
            self._argmax(drawn, y, drawn.out.logits[use.value])
        elif port.dtype not in ROUNDOFF:
            equal = torch.equal(y, bounded.value)
            self.tally.claim("element", equal, f"{drawn.case.name}: {port.name} is not the index expected")
        else:
            model = drawn.eager.get(port.name, bounded.value.to(DTYPES[port.dtype]))
            self._compare(drawn, port.name, y, bounded, model.reshape(y.shape))

    def _compare(self, drawn: Drawn, port: str, y: Tensor, bounded: Bounded, eager: Tensor) -> None:
        case = drawn.case
        styles = _EVERYDAY[:1] if drawn.out.appends else _EVERYDAY
        self.tools.compare(
            self.tally,
            y,
            bounded,
            eager,
            dtype=self.region.port(port).dtype,
            where=f"{case.name}: {port}",
            everyday=case.style in styles and case.past in ("normal", "ramp"),
        )

    def _argmax(self, drawn: Drawn, y: Tensor, logits: Bounded) -> None:
        """Check that the chosen logit reaches the largest one within both their errors."""
        r = logits.wide().reshape(y.numel(), -1)
        chosen, where = y.reshape(-1, 1), f"{drawn.case.name}: chose {y.view(-1).tolist()}"
        inside = bool(((chosen >= 0) & (chosen < r.shape[1])).all())
        self.tally.claim("argmax", inside, f"{where} of {r.shape[1]}")
        if inside and drawn.case.style in ("infinities", "nan"):
            first = first_of_class(r)
            right = bool(((chosen == first) | (first < 0)).all())
            self.tally.claim("argmax", right, f"{where}, the first NaN or infinity is {first.view(-1).tolist()}")
        if not inside or not bool(r.isfinite().all()):
            return
        name = next(n.inputs[0].value for n in self.region.body.nodes if n.op == "argmax")
        error = rounding(r.abs(), self.region.body.table()[name].dtype)
        error = error + logits.error().expand(logits.value.shape).reshape(r.shape)
        best, at = r.max(dim=-1, keepdim=True)
        allowed = error.gather(1, chosen) + error.gather(1, at) + TINY
        short = (best - r.gather(1, chosen)) / allowed
        self.tally.add("argmax", float(short.max()), 1.0, f"{where}, expected {at.view(-1).tolist()}")
        whole = drawn.case.style == "exact" and name not in exact.inexact(self.region.body, drawn.out, self.facts)
        if whole or drawn.case.style == "choice":
            self._first_of_equals(drawn.case, chosen, r, allowed)

    def _first_of_equals(self, case: Case, chosen: Tensor, r: Tensor, allowed: Tensor) -> None:
        """Check that the first of equal logits is chosen, and surely so when no other logit is near."""
        best = r.max(dim=-1, keepdim=True).values
        equal = r == best
        first = equal.to(torch.uint8).argmax(-1, keepdim=True)
        where = f"{case.name}: chose {chosen.view(-1).tolist()}, the first of the largest is {first.view(-1).tolist()}"
        self.tally.claim("ties", not bool((equal.gather(1, chosen) & (chosen != first)).any()), where)
        if case.style == "choice":
            second = r.masked_fill(equal, -torch.inf).max(dim=-1, keepdim=True).values
            sure = best - second > 2.0 * allowed
            self.tally.claim("exact", not bool((sure & (chosen != first)).any()), where)
