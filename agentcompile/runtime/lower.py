"""Lowering of a plan to a Program: binds every site's ports to buffers and places activations in one arena.

No torch here: a program is data, made anywhere and executed by `agentcompile.runtime.step`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from agentcompile.ir.graph import TOKENS, Dim, DType, Graph, Value
from agentcompile.ir.program import CHUNK, Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.ir.template import COUNT, Source
from agentcompile.ir.trial import Kernel
from agentcompile.runtime.overlap import CallAccess, accesses_of, overlapping, written_by
from agentcompile.runtime.rowwise import Placed, for_last_token, owner

_ALIGN = 64
CHUNK_TOKENS = Buffer(name=COUNT, role="count", dtype="int64", shape=(1,))
"""The buffer with the number of tokens of the chunk, which kernels for any chunk read."""


def lower(graph: Graph, placed: Sequence[Placed], sources: Mapping[str, Source], layouts: Mapping[str, str]) -> Program:
    """Lower an exact cover, its sites in the order they run, to a program.

    `sources` holds the source of every `Kernel` choice by digest, `layouts` the resident layout of every weight that is
    not row-major, by tensor name.

    Raises:
        KeyError: a source is missing.
    """
    table = graph.table()
    buffers: dict[str, Buffer] = {}
    calls: list[NativeCall | TorchCall] = []
    regions: dict[str, Region] = {}
    accesses: list[CallAccess] = []
    ends = for_last_token(graph, placed, sources)
    for index, item in enumerate(placed):
        bound = {port: owner(table, value) for port, value in item.site.bindings}
        for value_id in bound.values():
            buffers.setdefault(value_id, _buffer(table[value_id], layouts))
        choice = item.choice
        source = sources[choice.source] if isinstance(choice, Kernel) else None
        if source is not None and source.language != "library":
            names = {name: f"{name}#{index}" for name, *_ in source.workspaces}
            for name, dtype, count, zeroed in source.workspaces:
                own = names[name]
                kind, shape = cast(DType, dtype), _workspace(item.region, count)
                buffers[own] = Buffer(name=own, role="workspace", dtype=kind, shape=shape, zeroed=zeroed)
            bound |= names
            if any(COUNT in launch.arguments for launch in source.launches):
                buffers[COUNT], bound[COUNT] = CHUNK_TOKENS, COUNT
            # An argument that names no buffer is an absent optional port: a null pointer.
            calls += [
                NativeCall(
                    region=item.region.id,
                    source=source.digest,
                    launch=launch,
                    pointers=tuple(bound.get(argument, "") for argument in launch.arguments),
                    last=index in ends,
                )
                for launch in source.launches
            ]
            accesses += accesses_of(item.region, source, bound)
        else:
            regions[item.region.id] = item.region
            bindings = tuple(sorted(bound.items()))
            call, settings = (source.call, source.settings) if source is not None else ("", ())
            calls.append(TorchCall(region=item.region.id, call=call, settings=settings, bindings=bindings))
            accesses.append(CallAccess(early=frozenset(), writes=written_by(item.region, bound), waits=False))
    immutable = [name for name, buffer in buffers.items() if buffer.role in ("weight", "constant")]
    calls = [
        replace(call, overlaps=overlaps) if isinstance(call, NativeCall) else call
        for call, overlaps in zip(calls, overlapping(accesses, immutable), strict=True)
    ]
    made = {name: owner(table, use.value) for name, use in graph.outputs}
    token, position = _input(graph, "token"), _input(graph, "position")
    if graph.phase == "decode" and "token" in made and _reads_end_before(graph, placed, token, made["token"]):
        # A step's token is the next step's input without a copy.
        calls = [renamed(call, {made["token"]: token}) for call in calls]
        buffers.pop(made["token"], None)
    buffers = shared(buffers, calls, keep={made["logits"]})
    packed = graph.phase == "prefill"
    placed_buffers, arena_bytes = place(list(buffers.values()), calls, {made["logits"]}, largest_first=packed)
    return Program(
        phase=graph.phase,
        buffers=placed_buffers,
        calls=tuple(calls),
        regions=tuple(regions.values()),
        arena_bytes=arena_bytes,
        token=token,
        position=position,
        logits=made["logits"],
    )


def _workspace(region: Region, count: int) -> tuple[Dim, ...]:
    """Return the shape of a workspace of `count` elements; for a chunk of any length, its share of each token."""
    if not any(isinstance(dim, str) for port in region.ports for dim in port.shape):
        return (count,)
    return (TOKENS, -(-count // dict(region.dims)["tokens"]))


def _input(graph: Graph, role: str) -> str:
    table = graph.table()
    return next(value_id for value_id in graph.inputs if table[value_id].role == role)


def _buffer(value: Value, layouts: Mapping[str, str]) -> Buffer:
    tensor = value.name if value.role in ("weight", "state", "constant") else ""
    layout = layouts.get(value.name, "row-major") if value.role == "weight" else "row-major"
    return Buffer(name=value.id, role=value.role, dtype=value.dtype, shape=value.shape, tensor=tensor, layout=layout)


def _reads_end_before(graph: Graph, placed: Sequence[Placed], token: str, end: str) -> bool:
    """Return whether every reader of the input token runs before the call that makes the next one."""
    made = next(node.id for node in graph.nodes if end in node.outputs)
    at = {node: i for i, item in enumerate(placed) for node in item.site.nodes}
    return all(at[node.id] < at[made] for node in graph.consumers()[token])


def renamed(call: NativeCall | TorchCall, names: Mapping[str, str]) -> NativeCall | TorchCall:
    """Return a call on other buffers."""
    if isinstance(call, NativeCall):
        return replace(call, pointers=tuple(names.get(name, name) for name in call.pointers))
    return replace(call, bindings=tuple((port, names.get(name, name)) for port, name in call.bindings))


def shared(buffers: Mapping[str, Buffer], calls: Sequence[NativeCall | TorchCall], keep: set[str]) -> dict[str, Buffer]:
    """Return the buffers, with every in-place output put into its input where that is allowed.

    The input must be an activation of the same size that no later call reads. Buffers in `keep` are left by themselves.
    """
    found = dict(buffers)
    first, last = _lives(calls, {})
    for at, call in enumerate(calls):
        if not isinstance(call, NativeCall):
            continue
        pointers = dict(zip(call.launch.arguments, call.pointers, strict=True))
        for output, source in call.launch.in_place:
            made, read = found[pointers[output]], found[pointers[source]]
            if (
                made.role == read.role == "activation"
                and (made.nbytes, made.dtype, _by_token(made)) == (read.nbytes, read.dtype, _by_token(read))
                and first[made.name] == last[read.name] == at
                and call.pointers.count(read.name) == 1
                and not read.whole
                and not {made.name, read.name} & keep
            ):
                found[made.name] = replace(made, whole=read.name)
    return found


def _by_token(buffer: Buffer) -> bool:
    """Return whether a buffer has a row for each of any number of tokens."""
    return any(isinstance(dim, str) for dim in buffer.shape)


def _lives(calls: Sequence[NativeCall | TorchCall], whole: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the first and the last call that uses each buffer; use of a part counts as use of its `whole`."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, call in enumerate(calls):
        for name in call.uses:
            owner = whole.get(name, name)
            first.setdefault(owner, at)
            last[owner] = at
    return first, last


def place(
    buffers: Sequence[Buffer], calls: Sequence[NativeCall | TorchCall], keep: set[str], *, largest_first: bool
) -> tuple[tuple[Buffer, ...], int]:
    """Give every activation and workspace an offset in an arena; return the buffers and the arena's size in bytes.

    Each is put at the first bytes that are free while it lives: from its first writer to its last reader. A buffer that
    is a part of another lies in that one.

    Where some have a row for each of any number of tokens, those of one size count by their share of `CHUNK` tokens:
    the runtime has room for as many at least.

    With `largest_first` the arena is smallest, which a long chunk needs. Otherwise buffers are placed in the order of
    use, so that those of neighbouring calls lie apart: on an H200 no kernel that joins its parts in a workspace
    gained in a decode step whose arena was packed, while several did in one that was not.
    """
    whole = {buffer.name: buffer.whole for buffer in buffers if buffer.whole}
    first, last = _lives(calls, whole)
    for name in keep:
        last[name] = len(calls)
    ordered = sorted(buffers, key=lambda b: (first.get(whole.get(b.name, b.name), 0), b.name))
    own = [buffer for buffer in ordered if buffer.role in ("activation", "workspace") and not buffer.whole]
    for buffer in own:
        # A zeroed workspace carries state over steps (an arrival counter), so nothing may share its bytes.
        if buffer.zeroed:
            first[buffer.name], last[buffer.name] = 0, len(calls)
    shares = CHUNK if any(map(_by_token, buffers)) else 1
    sizes = {one.name: one.nbytes if _by_token(one) else -(-one.nbytes // shares) for one in own}
    placed: list[tuple[int, int, str]] = []
    at: dict[str, int] = {}
    for buffer in sorted(own, key=lambda b: -sizes[b.name]) if largest_first else own:
        size = (sizes[buffer.name] + _ALIGN - 1) // _ALIGN * _ALIGN
        begin, end = first[buffer.name], last[buffer.name]
        offset = 0
        for start, stop, other in placed:
            if first[other] > end or last[other] < begin:
                continue
            if offset + size <= start:
                break
            offset = max(offset, stop)
        insort(placed, (offset, offset + size, buffer.name))
        at[buffer.name] = offset
    offsets = {buffer.name: at.get(buffer.whole or buffer.name, 0) + buffer.start for buffer in buffers}
    total = max((stop for _, stop, _ in placed), default=0)
    return tuple(replace(buffer, offset=offsets[buffer.name]) for buffer in ordered), total


def rearranged(
    whole: Program, calls: Sequence[NativeCall | TorchCall], buffers: Mapping[str, Buffer], regions: Sequence[Region]
) -> Program:
    """Return a chunk's program with other calls on other buffers, placed anew, and those of `regions` that they run."""
    placed, arena_bytes = place(list(buffers.values()), calls, {whole.logits}, largest_first=True)
    named = {call.region for call in calls if isinstance(call, TorchCall)}
    known = {region.id: region for region in regions if region.id in named}
    return replace(whole, buffers=placed, calls=tuple(calls), regions=tuple(known.values()), arena_bytes=arena_bytes)
