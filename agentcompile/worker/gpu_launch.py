"""A CUDA candidate on buffers that lie on the device: launched in order, each launch as early as it may start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from agentcompile.ir.region import Region
from agentcompile.ir.template import Source
from agentcompile.runtime.device_step import overlaps_launches
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.overlap import CallAccess, accesses_of, overlapping

Buffers = Mapping[str, torch.Tensor]


def device_runner(source: Source, region: Region, module: Module, arch: str) -> Callable[[Buffers], None]:
    """Return a function that launches a candidate once on given buffers and waits; a failure ends the context."""
    binder, bound = device_binder(source, region, module, arch), dict[frozenset[tuple[str, int]], Callable[[], None]]()

    def run(buffers: Buffers) -> None:
        places = frozenset((name, tensor.data_ptr()) for name, tensor in buffers.items())
        if (launch := bound.get(places)) is None:  # a candidate is launched often on a few sets of buffers
            bound[places] = launch = binder(buffers)
        launch()
        torch.cuda.synchronize()

    return run


def device_binder(source: Source, region: Region, module: Module, arch: str) -> Callable[[Buffers], Callable[[], None]]:
    """Return a function that binds a candidate to buffers; what it returns queues one launch on the current stream."""

    def bind(buffers: Buffers) -> Callable[[], None]:
        calls = bind_all(source, region, module, [buffers], rotated=(), overlap=overlaps_launches(arch))

        def launch() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for call in calls:
                call.run(stream)

        return launch

    return bind


def bind_all(
    source: Source,
    region: Region,
    module: Module,
    slots: Sequence[Buffers],
    *,
    rotated: Sequence[str],
    overlap: bool,
    written: Sequence[str] | None = None,
) -> list[Call]:
    """Bind the launches of `source` to one set of buffers after another, as in a step.

    A port in `rotated` has a buffer of its own in every set; all others have the same one throughout. `written` names
    what the kernel right before them writes, the only one that may still run; without it any buffer may still be
    written.
    """
    names = [*(port.name for port in region.ports), *(name for name, *_ in source.workspaces)]
    fixed = [port.name for port in region.ports if port.role == "weight"]
    accesses = [] if written is None else [CallAccess(early=frozenset(), writes=frozenset(written), waits=False)]
    known = len(accesses)
    for buffers in slots:
        bound = {name: f"{name}@{buffers[name].data_ptr()}" if name in rotated else name for name in names}
        accesses += accesses_of(region, source, bound)
    early = overlapping(accesses, [name for name in fixed if name not in rotated])[known:]
    calls = []
    for at, overlaps in enumerate(early):
        buffers, launch = slots[at // len(source.launches)], source.launches[at % len(source.launches)]
        pointers = [buffers[name].data_ptr() if name else 0 for name in launch.arguments]
        calls.append(Call.of(module, launch, pointers, dependent=overlap and overlaps))
    return calls
