"""What a task's process tells of a file of `bench/tasks`, without a process: its text and its tensors."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from agentcompile.tasks.loading import DTYPES, identifiers
from agentcompile.tasks.wire import Loaded, Signature, TensorFact, TensorRole
from tests.unit.task_files import made, module_of


@dataclass(frozen=True)
class FileTask:
    """A task that a session is about, as far as its contract and its manifests need it."""

    path: Path

    @property
    def kind(self) -> str:
        """What the task is called as a kind of region."""
        return f"task-{self.path.stem.replace('_', '-')}"

    @property
    def told(self) -> Loaded:
        """Its text, and its tensors."""
        return _told(self.path)


@functools.cache
def _told(path: Path) -> Loaded:
    task = made(module_of(path), 0)
    held = {**dict(task.model.named_parameters()), **dict(task.model.named_buffers())}
    names = identifiers(list(held), [])
    tensors = (
        *(_fact(f"in{at}", "input", one) for at, one in enumerate(task.inputs)),
        *(_fact(name, "parameter", one, source) for name, (source, one) in zip(names, held.items(), strict=True)),
        _fact("out0", "output", task.output()),
    )
    text = path.read_text(encoding="utf-8")
    return Loaded(text=text, signatures=(Signature(tensors=tensors),), flops=0, touched_bytes=1 << 20, wide=True)


def _fact(name: str, role: TensorRole, tensor: Tensor, source: str = "") -> TensorFact:
    return TensorFact(name=name, role=role, dtype=DTYPES[tensor.dtype], shape=tuple(tensor.shape), source=source)
