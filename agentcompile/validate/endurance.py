"""The endurance check: as many launches as a long generation makes, on changing inputs, every result compared.

It finds a kernel that counts its calls and fails late. Before, what launches leave on their stacks must come to rest,
which a kernel that counts there never lets it. Between stretches the scratch buffers are littered. At the end those
that start as zeros are zeroed again, as when a second model is loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.ir.trial import NumericReport
from agentcompile.validate.allowance import Allowance
from agentcompile.validate.cases import Case
from agentcompile.validate.inputs import Generator, generator
from agentcompile.validate.production import Quarters
from agentcompile.validate.rig import BITS, TestedKernel, same_bits

CHECK = "endurance"
MISSING = "endurance-missing"
"""The check that tells how many of the required launches there was no time for; it fails for nobody."""
STACK = "stack"
GENERATION = 4096
"""The number of tokens in the generation."""
_SITES = 6
"""The sites that a region with fewer is taken to have: its kernel is cheap to launch more often."""
BUDGET_S, LIMIT_S = 1.0, 5.0
"""The time in seconds for launches beyond those that are required, and the most time that all of them may take."""
_SETS, _POINTS, _SLICES = 6, 64, 20
_ANGLES = 1009


def required_launches(region: Region) -> int:
    """Return the number of launches that a generation makes at one site of `region`, whose extents are numbers.

    A step of decoding makes one for each token; a prompt is read in chunks, with one launch each.
    """
    if region.regime.phase == "decode":
        return GENERATION
    return -(-GENERATION // max(1, dict(region.dims).get("tokens", 1)))


def wanted_launches(region: Region, sites: int) -> int:
    """Return the number of launches that a generation makes at all `sites`: as many as there is time for are made."""
    return required_launches(region) * max(_SITES, sites)


def missing_launches(report: NumericReport) -> int:
    """Return how many of the required launches there was no time for, when a candidate was accepted."""
    return next((int(check.measured) for check in report.checks if check.name == MISSING), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The comparisons and copies after a launch.

    First the pairs (found, expected) in `equal` must agree bit for bit, then the pairs (to, source) in `copied` are
    copied. The first of a pair may be strided, the second is dense.
    """

    equal: tuple[tuple[Tensor, Tensor], ...]
    copied: tuple[tuple[Tensor, Tensor], ...]


class Loop(Protocol):
    """A loop of launches, each followed by the next turn, in order."""

    def run(self, rounds: int) -> None:
        """Launch once for each turn, `rounds` times over."""

    def wrong(self) -> tuple[int, int]:
        """Return how many launches so far left an unexpected result, and the number of the first one, from 1."""

    def kept(self) -> str:
        """Return what launches leave behind for the next one outside of every buffer; empty where nothing is seen."""


MakeLoop = Callable[[Mapping[str, Tensor], Sequence[Turn]], Loop]


class PlainLoop:
    """A loop in Python, for candidates that have no faster loop."""

    def __init__(
        self, run: Callable[[Mapping[str, Tensor]], None], buffers: Mapping[str, Tensor], turns: Sequence[Turn]
    ):
        self._run, self._buffers, self._turns = run, buffers, turns
        self._launches = self._wrong = self._first = 0

    def run(self, rounds: int) -> None:
        """Launch and compare, as in `Loop.run`."""
        for _ in range(rounds):
            for turn in self._turns:
                self._run(self._buffers)
                self._launches += 1
                if not all(same_bits(found, expected) for found, expected in turn.equal):
                    self._wrong += 1
                    self._first = self._first or self._launches
                for to, source in turn.copied:
                    to.copy_(source)

    def wrong(self) -> tuple[int, int]:
        """Return the counts, as in `Loop.wrong`."""
        return self._wrong, self._first

    def kept(self) -> str:
        """Return that nothing is seen, as in `Loop.kept`."""
        return ""


