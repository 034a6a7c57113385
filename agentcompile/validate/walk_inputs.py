"""The inputs of a walk over a cache: all tokens' activations, and what a float64 kernel would append.

Of a token's query heads, some are zero, so that every slot weighs the same and one slot too few or too many shows at
any length. Some attend to one slot only, so that a stale slot shows. The others are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentcompile.ir.graph import Node, Use
from agentcompile.ir.region import Region
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.bound import Bounded
from agentcompile.validate.inputs import SECOND, extent, generator
from agentcompile.validate.propagate import propagate
from agentcompile.validate.scores import unturned
from agentcompile.validate.tolerance import DeclaredArithmetic

_THETA = 10000.0
_PEAK = 24.0  # the score of the slot that a peaked query attends to; other scores are a few units
_FARTHEST = 64  # the most launches between the write of a slot and the peaked query that attends to it
_CHUNK = 1 << 20  # the number of elements of an activation over the launches whose reference is computed at once
_ALIKE = frozenset({"rope", "rms_norm", "cast", "add", "sub", "mul", "position_table"})
"""Operators whose rules do not branch on the numbers, so that many launches can be computed as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The operators between an input of the region and its attention's query."""

    source: str
    cos: str
    sin: str
    gain: str
    """The norm's weight; empty when there is no norm."""
    offset: float


