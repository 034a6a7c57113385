"""Launches on the same activations times powers of two, whose results must be the same bits times powers of two.

No reference is needed: a product, a sum or a rotation of inputs that are twice as large is exactly twice as large, in
whatever order it is computed, as long as nothing overflows and no number is subnormal. A kernel that clamps, or that
takes a shortcut for large or small numbers, is not so (a metamorphic test: Chen, Cheung & Yiu 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor

from agentcompile.ir.graph import Graph, Node
from agentcompile.validate.arena import POISONS
from agentcompile.validate.magnitude import activations, room
from agentcompile.validate.rig import Rig, TestedKernel

_RAISED = 14
"""The power of two by which activations near one pass 1e4."""
_LOWERED = -40
"""A power of two far from where bf16 and float32 have subnormal numbers, which fp16 has not."""


def scaled(of: TestedKernel, rig: Rig, draw: Callable[[], Mapping[str, Tensor]]) -> int:
    """Launch on drawn inputs, then with some of the activations scaled, and claim that the results are, too.

    `draw` returns an everyday case with all parameters, which `rig` holds already. Return the number of launches: 0
    where no result follows its inputs' scale, or where the kernel's sums may differ from launch to launch.
    """
    followed = tuple(_followed(of.region.body))
    if not followed or not of.facts.deterministic or of.facts.accumulation == "library":
        return 0
    inputs = draw()
    rig.load({name: tensor for name, tensor in inputs.items() if of.region.port(name).role != "weight"})
    base, count = rig.launch([], POISONS[0], "as drawn").tensors, 1
    for names, degrees in followed:
        most = room(of.region, inputs, names)
        lowest = [_LOWERED] if all(inputs[name].dtype != torch.float16 for name in names) else []
        for power in [*sorted({most, min(most, _RAISED)} - {0}), *lowest]:
            rig.load({name: (inputs[name].double() * 2.0**power).to(inputs[name].dtype) for name in names})
            where = f"{', '.join(names)} times 2^{power}"
            result = rig.launch([], POISONS[count % len(POISONS)], where).tensors
            for port, made in result.items():
                _claim(of, port, base[port], made, power * degrees[port], where)
            count += 1
        rig.load({name: inputs[name] for name in names})
    return count


def _claim(of: TestedKernel, port: str, base: Tensor, made: Tensor, power: int, where: str) -> None:
    """Claim that `made` is `base` times two to the `power`, but for numbers that are subnormal in either."""
    if not base.is_floating_point():
        of.tally.claim("scaled", torch.equal(base, made), f"{where}: {port} is another one")
        return
    wanted = base.double() * 2.0**power
    tiny = torch.finfo(made.dtype).tiny
    told = (base.double().abs() >= tiny) & (wanted.abs() >= tiny)
    wrong = told & (made.double() != wanted)
    at = int(wrong.view(-1).to(torch.uint8).argmax())
    got, right = float(made.reshape(-1)[at]), float(wanted.reshape(-1)[at])
    text = f"{where}: element {at} of {port} is {got:.6g} and was to be {right:.6g}"
    of.tally.claim("scaled", not bool(wrong.any()), text)


def _followed(body: Graph) -> Iterator[tuple[tuple[str, ...], Mapping[str, int]]]:
    """Yield activations that may be scaled together, and by how many times that power each output then is.

    They are all of them, and each alone; only where every output follows, an index by staying the same.
    """
    names = activations(body)
    for some in dict.fromkeys([tuple(names), *((name,) for name in names)]):
        degrees = _degrees(body, some)
        found = {name: degrees.get(use.value) for name, use in body.outputs}
        whole = {name: degree for name, degree in found.items() if degree is not None}
        if some and len(whole) == len(found) and any(degrees.get(node.outputs[0]) for node in body.nodes):
            yield some, whole


def _degrees(body: Graph, raised: Collection[str]) -> dict[str, int]:
    """Return by value id the power of the factor that a value is multiplied by; no entry where it follows none."""
    found = {name: int(name in raised) for name in body.inputs}
    for node in body.nodes:
        degree = _degree(node, [found.get(use.value) for use in node.inputs])
        if degree is not None:
            found |= dict.fromkeys(node.outputs, degree)
    return found


def _degree(node: Node, given: list[int | None]) -> int | None:
    known = [degree for degree in given if degree is not None]
    if len(known) < len(given):
        return None
    if not any(known):
        return 0
    match node.op:
        case "cast" | "rope" | "relu" if not any(known[1:]):
            return known[0]
        case "linear" if len(known) == 2 and known[1] == 0:
            return known[0]
        case "add" | "sub" if len(set(known)) == 1:
            return known[0]
        case "mul":
            return sum(known)
        case "argmax":  # the same row stays the largest
            return 0
        case _:
            return None
