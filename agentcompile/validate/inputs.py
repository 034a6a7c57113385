"""Seeded inputs for a region: each case as numbers.

Parameters are random and never 0 or 1, so that leaving one out shows. Every purpose has its own random generator. The
sequences of a batch have different lengths, and any of them may be the longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from agentcompile.ir.digest import digest
from agentcompile.ir.graph import Dim, Node, Value
from agentcompile.ir.region import Region
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.cases import LENGTHS, LIFTED, RAISED, SINGLE, STEERED, Case
from agentcompile.validate.choices import chooser_of, impulse, steered
from agentcompile.validate.magnitude import raised
from agentcompile.validate.propagate import propagate
from agentcompile.validate.scores import chosen, met_alike, unturned
from agentcompile.validate.styles import TILE, bends, halved, level, normal, single, styled, telling, whole
from agentcompile.validate.tolerance import DeclaredArithmetic
from agentcompile.validate.worn import UNEVEN, past, uneven, worn

_GAINS = {RAISED: 256.0, LIFTED: 16.0}
"""The factor on a norm's weight, by draw; a norm removes its input's scale, so only this makes results large."""
_THETA = 10000.0
_PEAK = 130.0  # the score beside which no other score has any weight
_ALIKE = {"towering": 1e5, "twins": 40.0}
"""The score that every query of a group gives one key. A bf16 score misses the first by more than exp can represent;
beside the second, float rounding drops the weights of all others, while two equal scores are still equal.
"""
SECOND = 0.7
"""The difference between the angles of a head's second half and those of its first."""


def extent(shape: tuple[Dim, ...], tokens: int) -> tuple[int, ...]:
    """Return a shape with its symbolic extents replaced by `tokens`."""
    return tuple(tokens if isinstance(dim, str) else dim for dim in shape)


def generator(seed: int, *names: str) -> torch.Generator:
    """Return a generator for one purpose, so that a new case changes no other draw; on PyTorch's default device."""
    return torch.Generator(torch.get_default_device()).manual_seed(int(digest("draw/1", seed, list(names))[:15], 16))


