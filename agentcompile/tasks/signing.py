"""Finds out what a loaded task asks for: its tensors and outputs, whether it is sound, and the least work it can take.

In: a `LoadedModel`. Out: a `Signed` task, or a `TaskFault`: no inputs, random results, NaN, a constant result, a dtype
that no kernel can be given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from agentcompile.backends import backend_of
from agentcompile.tasks.inputs import SCALES, SHAPE_CASES, SHAPE_SCALES, nudged_tree, varied
from agentcompile.tasks.loading import DTYPES, LEAVE_DEVICES, LoadedModel, TaskFault, identifiers, widened_tree
from agentcompile.tasks.wire import Loaded, Signature, TensorFact, TensorRole

_REPEATED = 1e-4
"""How far two runs on the same inputs may be apart, relative to the largest element."""

_NUDGES = 4
"""The nudges of inputs at each scale that a model must survive."""


@dataclass(slots=True, kw_only=True)
class Signed:
    """A task that was found sound."""

    loaded: LoadedModel
    told: Loaded
    at: dict[int, int]
    """For each boundary shape in `Loaded.signatures` its place in `SHAPE_SCALES`."""

    def wide(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Return the outputs of the model in float64."""
        return wide(self.loaded, inputs)


def wide(loaded: LoadedModel, inputs: Sequence[Any]) -> list[Tensor]:
    """Return the outputs of a model in float64; tensors that its text makes have that dtype, too."""
    with _default(torch.float64):
        return loaded.run([widened_tree(one) for one in inputs], wide=True)


def sign(loaded: LoadedModel, seed: int) -> Signed:
    """Return what the task asks for.

    Raises:
        TaskFault: no kernel can be evaluated by it.
    """
    inputs, again, other = loaded.inputs(seed), loaded.inputs(seed), loaded.inputs(seed + 1)
    if any(varied(one, two) for one, two in zip(_leaves(inputs), _leaves(again), strict=False)):
        text = "get_inputs() gives other tensors although every generator has the same seed"
        raise TaskFault(text, "draw with torch, numpy or random, and from no clock or system")
    _same_numbers(inputs, other)
    outputs = loaded.run(inputs)
    signatures, at = [_signature(loaded, inputs, outputs, other)], dict[int, int]()
    _sound(loaded, inputs, outputs, other)
    for place, scale in enumerate(SHAPE_SCALES if loaded.varies else ()):
        small, next_one = loaded.inputs(seed, at=scale), loaded.inputs(seed + 1, at=scale)
        _same_numbers(small, next_one)
        found = _signature(loaded, small, loaded.run(small), next_one)
        if [one.name for one in found.tensors] != [one.name for one in signatures[0].tensors]:
            text = f"get_inputs_at({scale}) gives other inputs than get_inputs()"
            raise TaskFault(text, "give the same inputs at another shape")
        if all(found.tensors != known.tensors for known in signatures):
            at[len(signatures)] = place
            signatures.append(found)
    runs_wide, note = _wide(loaded, inputs)
    shapes = [None, *(SHAPE_SCALES[place] for place in at.values())]
    scales = tuple(scale for scale in SCALES if scale == 1.0 or _survives(loaded, seed, scale, shapes))
    nudges = all(_survives(loaded, seed, scale, shapes[:1], nudge=True) for scale in scales)
    told = Loaded(
        text=loaded.path.read_text(encoding="utf-8", errors="replace"),
        signatures=tuple(signatures),
        flops=_flops(loaded, inputs),
        touched_bytes=_touched(loaded, inputs, outputs),
        wide=runs_wide,
        note=note,
        scales=scales,
        nudges=nudges,
        tf32=backend_of(str(loaded.device)).own_memory,
    )
    return Signed(loaded=loaded, told=told, at=at)


def _survives(
    loaded: LoadedModel, seed: int, scale: float, shapes: Sequence[float | None], *, nudge: bool = False
) -> bool:
    """Return whether the model gives results for inputs times `scale`: its operators may ask for probabilities."""
    generator = torch.Generator().manual_seed(seed)
    try:
        for at in shapes:
            given = loaded.inputs(seed + 2, scale if at is None or scale in SHAPE_CASES else 1.0, at)
            for _ in range(_NUDGES if nudge else 1):
                loaded.run(nudged_tree(given, given, generator) if nudge else given)
    except TaskFault:
        return False
    return True


def _same_numbers(inputs: list[Any], other: list[Any]) -> None:
    """Check that inputs which are no tensors are constants: a kernel is compiled for them."""  # noqa: DOC501
    one, two = pytree.tree_flatten(inputs), pytree.tree_flatten(other)
    if one[1] != two[1]:
        raise TaskFault("get_inputs() gives inputs of another structure at every call", "give as many each time")
    for at, (value, next_value) in enumerate(zip(one[0], two[0], strict=True)):
        known = isinstance(value, Tensor) or (isinstance(value, (bool, int, float, str)) and value == value)
        if known and (isinstance(value, Tensor) != isinstance(next_value, Tensor)):
            raise TaskFault(f"input {at} is a tensor at some calls alone", "give the same kinds of inputs each time")
        if known and not isinstance(value, Tensor) and value != next_value:
            text = f"input {at} is {value!r} at one call of get_inputs() and {next_value!r} at the next"
            raise TaskFault(text, "a number is a constant of the kernel: give the same one each time, or a tensor")


