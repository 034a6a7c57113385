"""Functions that run a built candidate on buffers: dense tensors keyed by port or workspace name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from agentcompile.ir.region import Region
from agentcompile.ir.template import COUNT, Source
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.native import Call, Executor, Library, NativeProgram
from agentcompile.validate import DeclaredArithmetic
from agentcompile.worker.protocol import Implementation

Buffers = Mapping[str, torch.Tensor]


def bind(source: Source, binary: Library, buffers: Buffers) -> list[Call]:
    """Bind the launches of `source` to `buffers`, which the caller keeps alive; an argument without a name is null.

    A launch that is given the number of tokens of the chunk reads it from the buffer `COUNT`.

    Raises:
        KeyError: a buffer is not there.
        AgentCompileError: the binary lacks an entry.
    """
    return [
        Call.of(binary, launch.entry, [buffers[name].data_ptr() if name else 0 for name in launch.arguments])
        for launch in source.launches
    ]


def workspaces(source: Source) -> dict[str, torch.Tensor]:
    """Return fresh workspace buffers, all zero."""
    return {name: torch.zeros(count, dtype=DTYPES[dtype]) for name, dtype, count, _ in source.workspaces}


def runner(
    implementation: Implementation, region: Region, executor: Executor, before: Call | None = None
) -> Callable[[Buffers], None]:
    """Return a function that launches a candidate once on the given buffers, with `before` ahead of each launch."""
    source = implementation.source
    if source.language == "library":
        call = bind_library(source.call, region, source.settings)
        return lambda buffers: store_outputs(call(inputs_of(region, buffers)), buffers)
    bound, ahead = binder(implementation, region), [before] if before is not None else []
    return lambda buffers: NativeProgram(executor, [c for call in bound(buffers) for c in (*ahead, call)]).run()


def binder(implementation: Implementation, region: Region) -> Callable[[Buffers], list[Call]]:
    """Return a function that binds a compiled candidate's launches to the given buffers."""
    binary, own = Library(Path(implementation.binary.path)), chunk_tokens(region)
    return lambda buffers: bind(implementation.source, binary, {**buffers, **own})


def chunk_runner(
    implementation: Implementation, executor: Executor, before: Call | None = None
) -> Callable[[Buffers, int], None]:
    """Return a function that launches a compiled candidate on a chunk of a number of tokens, as `runner` does."""
    binary, ahead = Library(Path(implementation.binary.path)), [before] if before is not None else []

    def run(buffers: Buffers, tokens: int) -> None:
        own = torch.tensor([tokens])
        bound = bind(implementation.source, binary, {**buffers, COUNT: own})
        NativeProgram(executor, [c for call in bound for c in (*ahead, call)]).run()

    return run


def chunk_in_turn(
    implementation: Implementation, threads: int, before: Call | None = None
) -> Callable[[Buffers, int, bool], None]:
    """Return a function that runs a compiled candidate's ranks in turn on a number of tokens, as `in_turn` does."""
    binary = Library(Path(implementation.binary.path))

    def run(buffers: Buffers, tokens: int, backwards: bool) -> None:
        own = torch.tensor([tokens])
        _in_turn(bind(implementation.source, binary, {**buffers, COUNT: own}), threads, before, backwards)

    return run


def chunk_tokens(region: Region) -> dict[str, torch.Tensor]:
    """Return, by its name as an argument, the buffer with the number of tokens of a region's chunk."""
    return {COUNT: torch.tensor([dict(region.dims).get("tokens", 1)])}


def in_turn(
    implementation: Implementation, region: Region, threads: int, before: Call | None = None
) -> Callable[[Buffers, bool], None] | None:
    """Return a function that runs a candidate's ranks in turn, with `before` ahead of each; None for library calls."""
    if implementation.source.language == "library":
        return None
    bound = binder(implementation, region)
    return lambda buffers, backwards: _in_turn(bound(buffers), threads, before, backwards)


def _in_turn(calls: Sequence[Call], threads: int, before: Call | None, backwards: bool) -> None:
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    for call in calls:
        pointers = (ctypes.c_void_p * max(len(call.pointers), 1))(*call.pointers)
        ranks = range(threads)
        for rank in reversed(ranks) if backwards else ranks:
            if before is not None:
                kernel(before.address)(ctypes.addressof(pointers), rank, threads)
            kernel(call.address)(ctypes.addressof(pointers), rank, threads)


def facts_of(implementation: Implementation) -> DeclaredArithmetic:
    """Return what the correctness suite needs to know of a candidate."""
    return DeclaredArithmetic(
        rounds=implementation.rounds,
        accumulation=implementation.accumulation,
        deterministic=implementation.deterministic,
        layouts=implementation.layouts,
        workspaces=implementation.source.workspaces,
        in_place=tuple(pair for launch in implementation.source.launches for pair in launch.in_place),
        pitched=tuple(pair for launch in implementation.source.launches for pair in launch.pitched),
        token_major=tuple(pair for launch in implementation.source.launches for pair in launch.token_major),
    )


def inputs_of(region: Region, buffers: Buffers) -> dict[str, torch.Tensor]:
    """Return the ports that a PyTorch call reads."""
    return {port.name: buffers[port.name] for port in region.ports if port.role != "output"}


def store_outputs(made: Mapping[str, torch.Tensor], buffers: Buffers) -> None:
    """Copy what a PyTorch call returned into the output buffers."""
    for name, tensor in made.items():
        if name in buffers:
            buffers[name].view(-1).copy_(tensor.reshape(-1))
