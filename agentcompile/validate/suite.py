"""The correctness suite: every case against the bound, poison, redzones, untouched inputs, repeats.

`run` launches the candidate once on dense buffers, by port and workspace name. It is called many times and must not
keep anything between calls. Crashes and hangs are the caller's: this runs inside a worker with a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from agentcompile import reference
from agentcompile.ir.region import Port, Region
from agentcompile.ir.trial import NumericReport
from agentcompile.validate.arena import POISONS, Arena, Poison, poison
from agentcompile.validate.bound import Bounded, Propagation, propagate
from agentcompile.validate.cases import Case, cases
from agentcompile.validate.compare import Tally, compare, finish
from agentcompile.validate.exact import inexact
from agentcompile.validate.inputs import Generator, extent
from agentcompile.validate.tolerance import ROUNDOFF, TORCH_DTYPES, Depth, Facts, rounding

Run = Callable[[Mapping[str, Tensor]], None]
EVERYDAY = ("normal", "outliers", "large")
"""Styles whose errors are typical of use, and so enter the pooled error ratio. Attention takes the first alone: with
large scores its error is decided by how two nearly equal ones happen to round."""


def validate(
    region: Region, facts: Facts, run: Run, *, seed: int, repeats: int, depth: Depth, tokens: int = 0
) -> NumericReport:
    """Judge one candidate of `region`.

    `search` stops at the first failure and tries a handful of cases; `accept` tries everything and reports every
    check. `tokens` binds symbolic extents; 0 takes the region's own, or 1.
    """
    suite = Suite(region, facts, run, seed=seed, tokens=tokens or dict(region.dims).get("tokens", 1))
    tried = suite.everything(cases(region, depth), repeats=repeats, stop_early=depth == "search")
    finish(suite.tally)
    checks = tuple(suite.tally.checks.values())
    return NumericReport(checks=checks, error_ratio=suite.tally.error_ratio, cases=tried, repeats=repeats)


class Suite:
    """One candidate's buffers and its tally."""

    def __init__(self, region: Region, facts: Facts, run: Run, *, seed: int, tokens: int) -> None:
        self.region, self.facts, self.tokens = region, facts, tokens
        self.tally = Tally()
        self._run = run
        self._generator = Generator(region, seed=seed, tokens=tokens)
        self._arena = Arena(seed=seed)
        self._inputs = [port for port in region.ports if port.role != "output"]
        self._outputs = [port for port in region.ports if port.role == "output"]
        self._states = [port for port in self._inputs if port.access != "read"]
        self._uses = dict(region.body.outputs)
        self._packed: dict[str, str] = {}
        self._parameters: dict[str, Tensor] = {}
        self._which: int | None = None
        self._buffers: dict[str, Tensor] = {}
        self._allocate()

    def _allocate(self) -> None:
        wanted = dict(self.facts.layouts)
        for port in self.region.ports:
            layout = wanted.get(port.family, "row-major") if port.role == "weight" else "row-major"
            shape = extent(port.shape, self.tokens)
            if layout != "row-major":
                self._packed[port.name] = layout
                shape = tuple(_pack(layout, torch.zeros(shape, dtype=TORCH_DTYPES[port.dtype])).shape)
            self._arena.add(port.name, shape, port.dtype)
        for name, dtype, count, zeroed in self.facts.workspaces:
            tensor = self._arena.add(name, (count,), dtype)
            if zeroed:
                tensor.zero_()
        self._buffers = self._arena.tensors()

    def everything(self, tried: tuple[Case, ...], *, repeats: int, stop_early: bool) -> int:
        """Run the cases, poisoning and repeating on the first; returns how many were tried."""
        for index, case in enumerate(tried):
            self._case(case)
            if index == 0 and (self.tally.ok or not stop_early):
                self._repeat(case, repeats)
            if stop_early and not self.tally.ok:
                return index + 1
        return len(tried)

    def _case(self, case: Case) -> None:
        inputs = self._load(case)
        where = f"{case.name}: "
        out = propagate(self.region.body, inputs, self.facts, tokens=self.tokens)
        eager = self._eager(inputs)
        before = self._arena.fingerprints(port.name for port in self._inputs if port.access == "read")
        results = []
        for pattern in POISONS:
            results.append(self._launch(inputs, out, pattern, where))
        self._same(results, "poison", where, out)
        self._untouched(before, where)
        self._states_kept(inputs, out, eager, where, case)
        if case.style == "exact":
            self._exact(results[0], out, where)
        for port in self._outputs:
            self._output(port, results[-1][port.name], out, eager, where, case)

    def _load(self, case: Case) -> dict[str, Tensor]:
        if case.weights != self._which:
            self._which = case.weights
            self._parameters = self._generator.parameters(case.weights)
            for port in self._inputs:
                if port.name in self._parameters:
                    self._store(port, self._parameters[port.name])
        inputs = self._generator.draw(case, self._parameters)
        for port in self._inputs:
            if port.name not in self._parameters:
                self._store(port, inputs[port.name])
        return inputs

    def _store(self, port: Port, tensor: Tensor) -> None:
        layout = self._packed.get(port.name)
        self._buffers[port.name].copy_(_pack(layout, tensor) if layout else tensor)

    def _eager(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model's own arithmetic; its states are copies."""
        states = {port.name for port in self._states}
        mine = {name: tensor.clone() if name in states else tensor for name, tensor in inputs.items()}
        found = reference.run(self.region.body, mine, precision="model")
        return {**found, **{name: mine[name] for name in states}}

    def _launch(self, inputs: Mapping[str, Tensor], out: Propagation, pattern: Poison, where: str) -> dict[str, Tensor]:
        """One launch on poisoned outputs, workspaces and unused slots; copies of outputs and new state entries."""
        for port in self._outputs:
            poison(self._buffers[port.name], pattern)
        for name, _, _, zeroed in self.facts.workspaces:
            if not zeroed:
                poison(self._buffers[name], pattern)
        for append in out.appends.values():
            hidden = self._buffers[append.port][:, :, int(append.slots.min()) :]
            poison(hidden, pattern)
        self._run(self._buffers)
        broken = self._arena.broken()
        self.tally.claim("redzone", not broken, f"{where}written outside {', '.join(broken)}" if broken else where)
        found = {port.name: self._buffers[port.name].clone() for port in self._outputs}
        for append in out.appends.values():
            first, last = int(append.slots.min()), int(append.slots.max()) + 1
            state = self._buffers[append.port]
            found[append.port] = state[:, :, append.slots].clone()
            rest = torch.empty_like(state[:, :, last:])
            poison(rest, pattern)
            kept = _bits(state[:, :, last:], rest) and _bits(state[:, :, :first], inputs[append.port][:, :, :first])
            self.tally.claim("state", kept, f"{where}slots of {append.port} beside {first}..{last - 1} changed")
        return found

    def _same(self, results: list[dict[str, Tensor]], name: str, where: str, out: Propagation) -> None:
        """All launches on the same inputs give the same bits; a nondeterministic template need only stay bounded."""
        if not self.facts.deterministic:
            return
        for other in results[1:]:
            changed = [port for port, tensor in results[0].items() if not _bits(tensor, other[port])]
            self.tally.claim(name, not changed, f"{where}{', '.join(changed)} differs between launches")

    def _untouched(self, before: Mapping[str, str], where: str) -> None:
        after = self._arena.fingerprints(before)
        changed = [name for name in before if before[name] != after[name]]
        self.tally.claim("inputs", not changed, f"{where}{', '.join(changed)} was written" if changed else where)

    def _states_kept(
        self, inputs: Mapping[str, Tensor], out: Propagation, eager: Mapping[str, Tensor], where: str, case: Case
    ) -> None:
        """What was appended is within its bound."""
        for append in out.appends.values():
            y = self._buffers[append.port][:, :, append.slots]
            model = eager[append.port][:, :, append.slots]
            dtype = self.region.port(append.port).dtype
            self._bounded(y, append.new, model, dtype, f"{where}{append.port}", case)

    def _output(
        self, port: Port, y: Tensor, out: Propagation, eager: Mapping[str, Tensor], where: str, case: Case
    ) -> None:
        use = self._uses[port.name]
        bounded = out.seen(use, self.tokens).map(lambda t: t.reshape(y.shape))
        if use.value in out.logits:
            self._argmax(y, out.logits[use.value], where)
        elif port.dtype not in ROUNDOFF:
            self.tally.claim("element", torch.equal(y, bounded.value), f"{where}{port.name} is not the index expected")
        else:
            self._bounded(y, bounded, eager[port.name].reshape(y.shape), port.dtype, f"{where}{port.name}", case)

    def _bounded(self, y: Tensor, r: Bounded, eager: Tensor, dtype: str, where: str, case: Case) -> None:
        styles = EVERYDAY[:1] if self._states else EVERYDAY
        everyday = case.style in styles and case.past in ("normal", "ramp")
        compare(self.tally, y, r, eager, dtype=dtype, where=where, everyday=everyday)

    def _argmax(self, y: Tensor, logits: Bounded, where: str) -> None:
        """The chosen logit reaches the largest one within both their errors."""
        r = logits.wide().reshape(y.numel(), -1)
        chosen = y.reshape(-1, 1)
        inside = bool(((chosen >= 0) & (chosen < r.shape[1])).all())
        self.tally.claim("argmax", inside, f"{where}chose {chosen.view(-1).tolist()} of {r.shape[1]}")
        if not inside or not bool(r.isfinite().all()):
            return
        error = rounding(r.abs(), self._logit_dtype()) + logits.error().expand(logits.value.shape).reshape(r.shape)
        best, at = r.max(dim=-1, keepdim=True)
        short = best - r.gather(1, chosen)
        allowed = error.gather(1, chosen) + error.gather(1, at)
        worst = float((short / (allowed + 1e-30)).max())
        text = f"{where}chose {chosen.view(-1).tolist()}, expected {at.view(-1).tolist()}"
        self.tally.add("argmax", worst, 1.0, text)

    def _logit_dtype(self) -> str:
        table = self.region.body.table()
        return next(table[n.inputs[0].value].dtype for n in self.region.body.nodes if n.op == "argmax")

    def _exact(self, result: Mapping[str, Tensor], out: Propagation, where: str) -> None:
        """Integers come out bit for bit, wherever every partial sum is representable."""
        reasons = inexact(self.region.body, out, self.facts.coefficient)
        for port in self._outputs:
            use = self._uses[port.name]
            expected = out.seen(use, self.tokens).value.reshape(result[port.name].shape)
            stored = expected.to(TORCH_DTYPES[port.dtype])
            reason = reasons.get(use.value, "")
            if not reason and not torch.equal(stored.double(), expected.double()):
                reason = f"{port.dtype} cannot hold the result"
            if reason:
                if "exact" not in self.tally.checks:
                    self.tally.add("exact", 0.0, 0.0, f"skipped for {port.name}: {reason}")
                continue
            wrong = int((result[port.name].double() != stored.double()).sum())
            self.tally.add("exact", float(wrong), 0.0, f"{where}{port.name}: {wrong} integers differ")

    def _repeat(self, case: Case, repeats: int) -> None:
        inputs = self._load(case)
        out = propagate(self.region.body, inputs, self.facts, tokens=self.tokens)
        first = self._launch(inputs, out, "low", f"{case.name}: ")
        for index in range(1, repeats):
            again = self._launch(inputs, out, POISONS[index % 2], f"{case.name}, repeat {index}: ")
            self._same([first, again], "repeats", f"{case.name}, repeat {index}: ", out)


def _pack(layout: str, tensor: Tensor) -> Tensor:
    """A weight as the candidate wants it resident."""
    from agentcompile.layouts import LAYOUTS

    packed: Tensor = LAYOUTS[layout].pack(tensor)
    return packed


def _bits(a: Tensor, b: Tensor) -> bool:
    """Bitwise equality, NaNs included."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