def _sound(loaded: LoadedModel, inputs: list[Any], outputs: list[Tensor], other: list[Any]) -> None:
    """Check that results repeat, are numbers, and depend on the inputs."""  # noqa: DOC501
    for one, two in zip(outputs, loaded.run(inputs), strict=True):
        if one.shape != two.shape or not _close(one, two):
            text = "Model.forward gives different results for the same inputs"
            raise TaskFault(text, "a task must be deterministic: draw no random numbers in forward")
    for at, one in enumerate(outputs):
        if one.is_floating_point() and bool(one.isnan().any()):
            raise TaskFault(f"out{at} holds NaN", "draw inputs for which the result is a number")
    if any(varied(one, two) for one, two in zip(_leaves(inputs), _leaves(other), strict=True)):
        elsewhere = loaded.run(other)
        if all(one.shape == two.shape and torch.equal(one, two) for one, two in zip(outputs, elsewhere, strict=True)):
            text = "the results are the same for different inputs"
            raise TaskFault(text, "a constant would answer it: let the results depend on the inputs")
    elif not any(one.is_floating_point() for one in _leaves(inputs)):
        raise TaskFault("get_inputs() gives the same tensors at every call", "draw them at random")


def _close(one: Tensor, two: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, two)
    apart = (one.double() - two.double()).abs().nan_to_num(0.0, 0.0, 0.0)
    scale = one.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return not one.numel() or float(apart.max()) <= _REPEATED * float(scale.max())


def _signature(loaded: LoadedModel, inputs: list[Any], outputs: list[Tensor], other: list[Any]) -> Signature:
    facts, numbers, flags = list[TensorFact](), list[tuple[str, float]](), list[tuple[str, int]]()
    pairs = zip(_all_leaves(inputs), _all_leaves(other), strict=True)
    for at, (value, next_value) in enumerate(pairs):
        if isinstance(value, Tensor):
            varies = value.is_floating_point() or varied(value, next_value)
            facts.append(_fact(f"in{at}", "input", value, f"input {at}", varies, loaded.device))
        elif isinstance(value, (bool, int)):
            flags.append((f"in{at}", int(value)))
        elif isinstance(value, float):
            numbers.append((f"in{at}", value))
    names = [name for name, _ in loaded.tensors]
    for name, (source, tensor) in zip(identifiers(names, []), loaded.tensors, strict=True):
        facts.append(_fact(name, "parameter", tensor, source, False, loaded.device))
    facts += [_fact(f"out{at}", "output", one, f"output {at}", True, loaded.device) for at, one in enumerate(outputs)]
    return Signature(tensors=tuple(facts), numbers=tuple(numbers), flags=tuple(flags))


def _fact(name: str, role: TensorRole, tensor: Tensor, source: str, varies: bool, device: torch.device) -> TensorFact:
    if tensor.dtype not in DTYPES:
        text = f"{source}: a tensor of {tensor.dtype}, which no kernel can be given"
        raise TaskFault(text, f"use one of {', '.join(str(one) for one in DTYPES)}")
    if tensor.device != device:
        raise TaskFault(f"{source}: a tensor on {tensor.device}, and the target is {device}", LEAVE_DEVICES)
    shape = tuple(int(extent) for extent in tensor.shape)
    if 0 in shape:
        raise TaskFault(f"{source}: a tensor without elements, {list(shape)}", "give every extent 1 at least")
    return TensorFact(name=name, role=role, dtype=DTYPES[tensor.dtype], shape=shape, source=source, varies=varies)


def _wide(loaded: LoadedModel, inputs: list[Any]) -> tuple[bool, str]:
    """Return whether the model runs in float64, and why not."""
    try:
        made = wide(loaded, inputs)
    except TaskFault as fault:
        return False, f"float64: {fault.error}"[:300]
    if any(one.is_floating_point() and bool(one.isnan().any()) for one in made):
        return False, "float64: the result holds NaN"
    return True, ""


def _flops(loaded: LoadedModel, inputs: list[Any]) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        loaded.run(inputs)
    return int(counter.get_total_flops())


def _touched(loaded: LoadedModel, inputs: list[Any], outputs: list[Tensor]) -> int:
    """Return the bytes of what decides the outputs, as far as gradients tell, and of the outputs.

    An element without a gradient may still be read (by a `relu`, a comparison): the number is a floor. Without
    gradients it is the outputs alone.
    """
    written = sum(one.numel() * one.element_size() for one in outputs)
    leaves = [one.detach().clone() if isinstance(one, Tensor) else one for one in _all_leaves(inputs)]
    # Operators such as a batch norm refuse buffers that have gradients.
    parameters = [tensor for _, tensor in loaded.tensors if isinstance(tensor, nn.Parameter)]
    sources = [one for one in (*leaves, *parameters) if isinstance(one, Tensor)]
    floats = [one for one in sources if one.is_floating_point()]
    _, spec = pytree.tree_flatten(list(inputs))
    read = 0
    with contextlib.suppress(Exception), torch.enable_grad():
        for one in floats:
            one.requires_grad_(True)
        made = pytree.tree_leaves(loaded.model(*pytree.tree_unflatten(leaves, spec)))
        ends = [one for one in made if isinstance(one, Tensor) and one.requires_grad]
        grads = torch.autograd.grad(ends, floats, [torch.randn_like(one) for one in ends], allow_unused=True)
        read = sum(
            int((grad != 0).sum()) * one.element_size()
            for grad, one in zip(grads, floats, strict=True)
            if grad is not None
        )
    for one in floats:
        one.requires_grad_(False)
    return read + written


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _all_leaves(values: list[Any]) -> list[Any]:
    return list(pytree.tree_leaves(values))


def _leaves(values: list[Any]) -> list[Tensor]:
    return [one for one in _all_leaves(values) if isinstance(one, Tensor)]