class Generator:
    """Draws the inputs of one region. `tokens` replaces symbolic extents."""

    def __init__(self, region: Region, *, seed: int, tokens: int = 1) -> None:
        self.region = region
        self.tokens = tokens
        self._batch = region.regime.batch
        self._beside = tokens - 1 if region.regime.phase == "prefill" else 0  # slots that a chunk's other tokens fill
        self._seed = seed
        table = region.body.table()
        self._inputs: tuple[Value, ...] = tuple(table[name] for name in region.body.inputs)
        self._readers = region.body.consumers()

    def parameters(self, which: int) -> dict[str, Tensor]:
        """Return weights and constant tables, by port; `which` is the draw, and −1 draws small integers."""
        found = {}
        for value in self._inputs:
            if value.role in ("weight", "constant"):
                rng = generator(self._seed, "parameters", value.id, str(which))
                drawn = self._parameter(value, which, rng)
                if which == UNEVEN:
                    ops = {node.op for node in self._readers[value.id]}
                    matrix, norm = "linear" in ops and drawn.dim() == 2, "rms_norm" in ops
                    drawn = uneven(drawn, rng, norm=norm, scored=norm and self._is_scored(value), matrix=matrix)
                drawn = drawn.to(DTYPES[value.dtype])
                found[value.id] = telling(drawn) if which not in (-1, SINGLE) and drawn.numel() <= TILE else drawn
        chooser = chooser_of(self.region) if which == STEERED else None
        if chooser is not None:
            steered(chooser, found, self._seed)
        return found

    def _parameter(self, value: Value, which: int, rng: torch.Generator) -> Tensor:
        shape = extent(value.shape, self.tokens)
        if which < 0:
            return whole(shape, -2, 2, rng)
        ops = {node.op for node in self._readers[value.id]}
        if which == SINGLE and "linear" in ops and len(shape) == 2:
            return single(shape, rng)
        if which == SINGLE and "rms_norm" in ops:
            return torch.randint(0, 2, shape, generator=rng) * 2.0 - 1.0
        if "rms_norm" in ops or (len(shape) == 1 and "linear" not in ops):
            size = torch.rand(shape, generator=rng) * 1.5 + 0.25
            size = size * _GAINS.get(which, 1.0)
            return torch.where(torch.rand(shape, generator=rng) < 0.25, -size, size)
        if "linear" in ops and len(shape) == 2:
            return normal(shape, 1.0 / math.sqrt(shape[1]), rng)
        return normal(shape, 1.0, rng)

    def draw(self, case: Case, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return every input of the body by value id: parameters as passed in, the others as the case says."""
        found = dict(parameters)
        for value in self._inputs:
            if value.id not in found:
                rng = generator(self._seed, "draw", value.id, case.name)
                found[value.id] = self._drawn(value, case, rng).to(DTYPES[value.dtype])
        self._rotate(case, found)
        if case.style == "limit":
            raised(self.region, found, case.place)
        chooser = chooser_of(self.region) if case.style == "choice" else None
        if chooser is not None:
            impulse(chooser, found, case.row, positive=case.place > 0.5)
        if case.style in ("cancel", "aligned"):
            self._fit(case, found)
        if case.past in ("peaked", "towering", "twins", "sunk", "drowned"):
            self._peak(case, found)
        if case.past in ("ladder", "balanced", "edges", "ridges"):
            self._choose(case, found)
        if case.style == "exact":
            self._even(case, found)
        if case.style in ("nan", "inf", "infinities"):
            self._break(case, found)
        self._hide(found)
        return found

    def _drawn(self, value: Value, case: Case, rng: torch.Generator) -> Tensor:
        shape = extent(value.shape, self.tokens)
        if value.role == "position" or value.id in self._positions():
            if self._batch > 1:
                return torch.tensor(self._lengths(case)).reshape(shape) - 1
            first = max(0, case.length - self.tokens)
            return torch.arange(first, first + self.tokens).reshape(shape)
        if value.dtype in ("int64", "int32"):
            top = self._table_rows(value)
            ids = torch.randint(0, top, shape, generator=rng)
            if case.row >= 0:
                ids.view(-1)[0] = case.row
            elif case.style != "normal":
                ids.view(-1)[0] = round(case.place * (top - 1))
            return ids
        if value.role == "state":
            return self._past(shape, case, value, rng)
        if case.style == "keen":
            ops = {node.op for node in self._readers[value.id]}
            drawn = bends(shape, rng)
            return level(drawn, normalised="rms_norm" in ops) if ops & {"linear", "rms_norm"} else drawn
        if case.style == "halves":
            summed = any(node.op == "linear" for node in self._readers[value.id])
            return halved(shape, case.place if summed else None, value.dtype, rng)
        if case.style == "worn":
            return worn(shape, case.place, rng, scored=self._is_scored(value))
        return styled(shape, case, rng)

    def _is_scored(self, value: Value) -> bool:
        names, turned = {value.id}, {use.value for node in self._nodes("rope") for use in node.inputs[:1]}
        names |= {node.outputs[0] for node in self._nodes("rms_norm") if value.id in [u.value for u in node.inputs]}
        turned |= {use.value for node in self._nodes("attention") for use in node.inputs[:1]}
        return bool(names & turned)

    def _lengths(self, case: Case) -> list[int]:
        """Return how many slots each sequence's newest token sees: the case's length for one, fewer for the others.

        Beside a long sequence one has only one slot, except in normal cases, where every query must matter: with one
        slot the query changes nothing.
        """
        if self._batch == 1:
            return [case.length]
        rng = generator(self._seed, "lengths", case.name)
        shorter = [n for n in LENGTHS if n < case.length and (case.style != "exact" or n & (n - 1) == 0)] or [1]
        if case.style == "normal":
            shorter = [n for n in shorter if n > 1] or shorter
        order = torch.randperm(len(shorter), generator=rng).tolist()
        others = [shorter[i] for i in (order * self._batch)[: self._batch - 1]]
        if case.style != "normal":
            others[0] = 1
        lengths = [case.length, *others]
        return [lengths[i] for i in torch.randperm(self._batch, generator=rng).tolist()]

    def _seen_first(self, case: Case) -> list[int]:
        """Return the same of a launch's first token: what a case puts behind it, the launch itself replaces."""
        return [max(1, length - self._beside) for length in self._lengths(case)]

    def _past(self, shape: tuple[int, ...], case: Case, value: Value, rng: torch.Generator) -> Tensor:
        """Return a cache [B, kv_heads, context, D]."""
        if case.weights < 0:
            return whole(shape, -4, 4, rng) * 16 if self._is_value(value) else torch.zeros(shape)
        if case.past == "worn":
            return past(shape, rng, value=self._is_value(value))
        found = normal(shape, 1.0, rng)
        if case.past == "ramp" and self._is_value(value):
            rise = [torch.arange(shape[2])[:, None] / max(length, 1) * 4.0 for length in self._lengths(case)]
            found = found.float() * 0.1 + torch.stack(rise)[:, None] - 2.0
        return found

    def _is_value(self, value: Value) -> bool:
        """Return whether a cache holds values, which attention sums, and not keys, which it scores."""
        return any(value.id in self._family(node, 2) for node in self._nodes("attention"))

    def _family(self, node: Node, index: int) -> set[str]:
        table = self.region.body.table()
        name = node.inputs[index].value
        return {name, table[name].alias}

    def _nodes(self, op: str) -> list[Node]:
        return [node for node in self.region.body.nodes if node.op == op]

    def _positions(self) -> set[str]:
        found = {node.inputs[-1].value for op in ("cache_append", "attention") for node in self._nodes(op)}
        return found | {node.inputs[0].value for node in self._nodes("position_table")}

    def _table_rows(self, value: Value) -> int:
        table = self.region.body.table()
        for node in self._readers[value.id]:
            if node.op == "embedding":
                rows = table[node.inputs[1].value].shape[0]
                return rows if isinstance(rows, int) else self.tokens
        return 2

    def _rotate(self, case: Case, found: dict[str, Tensor]) -> None:
        """Replace rotary tables by cosines and sines of real angles, or of quarter turns to keep integers integers."""
        for node in self._nodes("rope"):
            cos, sin = node.inputs[1].value, node.inputs[2].value
            if cos not in self.region.body.inputs:
                continue
            width = found[cos].shape[-1]
            count = found[cos].numel() // width  # of tokens or of sequences, which rotate by different angles too
            if case.style == "exact":
                angles = torch.arange(width // 2) % 4 * (math.pi / 2)
            else:
                frequency = _THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
                at = case.angle + torch.arange(count, dtype=torch.float64)
                angles = at[:, None] * frequency
            # Models repeat the first half, but the operator does not: a kernel that reads it twice is wrong.
            both = torch.cat((angles, angles if case.style == "exact" else angles + SECOND), dim=-1)
            for name, function in ((cos, torch.cos), (sin, torch.sin)):
                turned = function(both).expand(count, width).reshape(found[name].shape)
                found[name] = (turned.round() if case.style == "exact" else turned).to(found[name].dtype)

    def _fit(self, case: Case, found: dict[str, Tensor]) -> None:
        """Make a row of the first weight nearly orthogonal to x (cancel) or parallel (aligned); cancel a residual."""
        for node in self._nodes("linear")[:1]:
            w = found[node.inputs[1].value]
            row = w[round(case.place * (w.shape[0] - 1))].float()
            source = node.inputs[0].value
            producer = self.region.body.producers().get(source)
            if producer is not None and producer.op == "rms_norm":
                source = producer.inputs[0].value
                row = row * found[producer.inputs[1].value].float()
            if source not in self.region.body.inputs:
                return
            x = found[source].float()
            flat = x.reshape(-1, row.numel())
            if case.style == "aligned":
                flat = torch.sign(row).expand_as(flat) * flat.abs().clamp(min=0.1)
            else:
                flat = flat - (flat @ row)[:, None] * row / row.square().sum().clamp(min=1e-20)
            found[source] = flat.reshape(x.shape).to(found[source].dtype)
        for node in self._nodes("add") if case.style == "cancel" else ():
            for residual, other in ((1, 0), (0, 1)):
                name = node.inputs[residual].value
                if name in self.region.body.inputs and node.inputs[other].value not in self.region.body.inputs:
                    found[name] = torch.zeros_like(found[name])
                    whole = propagate(self.region.body, found, DeclaredArithmetic(), tokens=self.tokens)
                    value = whole.values[node.outputs[0]].value
                    found[name] = (-value).reshape(found[name].shape).to(found[name].dtype)
                    return

    def _peak(self, case: Case, found: dict[str, Tensor]) -> None:
        """Give some slots keys along the first query of each group.

        That is one old slot (peaked), all old slots with the opposite sign (sunk), or the new one too (drowned). The
        key of a towering score, or those of twins that share all the weight, are alike for every query: a query that
        barely meets such a key would let its own rounding decide whether the key counts.
        """
        for node in self._nodes("attention"):
            caches = self._family(node, 1) & set(self.region.body.inputs)
            if not caches or case.length < 2:
                return
            query, keys = self._query(node, found), found[caches.pop()]
            group = query.shape[1] // keys.shape[1]
            lead = query[:, ::group, -1]  # [B, kv_heads, D]
            size = lead.norm(dim=-1, keepdim=True).clamp(min=1e-6)
            scale = float(dict(node.attrs)["scale"])  # type: ignore[arg-type]
            if case.past in _ALIKE:
                direction = met_alike(query[:, :, -1], keys.shape[1], _ALIKE[case.past] / scale).to(keys.dtype)
            else:
                direction = (lead / size.square() * (_PEAK / scale)).to(keys.dtype)
            for b, length in enumerate(self._seen_first(case)):
                if case.past in ("sunk", "drowned"):
                    keys[b, :, :length] = -direction[b, :, None]
                elif length > 1:
                    slot = round(case.place * (length - 2))
                    keys[b, :, slot] = direction[b]
                    if case.past == "twins":
                        keys[b, :, length - 2 - slot] = direction[b]
            if case.past == "drowned":
                self._sink(node, -direction, found)

    def _sink(self, node: Node, key: Tensor, found: dict[str, Tensor]) -> None:
        """Set an attention's new key to `key` [B, kv_heads, D], up to its length where it is normalised."""
        producers, table = self.region.body.producers(), self.region.body.table()
        for append in self._nodes("cache_append"):
            if append.outputs[0] != node.inputs[1].value:
                continue
            name = append.inputs[1].value
            while name in producers:
                at = producers[name]
                if at.op == "rope":
                    key = unturned(key, *(found[use.value].reshape(-1, 1, key.shape[-1]) for use in at.inputs[1:3]))
                elif at.op == "rms_norm":
                    key = key / (found[at.inputs[1].value].double() + float(str(dict(at.attrs).get("offset", 0.0))))
                name = at.inputs[0].value
            if table[name].dtype in DTYPES and found[name].numel() == key.numel():
                found[name] = key.reshape(found[name].shape).to(found[name].dtype)

    def _query(self, node: Node, found: Mapping[str, Tensor]) -> Tensor:
        """Return the queries of an attention [B, heads, T, D] in float64."""
        body = replace(self.region.body, nodes=tuple(n for n in self.region.body.nodes if n.op != "attention"))
        out = propagate(replace(body, outputs=()), found, DeclaredArithmetic(), tokens=self.tokens)
        return out.values[node.inputs[0].value].wide()

    def _choose(self, case: Case, found: dict[str, Tensor]) -> None:
        """Give the old slots chosen scores and, except for a ladder, chosen values; new values are then zero."""
        for node in self._nodes("attention"):
            keys, values = (self._family(node, index) & set(self.region.body.inputs) for index in (1, 2))
            if not keys or not values:
                return
            chosen(
                found[keys.pop()],
                found[values.pop()],
                self._query(node, found)[:, :, -1],
                scale=float(dict(node.attrs)["scale"]),  # type: ignore[arg-type]
                lengths=self._seen_first(case),
                how=case.past,
                place=case.place,
                rng=generator(self._seed, "scores", node.id, case.name),
            )
            # A score of zero is below the top of any edge.
            hidden = {"balanced": (2,), "edges": (1, 2), "ridges": (1, 2)}.get(case.past, ())
            for append in self._nodes("cache_append"):
                if append.outputs[0] in [node.inputs[index].value for index in hidden]:
                    new = self._source(append.inputs[1].value)
                    if new != self._source(node.inputs[0].value):
                        found[new] = torch.zeros_like(found[new])

    def _hide(self, found: dict[str, Tensor]) -> None:
        """Fill slots that a cache does not hold yet with NaN; where a region appends, each launch poisons them anew."""
        appended = {append.outputs[0] for append in self._nodes("cache_append")}
        for node in self._nodes("attention"):
            for use in node.inputs[1:3]:
                if use.value not in appended and use.value in found:
                    cache = found[use.value]
                    for b, at in enumerate(found[node.inputs[3].value].reshape(cache.shape[0], -1)):
                        cache[b, :, int(at.max()) + 1 :] = math.nan

    def _even(self, case: Case, found: dict[str, Tensor]) -> None:
        """Make queries zero, so that all slots weigh the same and attention over a power of two of them is exact."""
        for node in self._nodes("attention"):
            query = self._source(node.inputs[0].value)
            found[query] = torch.zeros_like(found[query])
            for append in self._nodes("cache_append"):
                if append.outputs[0] == node.inputs[2].value:
                    new = self._source(append.inputs[1].value)
                    found[new] = found[new] * 16

    def _source(self, name: str) -> str:
        """Return the input that a value is computed from, along first operands."""
        producers = self.region.body.producers()
        while name in producers:
            name = producers[name].inputs[0].value
        return name

    def _break(self, case: Case, found: dict[str, Tensor]) -> None:
        ports = [v.id for v in self._inputs if v.role == "activation" and v.id in found and self._plain(v)]
        if ports:
            name = ports[round(case.place * (len(ports) - 1))]
            flat = found[name].view(-1)
            at = round(case.place * (flat.numel() - 1))
            flat[at] = math.nan if case.style == "nan" else math.inf
            if case.style == "infinities":  # their sum is a NaN where their weights differ in sign
                flat[(at + 3) % flat.numel()] = math.inf
            if case.style == "nan" and self._nodes("argmax"):
                _mix_nans(flat)

    def _plain(self, value: Value) -> bool:
        angles = {use.value for node in self._nodes("rope") for use in node.inputs[1:]}
        return value.dtype not in ("int64", "int32") and value.id not in angles


def _mix_nans(flat: Tensor) -> None:
    """Make every other element a NaN, of either sign, so that a sum's sign depends on the order of its terms.

    The sign is set in the bits: conversions between floats may drop a NaN's.
    """
    bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    flat[::2] = math.nan
    places = torch.arange(0, flat.numel(), 2, device=flat.device)
    negative = places[(places * 40_503 >> 7) % 2 == 1]  # a fixed pattern without a short period
    bits[negative] |= torch.iinfo(bits.dtype).min
