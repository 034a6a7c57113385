"""The inputs of a walk over a cache: all tokens' activations, and what a float64 kernel would append.

Of a token's query heads, some are zero, so that every slot weighs the same and one slot too few or too many shows at
any length. Some attend to one slot only, so that a stale slot shows; a few of their scores are beyond what float32 can
exponentiate. For a few all scores are as far below zero, because all keys have a large part in one direction.
The others are random. Some channels of the values are large, and some are small.
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
_PEAK, _TALL = 24.0, 130.0  # the scores of the slot that a peaked query attends to; most other scores are a few units
_SUNK = -150.0  # the score of every slot for a query whose scores are all below what float32 can exponentiate
_NEAR = 64  # the most launches between the write of a slot and half of the peaked queries that attend to it
_SIZES = (-2.0, 4.0)  # the powers of ten between which the sizes of some channels of the values lie
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

    def gain_of(self, parameters: Mapping[str, Tensor]) -> Tensor | None:
        """Return the factor of the norm for each element of a head, in float64; None when there is no norm."""
        return parameters[self.gain].double() + self.offset if self.gain else None


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
        self._toward = self._directed()
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
                both = angles(positions.reshape(len(positions), -1), shape[-1])
                for name, function in ((cos, torch.cos), (sin, torch.sin)):
                    self.moving[name] = function(both).reshape(shape).to(self.moving[name].dtype)

    def _directed(self) -> Tensor | None:
        """Give keys and the cache of keys a common direction [kv_heads, D]; None where they cannot be chosen."""
        if self.attention is None:
            return None
        batch = self.starts.shape[1]
        toward = shift_keys(self.region, self.attention, self.moving, self._parameters, batch, self._rng)
        for cache in [n.inputs[0].value for n in self.appends if n.outputs[0] == self.attention.inputs[1].value]:
            if toward is not None and cache in self.base:
                self.base[cache] = shifted(self.base[cache], toward[:, None]).to(self.base[cache].dtype)
        return toward

    def computed(self, uses: Sequence[Use]) -> list[Bounded]:
        """Return the values at some edges in every launch, [N, …], computed without the caches and attention."""
        return computed(self.region, self._facts, {**self._parameters, **self.base}, self.moving, uses, self.tokens)

    def _steer(self, attention: Node) -> None:
        path = path_of(self.region, attention.inputs[0].value, self.moving, self._parameters)
        scale = float(str(dict(attention.attrs)["scale"]))
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
        turns = [self.moving[name].reshape(count, -1, 1, width) for name in (path.cos, path.sin) if name]
        window = int(str(dict(attention.attrs).get("window", 0)))
        gain = path.gain_of(self._parameters)
        x, self.zero = steered(x, keys, turns, gain, scale, window, self._rng, self._toward)
        self.moving[path.source] = x.reshape(given.shape).to(given.dtype)


def angles(positions: Tensor, width: int) -> Tensor:
    """Return the rotation angles of a head [..., width] at positions [...]; the halves turn by different angles."""
    frequency = _THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    found = positions[..., None] * frequency
    return torch.cat((found, found + SECOND), dim=-1)


def computed(
    region: Region,
    facts: DeclaredArithmetic,
    fixed: Mapping[str, Tensor],
    moving: Mapping[str, Tensor],
    uses: Sequence[Use],
    tokens: int,
) -> list[Bounded]:
    """Return the values at some edges in N launches, [N, …], computed without the caches and attention.

    `fixed` are the inputs that all launches share, `moving` [N, …] the others.
    """
    apart, launches = ("attention", "cache_append"), len(next(iter(moving.values())))
    body = replace(region.body, nodes=tuple(n for n in region.body.nodes if n.op not in apart), outputs=())

    def one(moving: dict[str, Tensor]) -> list[Tensor]:
        out = propagate(body, {**fixed, **moving}, facts, tokens=tokens)
        return [part for use in uses for part in _parts(out.read(use, tokens))]

    if all(node.op in _ALIKE for node in body.nodes):
        widest = max((t[0].numel() for t in moving.values()), default=1)
        call: Callable[..., list[Tensor]] = torch.vmap(one, chunk_size=max(1, _CHUNK // widest))
        flat = call(dict(moving))
    else:
        each = [one({name: t[n] for name, t in moving.items()}) for n in range(launches)]
        flat = [torch.stack(list(parts)) for parts in zip(*each, strict=True)]
    return [Bounded(*flat[i : i + 4]) for i in range(0, len(flat), 4)]


def steered(
    x: Tensor,
    keys: Tensor,
    turns: Sequence[Tensor],
    gain: Tensor | None,
    scale: float,
    window: int,
    rng: torch.Generator,
    toward: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return activations x [N, B, heads, D] whose queries are of all kinds, and which are zero, [N, heads].

    `keys` [N, B, kv_heads, D] are what each launch appends, and `toward` [kv_heads, D] is their common direction;
    cosines and sines `turns` and a norm's `gain` are between an activation and its query.
    """
    count, batch, heads = x.shape[:3]
    kinds = 3 if heads > 2 else 2
    first = int(torch.randint(0, kinds, (), generator=rng))
    kind = (torch.arange(count)[:, None] + torch.arange(heads) + first) % kinds
    among = torch.rand((count, heads), generator=rng)
    if heads <= 2:  # there is no third kind
        kind = torch.where((kind == 1) & (among < 0.25), 2, kind)
    # In a sparse walk this may be outside the window, which is accepted.
    own, drawn = torch.arange(count)[:, None], torch.rand((count, heads), generator=rng)
    reach = torch.where(torch.rand((count, heads), generator=rng) < 0.5, own + 1, _NEAR).clamp(max=window or count)
    looked = (own - (drawn * reach).long()).clamp(min=0)
    owner = torch.arange(heads) // (heads // keys.shape[2])
    wanted = keys[looked[:, None, :], torch.arange(batch)[:, None], owner]  # [N, B, heads, D]
    size = wanted.square().sum(-1, keepdim=True).clamp(min=1e-6) * scale
    turned = wanted * torch.where(among < 0.75, _PEAK, _TALL)[:, None, :, None] / size
    if toward is not None:
        sunk = toward[owner] * (_SUNK / scale / _shift_of(toward))
        turned = torch.where((among > 0.9)[:, None, :, None], sunk, turned)
    if turns:
        turned = unturned(turned, *turns)
    if gain is not None:
        turned = turned / torch.where(gain.abs() < 0.1, 0.1, gain)
    chosen = kind[:, None, :, None]
    return torch.where(chosen == 0, 0.0, torch.where(chosen == 1, turned, x)), kind == 0


