"""A whole prompt with the float64 result of attention at every position, for chunks of it that begin anywhere.

A token's activations depend on its position alone, and so do its entries in the caches and its queries. A chunk is
then a slice of the prompt, whatever its number of tokens, and one reference serves all chunks. A slot holds the
reference's entry, rounded once, for all launches that do not append it themselves.

Where the reference would cost too much, attention is computed for some heads only, others at adjacent positions;
zero queries are right at every position still, because their results are means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.backends import backend_of
from agentcompile.ir.graph import Dim, Node, Use, Value, View
from agentcompile.ir.region import Region
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.attended import Past, Told, Young, attended
from agentcompile.validate.bound import Bounded
from agentcompile.validate.inputs import extent, generator
from agentcompile.validate.propagate import owners
from agentcompile.validate.tolerance import DeclaredArithmetic, rounding
from agentcompile.validate.walk_inputs import angles, computed, path_of, shift_keys, shifted, steered

_KEPT = 384 << 20  # the bytes of float64 activations of a prompt, with their errors
_FIXED = ("weight", "constant", "state")
_APART = 4  # the number of adjacent positions whose attention is computed for the same heads


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAppend:
    """One append: its state port, the entries that it makes [M, kv_heads, D], and the cache [kv_heads, slots, D].

    A slot of the cache has the entry, rounded once, or a random number where the prompt has none.
    """

    port: str
    entries: Bounded
    cache: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOutput:
    """One output of [1, heads, T, D], as [M, heads, D], and at which positions and heads it is known."""

    port: str
    views: tuple[View, ...]
    result: Bounded
    known: Tensor


def lead(shape: tuple[Dim, ...], tokens: int) -> int:
    """Return the dimension that counts the tokens of a chunk, before which all are 1; −1 when there is none."""
    at = next((at for at, dim in enumerate(shape) if dim != 1), -1)
    return at if at >= 0 and (isinstance(shape[at], str) or shape[at] == tokens) else -1


def slices(region: Region, tokens: int) -> bool:
    """Return whether a region appends to caches of one sequence and each changing input is a row for each token."""
    body, table = region.body, region.body.table()
    appends = {node.outputs[0] for node in body.nodes if node.op == "cache_append"}
    attends = [node for node in body.nodes if node.op == "attention"]
    whole = all(not use.views and use.value in appends for node in attends for use in node.inputs[1:3])
    moving = [value for value in map(table.__getitem__, body.inputs) if value.role not in _FIXED]
    one = all(table[node.inputs[0].value].shape[0] == 1 for node in body.nodes if node.op == "cache_append")
    rows = all(lead(value.shape, tokens) >= 0 for value in moving)
    return bool(appends) and whole and one and len(attends) <= 1 and rows


class ReferencePrompt:
    """A prompt of M positions out of a cache's slots: all, or as many as fit into memory with their errors."""

    def __init__(
        self,
        region: Region,
        facts: DeclaredArithmetic,
        parameters: Mapping[str, Tensor],
        *,
        seed: int,
        tokens: int,
        longest: int,
    ) -> None:
        """Draw the prompt and compute its reference, `tokens` at a time; no chunk has more than `longest` tokens."""
        self.region, self._facts, self._parameters = region, facts, parameters
        self._tokens, self._longest = tokens, longest
        self._rng = generator(seed, "prompt")
        body, table = region.body, region.body.table()
        appends = [node for node in body.nodes if node.op == "cache_append"]
        _, kv_heads, self.slots, width = (int(str(dim)) for dim in table[appends[0].inputs[0].value].shape)
        attends = next((node for node in body.nodes if node.op == "attention"), None)
        heads = int(str(table[attends.outputs[0]].shape[1])) if attends is not None else 0
        self.places = self._chosen(_KEPT // ((max(heads, kv_heads) + 2 * kv_heads) * width * 32))
        """The positions, int64 [M], ascending."""
        self.row = torch.full((self.slots,), -1)
        self.row[self.places] = torch.arange(len(self.places))
        self.rows = {name: self._drawn(table[name]) for name in body.inputs if table[name].role not in _FIXED}
        """The inputs that change with the position, by name: [M, …]."""
        self._turn()
        self._keys = {attends.inputs[1].value} if attends is not None else set[str]()
        self._toward = shift_keys(region, attends, self.rows, parameters, 1, self._rng) if attends is not None else None
        news = self._by_token([node.inputs[1] for node in appends])
        self._zero = self._steer(attends, news, appends) if attends is not None else None
        owner = owners(body)
        self.stores = {
            node.outputs[0]: self._stored(owner.get(node.outputs[0], node.outputs[0]), node, new)
            for node, new in zip(appends, news, strict=True)
        }
        """The appends, by the value that each makes."""
        apart = {*self.stores, *(attends.outputs if attends is not None else ())}
        plain = [(name, use) for name, use in body.outputs if use.value not in apart and _of_heads(table[use.value])]
        self.made = [
            PromptOutput(port=name, views=(), result=result, known=torch.ones(result.value.shape[:2], dtype=torch.bool))
            for (name, _), result in zip(plain, self._by_token([use for _, use in plain]), strict=True)
        ]
        if attends is not None:
            result, known = self._attended(attends)
            self.made += [
                PromptOutput(port=name, views=use.views, result=result, known=known)
                for name, use in body.outputs
                if use.value == attends.outputs[0]
            ]

    def chunk(self, name: str, begin: int, tokens: int) -> Tensor:
        """Return an input for the chunk of `tokens` positions from `begin`, [tokens, …]."""
        first = int(self.row[begin])
        return self.rows[name][first : first + tokens]

    def has(self, begin: int, tokens: int) -> bool:
        """Return whether the prompt has all positions of a chunk."""
        return begin + tokens <= self.slots and bool((self.row[begin : begin + tokens] >= 0).all())

    def _chosen(self, room: int) -> Tensor:
        """Return all positions, or as many as there is room for: from the first one, to the last one, and others."""
        room = max(room, 8 * self._longest)
        if self.slots <= room:
            return torch.arange(self.slots)
        taken, span = torch.zeros(self.slots, dtype=torch.bool), 2 * self._longest
        taken[: room // 2] = taken[-span:] = True
        while int(taken.sum()) + span <= room:
            begin = int(torch.randint(0, self.slots - span, (), generator=self._rng))
            taken[begin : begin + span] = True
        return taken.nonzero().view(-1)

    def _drawn(self, value: Value) -> Tensor:
        shape, kind = extent(value.shape, self._tokens), DTYPES[value.dtype]
        nodes = self.region.body.nodes
        placed = {node.inputs[-1].value for node in nodes if node.op in ("cache_append", "attention")}
        if value.role == "position" or value.id in placed:
            return self.places.to(kind)
        rest = shape[lead(value.shape, self._tokens) + 1 :]
        return torch.randn((len(self.places), *rest), generator=self._rng).to(kind)

    def _turn(self) -> None:
        for node in self.region.body.nodes:
            if node.op == "rope" and node.inputs[1].value in self.rows:
                for use, function in zip(node.inputs[1:3], (torch.cos, torch.sin), strict=True):
                    like = self.rows[use.value]
                    self.rows[use.value] = function(angles(self.places, like.shape[-1])).view(like.shape).to(like.dtype)

    def _by_token(self, uses: Sequence[Use]) -> list[Bounded]:
        """Return the values [1, heads, T, D] at some edges as [M, heads, D], computed a launch at a time."""
        if not uses:
            return []
        count, tokens, table = len(self.places), self._tokens, self.region.body.table()
        begins = torch.cat((torch.arange(0, count - tokens, tokens), torch.tensor([count - tokens])))
        which = begins[:, None] + torch.arange(tokens)
        moving = {
            name: rows[which].view(len(begins), *extent(table[name].shape, tokens)) for name, rows in self.rows.items()
        }
        base = {v.id: torch.zeros(extent(v.shape, tokens)) for v in table.values() if v.role == "state" and not v.alias}
        fixed = {**self._parameters, **{name: t for name, t in base.items() if name in self.region.body.inputs}}

        def rows_of(part: Tensor) -> Tensor:
            flat = part[:, 0].transpose(1, 2).flatten(0, 1)  # [N · T, heads, D]
            return flat.new_empty((count, *flat.shape[1:])).index_copy_(0, which.view(-1), flat)

        return [one.map(rows_of) for one in computed(self.region, self._facts, fixed, moving, uses, tokens)]

    def _steer(self, attends: Node, news: list[Bounded], appends: list[Node]) -> Tensor | None:
        """Choose the queries; return which are zero, [M, heads], or None where they cannot be chosen."""
        path = path_of(self.region, attends.inputs[0].value, self.rows, self._parameters)
        keys = next(new for new, node in zip(news, appends, strict=True) if node.outputs[0] == attends.inputs[1].value)
        count, kv_heads, width = keys.value.shape
        heads = int(str(self.region.body.table()[attends.outputs[0]].shape[1]))
        if path is None or self.rows[path.source].numel() != count * heads * width or heads % kv_heads:
            return None
        given = self.rows[path.source]
        turns = [self.rows[name].view(count, 1, 1, width) for name in (path.cos, path.sin) if name]
        x, zero = steered(
            given.view(count, 1, heads, width).double(),
            keys.wide()[:, None],
            turns,
            path.gain_of(self._parameters),
            float(str(dict(attends.attrs)["scale"])),
            int(str(dict(attends.attrs).get("window", 0))),
            self._rng,
            self._toward,
        )
        self.rows[path.source] = x.view(given.shape).to(given.dtype)
        return zero

    def _stored(self, port: str, node: Node, new: Bounded) -> CacheAppend:
        state = self.region.body.table()[node.inputs[0].value]
        drawn = torch.randn(extent(state.shape[1:], 1), generator=self._rng)
        if self._toward is not None and node.outputs[0] in self._keys:
            drawn = shifted(drawn, self._toward[:, None])
        cache = drawn.to(DTYPES[state.dtype])
        cache[:, self.places] = new.wide().to(cache.dtype).transpose(0, 1)
        return CacheAppend(port=port, entries=new, cache=cache)

    def _young(self, store: CacheAppend) -> tuple[Tensor, Tensor]:
        """Return a cache in float64 and how far a launch's own entries may be from it, both [kv_heads, slots, D].

        A kernel may attend to what it appends before or after its store has rounded it.
        """
        wide, new = store.cache.double(), store.entries
        kept = wide[:, self.places].transpose(0, 1)
        copied = (new.error() == 0) & (new.wide() == kept)
        step = (kept - new.wide()).abs() + rounding(new.wide().abs(), str(self.region.port(store.port).dtype))
        off = torch.where(copied, 0.0, step) + sum(part for part in (new.accumulated, new.rounded) if part is not None)
        spread = torch.zeros_like(wide)
        spread[:, self.places] = off.transpose(0, 1)
        return wide, spread

    def _attended(self, node: Node) -> tuple[Bounded, Tensor]:
        told, library = dict(node.attrs), self._facts.accumulation == "library"
        dtype = self.region.body.table()[node.outputs[0]].dtype
        how = Told(
            scale=float(str(told["scale"])),
            window=int(str(told.get("window", 0))),
            coefficient=self._facts.coefficient,
            inside=dtype if library else self._facts.weights_of(node.outputs[0]),
        )
        (q,) = self._by_token([node.inputs[0]])
        (keys, key_off), (values, value_off) = (self._young(self.stores[use.value]) for use in node.inputs[1:3])
        count, heads, width = q.value.shape
        kv_heads = len(keys)
        cost = int(self.places.sum() + count) * heads * width
        apart = -(-cost // int(backend_of(torch.get_default_device().type).reference.prompt_work))
        parts = self._means(values, value_off, heads, how)
        known = torch.zeros(count, heads, dtype=torch.bool)
        if self._zero is not None and not how.inside and apart > 1:
            known |= self._zero
        for head in range(kv_heads):
            mine = slice(head * heads // kv_heads, (head + 1) * heads // kv_heads)
            some = ((torch.arange(count) // _APART + head) % apart == 0).nonzero().view(-1)
            at = self.places[some]
            zero = torch.zeros(len(some), width, dtype=torch.float64)
            past = Past(
                keys=keys[head],
                values=values[head],
                own_key=Bounded(keys[head, at], zero, key_off[head, at], zero),
                own_value=Bounded(values[head, at], zero, value_off[head, at], zero),
                young=Young(keys=key_off[head], values=value_off[head], reach=self._longest),
            )
            found = attended(q.map(lambda t, some=some, mine=mine: t[some, mine]), past, at, how)  # type: ignore[misc]
            for part, own in zip(parts, (found.value, *found.parts), strict=True):
                part[some, mine] = 0.0 if own is None else own
            known[some, mine] = True
        return Bounded(*parts), known

    def _means(self, values: Tensor, off: Tensor, heads: int, how: Told) -> list[Tensor]:
        """Return the results of zero queries, [M, heads, D], with their errors: value, and the three parts."""
        ends = self.places + 1
        begins = (ends - how.window).clamp(min=0) if how.window else torch.zeros_like(ends)

        def mean(of: Tensor) -> Tensor:
            sums = torch.nn.functional.pad(of.cumsum(1), (0, 0, 1, 0))
            found = (sums[:, ends] - sums[:, begins]) / (ends - begins)[None, :, None]
            return found.transpose(0, 1).repeat_interleave(heads // len(of), dim=1)

        rounded = mean(off)
        return [mean(values), how.coefficient * mean(values.abs()), rounded, rounded.square()]


def _of_heads(value: Value) -> bool:
    return len(value.shape) == 4
