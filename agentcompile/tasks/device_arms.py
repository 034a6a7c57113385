"""The arms of PyTorch on a device: every batch is a graph, replayed and timed as a written kernel's batch is.

A graph holds the launches of a batch, each on another set of inputs than the one before. Nothing of the host is timed
then: what PyTorch costs to launch, which fusing saves, is no part of a comparison. A model that cannot be captured, as
one that waits for a result in its middle, is launched one by one, and its waits count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentcompile.runtime.device_step import captured
from agentcompile.runtime.sites import Action
from agentcompile.tasks.graphs import GraphBatches
from agentcompile.tasks.loading import LoadedModel, fault_of
from agentcompile.tasks.precision import tf32
from agentcompile.tasks.stirring import warm_up
from agentcompile.tasks.torch_arms import EAGER, SETS
from agentcompile.tasks.wire import Timed

DEVICE_MODES = {"torch.compile": "default", "torch.compile max-autotune": "max-autotune-no-cudagraphs"}
"""The compiled arms, and their modes on a device, where graphs are captured around each of them."""
ONE_BY_ONE = "launched one by one, because it cannot be captured in a graph"


class DeviceArms:
    """The arms on the device on which a model lies."""

    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        self._loaded, self._seed = loaded, seed
        self._arms: dict[str, GraphBatches] = {}
        self._sets: list[list[Any]] = []

    def make(self, name: str) -> str:
        """Make an arm; see `Arms`."""  # noqa: DOC501
        if not self._sets:
            self._sets = [self._loaded.inputs(self._seed + 100 + at) for at in range(SETS)]
        run: Callable[..., Any] = self._loaded.model
        if name != EAGER:
            run = torch.compile(self._loaded.model, mode=DEVICE_MODES[name])
        with torch.inference_mode(), tf32():
            try:
                for inputs in self._sets:
                    run(*inputs)
                torch.cuda.synchronize()
            except Exception as error:
                raise fault_of(error, name, Path(self._loaded.path), self._loaded.device) from error
            graphs = _captures(self._launches(run, 1))
        self._arms[name] = GraphBatches(lambda count: self._launches(run, count), graphs=graphs)
        return "" if graphs else ONE_BY_ONE

    def timed(self, name: str, batch: int) -> Timed:
        """Time a batch; see `Arms`."""
        with torch.inference_mode(), tf32():
            batches = self._arms[name]
            return batches.timed(batch, before=batches.of(warm_up(batch)))

    def _launches(self, run: Callable[..., Any], count: int) -> Action:
        """Return what launches an arm `count` times.

        As many results are kept as there are sets, so that those of successive launches lie in different memory, as a
        written kernel's do.
        """
        kept: list[Any] = [None] * SETS

        def launch() -> None:
            for at in range(count):
                kept[at % SETS] = run(*self._sets[at % SETS])
            kept[:] = [None] * SETS

        return launch


def _captures(launch: Action) -> bool:
    """Return whether a launch can be captured in a graph."""
    try:
        captured(launch).replay()
        torch.cuda.synchronize()
    except RuntimeError:
        torch.cuda.synchronize()
        return False
    return True