def _shift_of(toward: Tensor) -> float:
    """Return the part of keys in their common direction: less than their length, so that one can stand out."""
    return math.sqrt(toward.shape[-1]) / 2.0


def shift_keys(
    region: Region,
    attention: Node,
    moving: dict[str, Tensor],
    parameters: Mapping[str, Tensor],
    batch: int,
    rng: torch.Generator,
) -> Tensor | None:
    """Give some values their sizes and keys a common direction, in `moving`; return it, [kv_heads, D].

    None where what becomes the keys cannot be chosen. `moving` are inputs [N, …] of N launches of `batch` tokens.
    """
    for name, width in _sources(region, attention, 2, moving):
        moving[name] = _sized(moving[name], width, rng)
    path = path_of(region, _appended(region, attention, 1), moving, parameters)
    if path is None:
        return None
    given, (kv_heads, width) = moving[path.source], _heads_of(region, attention)
    if given[0].numel() != batch * kv_heads * width:
        return None
    turns = [moving[name].reshape(len(given), -1, 1, width) for name in (path.cos, path.sin) if name]
    x, toward = _with_shifted_keys((len(given), batch, kv_heads, width), turns, path.gain_of(parameters), rng)
    moving[path.source] = x.reshape(given.shape).to(given.dtype)
    return toward


def _with_shifted_keys(
    shape: tuple[int, ...], turns: Sequence[Tensor], gain: Tensor | None, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return activations [N, B, kv_heads, D] whose keys are random but for a part in a direction, and that."""
    toward = torch.nn.functional.normalize(torch.randn(shape[-2:], generator=rng, dtype=torch.float64), dim=-1)
    keys = shifted(torch.randn(shape, generator=rng, dtype=torch.float64), toward)
    if turns:
        keys = unturned(keys, *turns)
    if gain is not None:
        keys = keys / torch.where(gain.abs() < 0.1, 0.1, gain)
    return keys, toward


def shifted(keys: Tensor, toward: Tensor) -> Tensor:
    """Return keys [..., D] in float64 that go as far in the direction `toward` as all others."""
    wide = keys.double()
    return wide - (wide * toward).sum(-1, keepdim=True) * toward + _shift_of(toward) * toward


def _sized(values: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """Return values [..., heads · width] of which some channels have sizes of their own, two the extreme ones."""
    low, high = _SIZES
    sizes = torch.pow(10.0, low + (high - low) * torch.rand(width, generator=rng))
    sizes = torch.where(torch.rand(width, generator=rng) < 0.25, sizes, 1.0)
    sizes[torch.randperm(width, generator=rng)[:2]] = torch.tensor((10.0**high, 10.0**low))[:width]
    return (values.double().reshape(-1, width) * sizes).reshape(values.shape).to(values.dtype)


def _heads_of(region: Region, attention: Node) -> tuple[int, int]:
    """Return the number of heads of an attention's caches, and the elements of each."""
    shape = region.body.table()[attention.inputs[1].value].shape
    return int(str(shape[1])), int(str(shape[3]))


def _appended(region: Region, attention: Node, index: int) -> str:
    """Return what is appended to an attention's cache `index`, or the cache where nothing is."""
    cache = attention.inputs[index].value
    appends = (node for node in region.body.nodes if node.op == "cache_append" and node.outputs[0] == cache)
    return next((node.inputs[1].value for node in appends), cache)


def _sources(region: Region, attention: Node, index: int, moving: Mapping[str, Tensor]) -> list[tuple[str, int]]:
    """Return the changing input that is appended as it is to an attention's cache `index`, and a head's elements."""
    name, (_, width) = _appended(region, attention, index), _heads_of(region, attention)
    queried = {_appended(region, attention, 1), attention.inputs[0].value}
    return [(name, width)] if name in moving and name not in queried and moving[name].shape[-1] % width == 0 else []


def path_of(region: Region, name: str, moving: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Path | None:
    """Return the operators between an input that changes with the launch and the value `name`; None if others."""
    producers = region.body.producers()
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
    known = name in moving and (not cos or cos in moving) and (not gain or gain in parameters)
    return Path(source=name, cos=cos, sin=sin, gain=gain, offset=offset) if known else None


def _parts(value: Bounded) -> list[Tensor]:
    wide = value.wide()
    return [wide, *(torch.zeros_like(wide) if part is None else part.expand(wide.shape) for part in value.parts)]
