"""Inputs and parameters for checks: fresh for every check, at four scales, at boundary shapes, from seeds nobody tells.

Floats are scaled. Whole numbers and masks are drawn again by the task's own ``get_inputs``, which alone knows what they
may be. Parameters are moved away from what the model begins with, so that a kernel cannot count on a scale of 1 or a
shift of 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from agentcompile.ir.digest import digest

SCALES = (1.0, 3.0, 0.01, -1.0)
"""The factors on floating-point inputs."""
SHAPE_CASES = (1.0, -1.0)
"""The factors where the extents are others."""
SHAPE_SCALES = (0.0, 0.5)
"""What ``get_inputs_at`` is asked for beside the task's own shape: its smallest inputs, and about half the extents."""
NUDGED = 5
"""The elements of each tensor that a nudge changes, at most."""
JITTER, FURTHEST = 0.2, 3.0
"""Parameters are multiplied by exp(`JITTER` * n), n normal and at most `FURTHEST` from zero; zeros get the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCase:
    """One set of inputs for a kernel that is checked."""

    label: str
    """Says nothing of what the inputs are: feedback shows it."""
    arena: int
    seed: int
    scale: float
    randomised: bool
    nudged: bool = False


def seed_of(*parts: int | str) -> int:
    """Return a seed of 62 bits that follows from `parts`."""
    return int(digest("task-inputs/1", *parts)[:15], 16)


def cases(seed: int, shape: int, scales: Sequence[float] = SCALES, *, nudges: bool = True) -> Iterator[TaskCase]:
    """Yield the cases of one check: every scale, both arenas, model and random parameters, and inputs hardly changed.

    A factor that is not among the task's `scales` is 1 instead, and without `nudges` no inputs are hardly changed.
    Each arena is visited several times with other inputs, so that a result which is kept by address or by a part of
    the content is wrong the next time.
    """
    order = [one if one in scales else 1.0 for one in (SCALES if shape == 0 else SHAPE_CASES)]
    random.Random(seed).shuffle(order)
    for number, scale in enumerate((*order, *order[:2])):
        own = seed_of(seed, shape, number)
        label = f"inputs {number + 1}" + (f" at boundary shape {shape}" if shape else "")
        case = TaskCase(label=label, arena=number % 2, seed=own, scale=scale, randomised=number != 0)
        yield case
    told = f"{case.label}, changed in places" if nudges else f"inputs, {case.label}, again"
    last = TaskCase(label=told, arena=case.arena, seed=own + 1, scale=scale, randomised=True,
                nudged=nudges)  # fmt: skip
    yield last


def reseed(seed: int) -> None:
    """Seed every generator that a task may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))


def scaled(tensor: Tensor, scale: float) -> Tensor:
    """Return a floating-point tensor times `scale`, any other as it is."""
    return (tensor * scale).to(tensor.dtype) if tensor.is_floating_point() and scale != 1.0 else tensor


def nudged(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a copy of floats in which a few elements, neither the first nor the last, changed."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    flat = copy.view(-1)
    if flat.numel() < 3:
        return -copy
    places = torch.randint(1, flat.numel() - 1, (min(NUDGED, flat.numel() - 2),), generator=generator)
    flat[places] = -2 * flat[places] + flat.float().std().to(flat.dtype)
    return copy


def nudged_tree(before: Sequence[Any], drawn: Sequence[Any], generator: torch.Generator) -> list[Any]:
    """Return inputs whose floats are those `before`, a little changed, and whose whole numbers and masks are `drawn`.

    What those may be is known to ``get_inputs`` alone: lengths that rise, places that differ.
    """
    leaves, spec = pytree.tree_flatten(list(before))
    found = [
        nudged(old, generator) if isinstance(old, Tensor) and old.is_floating_point() else new
        for old, new in zip(leaves, pytree.tree_leaves(list(drawn)), strict=True)
    ]
    return list(pytree.tree_unflatten(found, spec))


def randomised(tensors: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Return parameters of the same sign and about the same size as `tensors`; whole numbers stay as they are.

    A constant that is positive stays positive, as a variance must; zeros become noise; what is not finite, or zero in
    a tensor of several values, as in a mask, is left alone.
    """
    zeros = [tensor.is_floating_point() and bool((tensor == 0).all()) for tensor in tensors]
    return [
        moved(tensor, generator, zeros=zero) if tensor.is_floating_point() else tensor
        for tensor, zero in zip(tensors, zeros, strict=True)
    ]


def moved(tensor: Tensor, generator: torch.Generator, *, zeros: bool) -> Tensor:
    """Return elements of a parameter, all of which is `zeros` or not, as `randomised` moves them."""
    noise = torch.randn(tensor.shape, generator=generator).to(tensor.device)
    wide = tensor.float()
    finite = wide.isfinite()
    if zeros:
        return (JITTER * noise).to(tensor.dtype)
    jitter = torch.exp(JITTER * noise.clamp(-FURTHEST, FURTHEST))
    return torch.where(finite, wide * jitter, wide).to(tensor.dtype)


def varied(first: Tensor, second: Tensor) -> bool:
    """Return whether two draws of an input differ."""
    return first.shape != second.shape or not torch.equal(first, second)


def rms(tensor: Tensor) -> float:
    """Return the root mean square; 0 for no elements."""
    return math.sqrt(float(tensor.double().square().mean())) if tensor.numel() else 0.0
