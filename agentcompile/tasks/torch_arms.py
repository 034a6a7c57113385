"""The arms of PyTorch that a written kernel is timed beside: the model as it is, and compiled by ``torch.compile``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from agentcompile.ir.timing import Interval
from agentcompile.measure.clock import interval, settle
from agentcompile.tasks.loading import LoadedModel, fault_of
from agentcompile.tasks.wire import Timed

EAGER = "pytorch"
MODES = {"torch.compile": "default", "torch.compile max-autotune": "max-autotune"}
"""The compiled arms, and their modes on a CPU."""
SETS = 4
"""The sets of inputs that launches walk over."""
_WARM = 4


class Arms(Protocol):
    """PyTorch's ways to run a task's model on inputs of its own."""

    def make(self, name: str) -> str:
        """Make an arm and run it once on each set of inputs; return how it is launched where that is not as usual.

        Raises:
            TaskFault: the model, or ``torch.compile``, fails.
        """

    def timed(self, name: str, batch: int) -> Timed:
        """Return the time of a batch of launches, each on another set of inputs than the one before."""


class TorchArms:
    """The arms on the host."""

    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        self._loaded, self._seed = loaded, seed
        self._arms: dict[str, Callable[..., Any]] = {}
        self._sets: list[list[Any]] = []

    def make(self, name: str) -> str:
        """Make an arm; see `Arms`."""  # noqa: DOC501
        if not self._sets:
            self._sets = [self._loaded.inputs(self._seed + 100 + at) for at in range(SETS)]
        if name == EAGER:
            made: Callable[..., Any] = self._loaded.model
        else:
            made = torch.compile(self._loaded.model, mode=MODES[name])
        try:
            with torch.inference_mode():
                for inputs in self._sets:
                    made(*inputs)
        except Exception as error:
            raise fault_of(error, name, Path(self._loaded.path), self._loaded.device) from error
        self._arms[name] = made
        return ""

    def timed(self, name: str, batch: int) -> Timed:
        """Time a batch; see `Arms`."""
        arm = self._arms[name]

        def launch(count: int) -> None:
            for at in range(count):
                arm(*self._sets[at % SETS])

        def clocked() -> int:
            begin = time.perf_counter_ns()
            launch(batch)
            return time.perf_counter_ns() - begin

        with torch.inference_mode():
            settle()
            launch(max(1, batch // _WARM))
            found: Interval = interval(clocked)
            settle()
        return Timed(interval=found)