class Feed:
    """The inputs of the N launches of one walk; `starts` [N, B] is each sequence's first position in each launch."""

    def __init__(
        self,
        region: Region,
        facts: DeclaredArithmetic,
        parameters: Mapping[str, Tensor],
        starts: Tensor,
        *,
        seed: int,
        tokens: int,
    ) -> None:
        self.region, self.starts, self.tokens = region, starts, tokens
        self.span = max(1, tokens // starts.shape[1])
        self._facts, self._parameters = facts, parameters
        self._rng = generator(seed, "walk", str(len(starts)), str(int(starts.sum())))
        nodes = region.body.nodes
        self.attention = next((node for node in nodes if node.op == "attention"), None) if self.span == 1 else None
        self.appends = [node for node in nodes if node.op == "cache_append"]
        self.base: dict[str, Tensor] = {}  # the content of slots that no launch writes
        self.moving: dict[str, Tensor] = {}  # the inputs that change with the launch, [N, …]
        self._draw()
        self.news = self.computed([node.inputs[1] for node in self.appends])
        """What every launch appends, [N, B, kv_heads, T, D], by append."""
        self.zero: Tensor | None = None  # which query heads are zero, [N, heads]; None when they could not be chosen
        self.queries: Bounded | None = None
        if self.attention is not None:
            self._steer(self.attention)
            (self.queries,) = self.computed([self.attention.inputs[0]])

    def _draw(self) -> None:
        body, table = self.region.body, self.region.body.table()
        positions = self.starts[..., None] + torch.arange(self.span)
        placed = {node.inputs[-1].value for node in body.nodes if node.op in ("cache_append", "attention")}
        placed |= {node.inputs[0].value for node in body.nodes if node.op == "position_table"}
        for name in body.inputs:
            value = table[name]
            shape, kind = extent(value.shape, self.tokens), DTYPES[value.dtype]
            if name in self._parameters:
                continue
            if value.role == "state":
                self.base[name] = torch.randn(shape, generator=self._rng).to(kind)
            elif value.role == "position" or name in placed:
                self.moving[name] = positions.reshape(len(positions), *shape).to(kind)
            else:
                self.moving[name] = torch.randn((len(positions), *shape), generator=self._rng).to(kind)
        for node in body.nodes:
            if node.op == "rope" and node.inputs[1].value in self.moving:
                cos, sin = node.inputs[1].value, node.inputs[2].value
                shape = self.moving[cos].shape
                frequency = _THETA ** (-torch.arange(0, shape[-1], 2, dtype=torch.float64) / shape[-1])
                angles = positions.reshape(len(positions), -1)[..., None] * frequency
                both = torch.cat((angles, angles + SECOND), dim=-1)
                for name, function in ((cos, torch.cos), (sin, torch.sin)):
                    self.moving[name] = function(both).reshape(shape).to(self.moving[name].dtype)

    def computed(self, uses: Sequence[Use]) -> list[Bounded]:
        """Return the values at some edges in every launch, [N, …], computed without the caches and attention."""
        apart = ("attention", "cache_append")
        body = replace(
            self.region.body, nodes=tuple(n for n in self.region.body.nodes if n.op not in apart), outputs=()
        )

        def one(moving: dict[str, Tensor]) -> list[Tensor]:
            out = propagate(body, {**self._parameters, **self.base, **moving}, self._facts, tokens=self.tokens)
            return [part for use in uses for part in _parts(out.read(use, self.tokens))]

        if all(node.op in _ALIKE for node in body.nodes):
            widest = max((t[0].numel() for t in self.moving.values()), default=1)
            call: Callable[..., list[Tensor]] = torch.vmap(one, chunk_size=max(1, _CHUNK // widest))
            flat = call(self.moving)
        else:
            each = [one({name: t[n] for name, t in self.moving.items()}) for n in range(len(self.starts))]
            flat = [torch.stack(list(parts)) for parts in zip(*each, strict=True)]
        return [Bounded(*flat[i : i + 4]) for i in range(0, len(flat), 4)]

    def _steer(self, attention: Node) -> None:
        path, scale = self._path(attention), float(str(dict(attention.attrs)["scale"]))
        of = [i for i, node in enumerate(self.appends) if node.outputs[0] == attention.inputs[1].value]
        if path is None or not of:
            return
        keys = self.news[of[0]].value[..., 0, :]  # [N, B, kv_heads, D]
        count, batch, kv_heads, width = keys.shape
        given = self.moving[path.source]
        heads = given[0].numel() // (batch * width)
        if heads * batch * width != given[0].numel() or heads % kv_heads:
            return
        x = given.reshape(count, batch, heads, width).double()
        kinds = 3 if heads > 2 else 2
        first = int(torch.randint(0, kinds, (), generator=self._rng))
        kind = (torch.arange(count)[:, None] + torch.arange(heads) + first) % kinds
        reach = min(_FARTHEST, int(str(dict(attention.attrs).get("window", 0))) or _FARTHEST)
        back = torch.randint(0, max(1, reach), (count, heads), generator=self._rng)
        # In a sparse walk this may be outside the window, which is accepted.
        looked = (torch.arange(count)[:, None] - back).clamp(min=0)
        owner = torch.arange(heads) // (heads // kv_heads)
        wanted = keys[looked[:, None, :], torch.arange(batch)[:, None], owner]  # [N, B, heads, D]
        size = wanted.square().sum(-1, keepdim=True).clamp(min=1e-6) * abs(scale)
        turned = wanted * (_PEAK / size) * math.copysign(1.0, scale)
        if path.cos:
            turned = unturned(
                turned, *(self.moving[name].reshape(count, -1, 1, width) for name in (path.cos, path.sin))
            )
        if path.gain:
            gain = self._parameters[path.gain].double() + path.offset
            turned = turned / torch.where(gain.abs() < 0.1, 0.1, gain)
        chosen = kind[:, None, :, None]
        x = torch.where(chosen == 0, 0.0, torch.where(chosen == 1, turned, x))
        self.moving[path.source] = x.reshape(given.shape).to(given.dtype)
        self.zero = kind == 0

    def _path(self, attention: Node) -> Path | None:
        producers, name = self.region.body.producers(), attention.inputs[0].value
        cos = sin = gain = ""
        offset = 0.0
        while name in producers:
            node = producers[name]
            if node.op == "rope":
                cos, sin = node.inputs[1].value, node.inputs[2].value
            elif node.op == "rms_norm":
                gain, offset = node.inputs[1].value, float(str(dict(node.attrs).get("offset", 0.0)))
            elif node.op != "cast":
                return None
            name = node.inputs[0].value
        known = name in self.moving and (not cos or cos in self.moving) and (not gain or gain in self._parameters)
        return Path(source=name, cos=cos, sin=sin, gain=gain, offset=offset) if known else None


def _parts(value: Bounded) -> list[Tensor]:
    wide = value.wide()
    return [wide, *(torch.zeros_like(wide) if part is None else part.expand(wide.shape) for part in value.parts)]
