"""Sweeps over every row, length and choice of a region, where the right answer costs next to nothing to compute.

A row of a table is itself. Attention of a zero query is the mean of the values, whose running sums give all lengths at
once. An activation along a row of the last product makes that row the argmax. The sweeps visit what the cases and the
walk are too few for: some from every part first, then all others in random order, for as long as time allows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentcompile.ir.graph import Node
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.allowance import Allowance
from agentcompile.validate.arena import POISONS
from agentcompile.validate.bound import Bounded
from agentcompile.validate.choices import chooser_of
from agentcompile.validate.inputs import generator
from agentcompile.validate.walk import Walker

_ROWS = 4096
"""The number of table rows that are always tested, one from each of that many equal parts."""
_ALL_S = 3.0
"""The seconds that the launches for all other rows, and for all other choices, may take."""
_READ = 3 << 30  # the bytes of caches that launches at every length may read
_MULTIPLIED = 1 << 29
"""The number of weights that the first launches with a chosen winner may read; at least `_LEAST` are made."""
_LEAST = 24
_TOGETHER, _MANY = 64, 256  # the numbers of launches that are compared at once
_APART = 0.25  # the lead that the winner's logit needs, as a share of its size


class Sweeper:
    """The sweeps over the candidate of a walk, which run after the walk."""

    def __init__(self, walked: Walker) -> None:
        self.region, self.facts, self.rig = walked.region, walked.facts, walked.rig
        self.tally, self.tools, self.parameters = walked.tally, walked.tools, walked.parameters
        self._seed, self._tokens = walked.seed, walked.tokens

    def sweep(self) -> int:
        """Run all sweeps that apply; return the number of launches, 0 for more than one token or sequence."""
        if self._tokens != 1 or self.region.regime.batch != 1:
            return 0
        ops = {node.op for node in self.region.body.nodes}
        if ops in ({"embedding"}, {"position_table"}):
            return self._rows()
        return self._lengths() + self._choices()

    def _launched(self, at: int, where: str) -> dict[str, Tensor]:
        return self.rig.launch([], POISONS[at % len(POISONS)], where, checked=False).tensors

    def _ended(self, where: str) -> None:
        self.rig.redzones(where)
        self.rig.untouched(where)

    def _rows(self) -> int:
        """Check the rows that the region copies from its tables; return the number of launches."""
        found = list[tuple[str, str, Tensor]]()
        for node in self.region.body.nodes:
            index, table = (use.value for use in node.inputs)  # ids or positions, and a table
            found += [(name, index, self.parameters[table]) for name, _ in self._made(node)]
        index = found[0][1] if found else ""
        if not found or any(other != index for _, other, _ in found) or self.rig.buffer(index).numel() != 1:
            return 0
        extent = min(int(rows.shape[0]) for *_, rows in found)
        rng, count = generator(self._seed, "rows"), min(extent, _ROWS)
        places = _from_each_part(extent, count, rng)
        order = places[torch.randperm(count, generator=rng)]
        ids = self.rig.buffer(index)
        for begin in range(0, count, _TOGETHER):
            some = order[begin : begin + _TOGETHER]
            results = []
            for at, row in enumerate(some.tolist()):
                ids.fill_(row)
                results.append(self._launched(at, f"row {row}"))
            for name, _, rows in found:
                self._copied(name, torch.stack([result[name].view(-1) for result in results]), rows, some)
        count += self._other_rows(found, ids, order)
        self.rig.load({index: ids.clone()})
        self._ended("all rows")
        return count

    def _other_rows(self, found: list[tuple[str, str, Tensor]], ids: Tensor, seen: Tensor) -> int:
        """Check the rows that were not `seen`, without poison: each row has to replace the one before it."""
        left = _others(min(int(rows.shape[0]) for *_, rows in found), seen, generator(self._seed, "other rows"))
        made = {name: rows.new_empty((_MANY, *rows.shape[1:])) for name, _, rows in found}
        spent, count = Allowance(_ALL_S), 0
        for begin in range(0, len(left), _MANY):
            some = left[begin : begin + _MANY]
            for at, row in enumerate(some.tolist()):
                ids.fill_(row)
                self.rig.relaunch()
                for name, _, rows in found:
                    made[name][at].copy_(self.rig.buffer(name).view(rows.shape[1:]))
            for name, _, rows in found:
                self._copied(name, made[name][: len(some)], rows, some)
            count += len(some)
            self.tools.beat()
            if spent.share > 1.0:
                break
        return count

    def _copied(self, name: str, made: Tensor, rows: Tensor, some: Tensor) -> None:
        """Claim that the results of a port, one for each of `some` rows, are these rows of its table."""
        wrong = (made.flatten(1) != rows[some].flatten(1)).any(-1)
        first = int(some[wrong.to(torch.uint8).argmax()])
        self.tally.claim("rows", not bool(wrong.any()), f"{name} of row {first} is another's, or none")

    def _made(self, node: Node) -> list[tuple[str, str]]:
        return [(name, use.value) for name, use in self.region.body.outputs if use.value == node.outputs[0]]

    def _lengths(self) -> int:
        """Run a generation over all lengths whose queries are zero, so that the results are means."""
        nodes = self.region.body.nodes
        node = next((node for node in nodes if node.op == "attention"), None)
        appends = {n.outputs[0]: n for n in nodes if n.op == "cache_append"}
        library = self.facts.accumulation == "library"  # rounds inside
        if node is None or library or not {use.value for use in node.inputs[1:3]} <= set(appends):
            return 0
        keys, values = (appends[use.value] for use in node.inputs[1:3])
        query, fresh, position = self._source(node.inputs[0].value), values.inputs[1].value, node.inputs[3].value
        inputs, out = set(self.region.body.inputs), self._made(node)
        cache = self.rig.buffer(values.inputs[0].value)
        _, kv_heads, context, width = cache.shape
        nbytes = context * context * kv_heads * width * cache.element_size()
        if not out or not {query, fresh, position} <= inputs or nbytes > _READ or query == fresh:
            return 0
        rng = generator(self._seed, "lengths swept")
        wanted = torch.randn((kv_heads, context, width), generator=rng).to(cache.dtype)
        for name in inputs:
            port = self.region.port(name)
            if port.access == "append":
                self.rig.buffer(name).fill_(torch.nan)
            elif name == query:
                self.rig.buffer(name).zero_()
            elif port.role == "activation" and port.dtype in ("bf16", "fp16", "fp32"):
                self.rig.buffer(name).copy_(torch.randn(tuple(port.shape), generator=rng))  # type: ignore[arg-type]
        new, at, results = self.rig.buffer(fresh), self.rig.buffer(position), list[Tensor]()
        for n in range(context):
            new.copy_(wanted[:, n].reshape(new.shape))
            at.fill_(n)
            results.append(self._launched(n, f"length {n + 1}")[out[0][0]].view(-1, width))
        kept = self.tools.same_bits(cache[0], wanted) and bool(self.rig.buffer(keys.inputs[0].value).isfinite().all())
        self.tally.claim("state", kept, "a generation over all lengths: a slot does not hold what was appended to it")
        self._means(wanted.double(), torch.stack(results), out[0][0], int(str(dict(node.attrs).get("window", 0))))
        self.rig.load({name: self.rig.buffer(name).clone() for name in inputs - set(self.parameters)})
        self._ended("all lengths")
        return context

    def _means(self, values: Tensor, made: Tensor, port: str, window: int) -> None:
        group = made.shape[1] // values.shape[0]

        def mean(of: Tensor) -> Tensor:
            sums = torch.nn.functional.pad(of.cumsum(1), (0, 0, 1, 0))
            ends = torch.arange(1, of.shape[1] + 1)
            begins = (ends - window).clamp(min=0) if window else torch.zeros_like(ends)
            found = (sums[:, ends] - sums[:, begins]) / (ends - begins)[None, :, None]
            return found.transpose(0, 1).repeat_interleave(group, dim=1)

        dtype, value = self.region.port(port).dtype, mean(values)
        error = self.facts.coefficient * mean(values.abs())
        for begin in range(0, len(made), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            bounded = Bounded(value=value[some], accumulated=error[some])
            stored = value[some].to(DTYPES[dtype]).double()
            where = f"zero queries at lengths {begin + 1} to {begin + len(stored)}: {port}"
            self.tools.compare(self.tally, made[some], bounded, stored, dtype=dtype, where=where, everyday=False)

    def _source(self, name: str) -> str:
        """Return the input a query is computed from through operators that keep zero zero; empty when there is none."""
        producers = self.region.body.producers()
        while name in producers:
            node = producers[name]
            if node.op not in ("rope", "rms_norm", "cast"):
                return ""
            name = node.inputs[0].value
        return name

    def _choices(self) -> int:
        """Launch with activations along rows of the weights, each of which must then be chosen."""
        chooser = chooser_of(self.region)
        node = next((node for node in self.region.body.nodes if node.op == "argmax"), None)
        if chooser is None or node is None or not (out := self._made(node)):
            return 0
        x, w = self.rig.buffer(chooser.x), self.parameters[chooser.w]
        if x.numel() != chooser.hidden or w.shape[0] < 2:
            return 0
        rng, least = generator(self._seed, "choices"), min(w.shape[0], max(_LEAST, _MULTIPLIED // w.numel()))
        rows = _from_each_part(w.shape[0], least, rng)
        gain = self.parameters[chooser.gain].float() + chooser.offset if chooser.gain else torch.ones(chooser.hidden)
        wide = w.float()
        order = torch.cat((rows, _others(w.shape[0], rows, rng)))
        spent, count = Allowance(_ALL_S), 0
        for begin in range(0, len(order), _TOGETHER):
            some = order[begin : begin + _TOGETHER]
            given = (wide[some] / torch.where(gain.abs() < 0.05, 0.05, gain)).to(x.dtype)
            chosen = []
            for at, row in enumerate(some.tolist()):
                x.copy_(given[at].view(x.shape))
                chosen.append(int(self._launched(at, f"row {row}")[out[0][0]].view(-1)[0]))
            # Only sure winners are checked; these are the logits up to a factor, in float32.
            logits = (given.float() * gain) @ wide.T
            if chooser.bias:
                logits = logits + self.parameters[chooser.bias].float()
            best = logits.topk(2, dim=-1)
            sure = (best.indices[:, 0] == some) & (best.values[:, 0] - best.values[:, 1] > _APART * best.values[:, 0])
            wrong = sure & (torch.tensor(chosen) != some)
            first = int(wrong.to(torch.uint8).argmax())
            where = f"an activation along row {int(some[first])}: chose {chosen[first]}"
            self.tally.claim("choices", not bool(wrong.any()), where)
            count += len(some)
            if count >= least and spent.share > 1.0:
                break
        self.rig.load({chooser.x: x.clone()})
        self._ended("all choices")
        return count


def _from_each_part(extent: int, count: int, rng: torch.Generator) -> Tensor:
    """Return one row of each of `count` equal parts of a table of `extent` rows, int64, in their order."""
    begins = torch.arange(count + 1) * extent // count
    return begins[:-1] + (torch.rand(count, generator=rng) * (begins[1:] - begins[:-1])).long()


def _others(extent: int, seen: Tensor, rng: torch.Generator) -> Tensor:
    """Return the rows of a table of `extent` rows that are not in `seen`, int64, in random order."""
    left = torch.ones(extent, dtype=torch.bool)
    left[seen] = False
    rest = left.nonzero().view(-1)
    return rest[torch.randperm(len(rest), generator=rng)]
