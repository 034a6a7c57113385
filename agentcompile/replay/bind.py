"""An opened lock bound to memory: kernels loaded, weights resident, ready to generate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.backends import backend_of
from agentcompile.build import compile_executor
from agentcompile.evaluation.step_clock import binaries as build
from agentcompile.materialize import isa_flags
from agentcompile.replay.open import OpenedLock
from agentcompile.replay.recorded import recorded

if TYPE_CHECKING:
    import torch

    from agentcompile.ir.graph import DType
    from agentcompile.ir.program import Program
    from agentcompile.ir.template import Source
    from agentcompile.runtime.batches import BatchSteps
    from agentcompile.runtime.completion import BatchGenerator
    from agentcompile.runtime.generator import Decode, Prefill
    from agentcompile.runtime.memory import Memory
    from agentcompile.runtime.model import CompiledModel
    from agentcompile.runtime.text import Tokenizer


def bind(opened: OpenedLock) -> CompiledModel:
    """Bind the programs of an opened lock to memory.

    Raises:
        AgentCompileError: a kernel does not build any more, or the device has no room (environment).
    """
    from agentcompile.runtime.model import CompiledModel
    from agentcompile.runtime.text import Tokenizer

    here, captured = opened.here, opened.model.captured
    sources = {job.source.digest: job.source for job in opened.called if job.source.language != "library"}
    paths = {digest: Path(binary.path) for digest, binary in build(here, sources, sorted(sources)).items()}
    decode, prefill, memory, batched = (_on_gpu if backend_of(here.device).queued else _on_cpu)(opened, paths)
    has_tokenizer = (captured.checkpoint / "tokenizer.json").is_file()
    tokenizer = Tokenizer(captured.checkpoint) if has_tokenizer else None
    return CompiledModel(
        captured.info,
        decode,
        prefill,
        memory,
        tokenizer=tokenizer,
        checkpoint=captured.checkpoint,
        beside=_beside(opened, batched, memory, tokenizer) if batched else None,
        record=recorded(opened.lock),
        steps_up_to=opened.steps_up_to,
    )


def _beside(
    opened: OpenedLock, batched: Sequence[BatchSteps], memory: Memory, tokenizer: Tokenizer | None
) -> Callable[[Callable[[Sequence[int]], torch.Tensor]], BatchGenerator]:
    from agentcompile.runtime.batches import Batches

    return lambda prefill: Batches(opened.model.captured.info, batched, prefill, memory, tokenizer)


def _on_cpu(opened: OpenedLock, binaries: Mapping[str, Path]) -> tuple[Decode, Prefill, Memory, Sequence[BatchSteps]]:
    from agentcompile.checkpoint import Checkpoint
    from agentcompile.runtime.memory import Memory
    from agentcompile.runtime.native import Executor, Library
    from agentcompile.runtime.regimes import Regimes
    from agentcompile.runtime.step import HostStep

    here, captured = opened.here, opened.model.captured
    libraries = {digest: Library(path) for digest, path in binaries.items()}
    built = compile_executor(here.store, toolchain=here.toolchain, flags=isa_flags(here.target))
    executor = Executor(built, opened.lock.target.threads)
    memory = Memory(opened.programs, Checkpoint.open(captured.checkpoint).tensor, captured.constants)
    steps = [(regime.context[1], HostStep(one, memory, executor, libraries)) for regime, one in opened.alone]
    prefill = HostStep(opened.prefill, memory, executor, libraries, capacity=opened.chunk)
    return (steps[0][1] if len(steps) == 1 else Regimes(steps, memory)), prefill, memory, ()


def _on_gpu(opened: OpenedLock, binaries: Mapping[str, Path]) -> tuple[Decode, Prefill, Memory, Sequence[BatchSteps]]:
    import torch

    from agentcompile.checkpoint import Checkpoint
    from agentcompile.runtime.device_batch import DeviceBatch
    from agentcompile.runtime.device_decode import DeviceDecode, DevicePrefill
    from agentcompile.runtime.device_step import DeviceStep, advance_source, on_device, overlaps_launches
    from agentcompile.runtime.driver import Module
    from agentcompile.runtime.memory import Memory
    from agentcompile.runtime.regimes import Regimes

    here, captured, context = opened.here, opened.model.captured, opened.lock.model.context
    arch, overlap = here.target.arch, overlaps_launches(here.target.arch)
    own = {("advance", 1): advance_source(arch), **_samplers(opened)}
    batches = [(regime.batch, program) for regime, program in opened.decode if regime.batch > 1]
    own |= {("advance", batch): advance_source(arch, batch, context + 1) for batch, _ in batches}
    built = build(here, {source.digest: source for source in own.values()}, [one.digest for one in own.values()])
    with on_device(f"loading {captured.info.name} on {here.device}"):
        torch.cuda.set_device(here.device)
        kernels = {name: (source, Module(Path(built[source.digest].path))) for name, source in own.items()}
        modules = {digest: Module(path) for digest, path in binaries.items()}
        memory = Memory(opened.programs, Checkpoint.open(captured.checkpoint).tensor, captured.constants, here.device)
        advance, sampler = kernels["advance", 1][1], kernels.get(("sample", 1))
        steps = []
        for regime, program in opened.alone:
            step = DeviceStep(program, memory, modules, overlap=overlap)
            made = DeviceDecode(step, memory, advance, sampler, context=context, overlap=overlap)
            steps.append((regime.context[1], made))
        decode = steps[0][1] if len(steps) == 1 else Regimes(steps, memory)

        def chunk(tokens: int) -> tuple[Program, Mapping[str, Module]]:
            made = opened.chunks.at(tokens)
            sources = {job.source.digest: job.source for job in made.jobs if job.source.language != "library"}
            paths = build(here, sources, sorted(sources))
            return made.program, {digest: Module(Path(binary.path)) for digest, binary in paths.items()}

        prefill = DevicePrefill(chunk, memory, decode, capacity=opened.chunks.longest(opened.capacity), overlap=overlap)
        batched = [
            DeviceBatch(
                DeviceStep(program, memory, modules, overlap=overlap),
                memory,
                kernels["advance", batch],
                kernels["sample", batch],
                context=context,
                overlap=overlap,
            )
            for batch, program in batches
            if ("sample", batch) in kernels
        ]
    return decode, prefill, memory, batched


def _samplers(opened: OpenedLock) -> dict[tuple[str, int], Source]:
    """Return the sampling kernel for every batch size; none for a vocabulary that is too large for it."""
    from agentcompile.runtime.device_sampling import MAX_VOCAB, sampler_source

    vocab, first = opened.model.captured.info.vocab, opened.alone[0][1]
    if vocab > MAX_VOCAB:
        return {}
    dtype: DType = next(buffer.dtype for buffer in first.buffers if buffer.name == first.logits)
    batches = sorted({regime.batch for regime, _ in opened.decode})
    arch = opened.here.target.arch
    return {("sample", batch): sampler_source(vocab, dtype, arch, rows=batch) for batch in batches}
