"""Decode steps of several sequences on a CUDA device, one row each, in graphs that leave the tokens there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentcompile.ir.template import Source
from agentcompile.runtime.device_sampling import DeviceSampler
from agentcompile.runtime.device_step import DeviceStep, Unrolled, enqueued, on_device
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.sampling import Sampling


class DeviceBatch:
    """Decode steps of one program whose sequences use the first rows of `memory`; free rows do not advance."""

    def __init__(
        self,
        step: DeviceStep,
        memory: Memory,
        advance: tuple[Source, Module],
        sampler: tuple[Source, Module],
        *,
        context: int,
        overlap: bool,
    ) -> None:
        """Bind the kernels to the step's and the memory's tensors.

        `advance` is the kernel of `advance_source` for `context` + 1 slots, `sampler` one of `sampler_source` for as
        many rows as the step has sequences.
        """
        self.rows = step.program.batch
        self._step, self._memory = step, memory
        slots = context + 1
        self._history = torch.zeros(self.rows, slots, dtype=torch.int64, device=memory.device)
        self._logprobs = torch.zeros(self.rows, slots, dtype=torch.float32, device=memory.device)
        self._live = torch.zeros(self.rows, dtype=torch.int64, device=memory.device)
        tensors = (memory.positions, memory.tokens, self._live, self._history)
        source, module = advance
        pointers = [tensor.data_ptr() for tensor in tensors]
        self._advance = enqueued(Call.of(module, source.launches[0], pointers, dependent=overlap))
        self._sampler = DeviceSampler(
            *sampler,
            logits=step.logits,
            token=memory.tokens[: self.rows],
            position=memory.positions[: self.rows],
            logprobs=self._logprobs,
            rows=self.rows,
            overlap=overlap,
        )
        self._drawn: dict[int, bool] = {}
        """The rows in use, and whether their tokens are sampled (or need log-probabilities)."""
        self._moving = Unrolled(self._captured)

    def add(self, row: int, token: int, position: int, sampling: Sampling, *, first: int, logprobs: bool) -> None:
        """Put a sequence into `row`: `token` is read at `position`; the token at position `first + n` is draw n."""
        self._memory.tokens[row] = token
        self._memory.positions[row] = position
        self._live[row] = 1
        self._sampler.set(sampling, first=first, logprobs=logprobs, row=row)
        self._drawn[row] = not sampling.greedy or logprobs

    def remove(self, row: int) -> None:
        """Free the row; its position becomes 0, and steps may still write the first slot of its cache."""
        self._live[row] = 0
        self._memory.positions[row] = 0
        self._drawn.pop(row, None)

    def steps(self, count: int, firsts: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[float]]]:
        """Make `count` tokens in every row in use; return those of pairs (row, position), with log-probabilities."""
        with on_device(f"decode steps of {self.rows} sequences"):
            self._moving.run(count, any(self._drawn.values()))
            tokens = torch.stack([self._history[row, at : at + count] for row, at in firsts]).tolist()
            noted = torch.stack([self._logprobs[row, at : at + count] for row, at in firsts]).tolist()
        return list(zip(tokens, noted, strict=True))

    def _captured(self, steps: int, drawing: bool) -> torch.cuda.CUDAGraph:
        def ended() -> None:
            if drawing:
                self._sampler.enqueue()
            self._advance()

        return self._step.graph(steps, then=ended)
