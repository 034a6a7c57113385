"""A task opened for a study: its contract, its gates, PyTorch's times, and the fresh timing of a best kernel."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentcompile.agents.tree import Node
from agentcompile.ir.attempt import AttemptEvaluator, Contract
from agentcompile.ir.trial import Crashed, Incorrect, Measurement, TimedOut, reason
from agentcompile.options import Options
from agentcompile.tasks.open import OpenedTask, opened_task

from .result import Beside, TaskFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Untimed:
    """Why a kernel was not timed once more."""

    reason: str
    wrong: bool = False
    """Whether it is the kernel's fault: it gave wrong results, crashed or hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What the sessions of one task share."""

    contract: Contract
    evaluator: AttemptEvaluator
    facts: TaskFacts
    device: str
    again: Callable[[Node], tuple[Beside, ...] | Untimed]
    """Times a kernel that passed every gate once more beside every form of PyTorch, or says why not."""


Opens = Callable[[Path, str], AbstractContextManager[Gates]]
"""Opens a task: its file, and the digest of its text."""


def opener(options: Options, compiled: tuple[str, ...], *, fenced: bool) -> Opens:
    """Return what opens tasks on this machine; `compiled` are the forms of ``torch.compile`` that are timed."""

    @contextmanager
    def opened(path: Path, text: str) -> Iterator[Gates]:
        with opened_task(options, path, compiled=compiled, fenced=fenced) as task:
            yield _gates(task, path, text)

    return opened


def _gates(task: OpenedTask, path: Path, text: str) -> Gates:
    bar, floor_ns = task.baselines, task.contract.floor_ns
    facts = TaskFacts(
        name=path.stem, text=text, us=dict(bar.us), failed=dict(bar.failed), floor_us=round(floor_ns / 1e3, 3)
    )

    def again(node: Node) -> tuple[Beside, ...] | Untimed:
        assert node.written is not None
        params = tuple((name, value) for name, value in json.loads(node.feedback)["params"].items())
        found = task.evaluator.beside(node.written, params)
        if not isinstance(found, tuple):
            return Untimed(reason=reason(found), wrong=isinstance(found, (Incorrect, Crashed, TimedOut)))
        if not all(math.isfinite(one.log_ratio) for one in found):
            return Untimed(reason="too few rounds of the fresh timing count: the machine is too busy")
        return tuple(map(_beside, found))

    return Gates(
        contract=task.contract, evaluator=task.evaluator, facts=facts, device=task.here.target.device, again=again
    )


def _beside(found: Measurement) -> Beside:
    half = min(found.half_width, _WIDEST)
    return Beside(
        arm=found.baseline,
        speedup=math.exp(found.log_ratio),
        low=math.exp(found.log_ratio - half),
        high=math.exp(found.log_ratio + half),
        comparison=found.comparison,
        contended=found.contended,
    )


_WIDEST = 20.0
"""Half the width of an interval that says nothing, on a logarithmic scale: JSON has no infinity."""