def endure(
    of: TestedKernel,
    quarters: Quarters,
    loop: MakeLoop,
    *,
    launches: int,
    parameters: Mapping[str, Tensor],
    length: int,
) -> None:
    """Launch `launches` times, or as often as there is time for, and record the checks.

    It goes on for `BUDGET_S`, and then until `required_launches` are made or `LIMIT_S` is over. `parameters` are the
    weights; `length` is that of the everyday case. Results of a nondeterministic candidate are not compared here; the
    caller validates the candidate again afterwards.
    """
    sets = _sets(of, quarters, parameters=parameters, length=length)
    turns = _turns(of.region, quarters, sets, of.facts.deterministic)
    for name, tensor in sets[0].items():
        quarters.buffers[name].copy_(tensor)
    running = loop(quarters.buffers, turns)
    kept = running.kept()
    of.tally.claim(STACK, not kept, kept)
    done, most, clock, last = 0, 1, Allowance(BUDGET_S), Allowance(LIMIT_S)
    required = min(launches, required_launches(of.region))
    litter, ends = generator(of.seed, "litter"), _ends(launches, of.seed)
    for turn, end in enumerate(ends):
        while done < end and running.wrong()[0] == 0:
            rounds, before = min(-(-(end - done) // len(turns)), most), clock.share
            running.run(rounds)
            of.tools.beat()
            done += rounds * len(turns)
            # The next stretch may be longer, as long as it is a small share of the budget.
            fits = int(rounds / _SLICES / max(clock.share - before, 1e-6))
            most = max(1, min(4 * most, fits))
            if last.share > 1.0 or (clock.share > 1.0 and done >= required):
                break
        if done < end or running.wrong()[0]:
            break
        quarters.litter(litter, turn)
    if not running.wrong()[0]:
        quarters.clear()
        running.run(1)
        done += len(turns)
    wrong, first = running.wrong()
    if wrong:
        text = f"launch {first} in a row left other bits than the same inputs before, as did {wrong - 1} more of {done}"
        of.tally.add(CHECK, float(wrong), 0.0, text)
    else:
        short = f" of the {launches} of a generation with {GENERATION} tokens" if done < launches else ""
        of.tally.add(CHECK, 0.0, 0.0, f"{done} launches in a row{short}")
        late = f"{LIMIT_S:g} s were enough for {done} of the {required} launches" if done < required else ""
        of.tally.add(MISSING, float(max(0, required - done)), float(required), late)


def _ends(launches: int, seed: int) -> list[int]:
    """Return where stretches end: at random places, and around powers of two and ten, where counters overflow."""
    drawn = random.Random(seed)
    ends = {launches, *(drawn.randrange(1, launches + 1) for _ in range(_POINTS))}
    for base in (2, 10):
        power = base
        while power <= launches:
            ends |= {power - 1, power, power + 1}
            power *= base
    return sorted(end for end in ends if 0 < end <= launches)


def _sets(
    of: TestedKernel, quarters: Quarters, *, parameters: Mapping[str, Tensor], length: int
) -> list[dict[str, Tensor]]:
    """Return several launches' inputs, by port, none with more slots than the first; load its weights and states."""
    draws = Generator(of.region, seed=of.seed, tokens=of.tokens)
    resident = {port.name for port in of.region.ports if port.role in ("weight", "state", "constant", "output")}
    found: list[dict[str, Tensor]] = []
    for index in range(_SETS):
        seen = max(1, length - index * max(1, length // (2 * _SETS)))
        drawn = draws.draw(Case(style="normal", length=seen, angle=_ANGLES + index), parameters)
        if index == 0:
            quarters.load(drawn)
        found.append({name: tensor.clone() for name, tensor in drawn.items() if name not in resident})
    return found


def _turns(
    region: Region, quarters: Quarters, sets: Sequence[Mapping[str, Tensor]], deterministic: bool
) -> tuple[Turn, ...]:
    outputs = [port.name for port in region.ports if port.role == "output"]
    turns = []
    for index, inputs in enumerate(sets):
        for name, tensor in inputs.items():
            quarters.buffers[name].copy_(tensor)
        slots = _appended(region, quarters.buffers)
        before = [slot.clone(memory_format=torch.contiguous_format) for slot in slots]
        quarters.launch(())
        found = [*(quarters.buffers[name] for name in outputs), *slots]
        expected = [tensor.clone(memory_format=torch.contiguous_format) for tensor in found]
        spoilt = [_other(tensor) for tensor in expected[: len(outputs)]]
        for slot, old in zip(slots, before, strict=True):
            slot.copy_(old)
        following = sets[(index + 1) % len(sets)]
        copied = [
            *zip(found, [*spoilt, *before], strict=True),
            *((quarters.buffers[name], tensor.contiguous()) for name, tensor in following.items()),
        ]
        equal = tuple(zip(found, expected, strict=True)) if deterministic else ()
        turns.append(Turn(equal=equal, copied=tuple(copied)))
    return tuple(turns)


def _appended(region: Region, buffers: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the slots that the next launch appends to, a view [heads, slots, D] for every cache of every sequence."""
    found = []
    ports = {port.name for port in region.ports if port.access == "append"}
    for node in region.body.nodes:
        state = node.inputs[0].value
        if node.op == "cache_append" and state in ports:
            cache = buffers[state]
            positions = buffers[node.inputs[-1].value].reshape(cache.shape[0], -1)
            for b in range(cache.shape[0]):
                found.append(cache[b, :, int(positions[b].min()) : int(positions[b].max()) + 1])
    return found


def _other(tensor: Tensor) -> Tensor:
    """Return inverted bits, which no correct result has."""
    return tensor.view(BITS[tensor.element_size()]).bitwise_not().view(tensor.dtype)
