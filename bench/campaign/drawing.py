"""Mutants drawn one after another: balanced over kinds of regions and mutators, no two with the same machine code.

In: subjects, a seed. Out: `Mutant`s until every place has been used. A mutation that does not compile, or whose machine
code is that of the original or of an earlier mutant, is counted and skipped.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.build import Binary, compile
from agentcompile.evaluation.machine import Machine
from agentcompile.ir.template import Source
from agentcompile.system.store import Store

from .machine_code import code_digest
from .mutating import Mutation, mutations
from .subjects import Subject

_BUILD_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A subject with one fault in its source text."""

    subject: Subject
    mutation: Mutation
    source: Source
    code: str
    """The digest of the mutant's machine code."""


class Building:
    """A compiler of sources into this machine's store, which also compares their machine code."""

    def __init__(self, machine: Machine) -> None:
        self._store, self._toolchain = Store(machine.store.root), machine.toolchain

    def code(self, source: Source) -> str:
        """Return the digest of a source's machine code; empty when it does not compile."""
        built = compile(source, self._store, toolchain=self._toolchain, limit_s=_BUILD_S)
        return code_digest(Path(built.path).read_bytes()) if isinstance(built, Binary) else ""


class _Places:
    """The unused mutations of one subject's text, by mutator, in a drawn order."""

    def __init__(self, subject: Subject, rng: random.Random) -> None:
        self.subject = subject
        self.left = {name: rng.sample(found, len(found)) for name, found in mutations(subject.source.text).items()}


def draw(
    subjects: Mapping[str, Sequence[Subject]], building: Building, seed: int, drawn: Counter[str]
) -> Iterator[Mutant]:
    """Yield mutants of every kind of region in turn; count in `drawn` why other mutations gave no mutant."""
    seen = set[str]()
    kinds = {kind: _of_kind(kind, these, _New(building, seen, drawn), seed) for kind, these in subjects.items()}
    while kinds:
        for kind in list(kinds):
            mutant = next(kinds[kind], None)
            if mutant is None:
                del kinds[kind]
            else:
                yield mutant


class _New:
    """The machine code of everything drawn so far; `drawn` counts the mutations that gave no mutant."""

    def __init__(self, building: Building, seen: set[str], drawn: Counter[str]) -> None:
        self._building, self._seen, self._drawn = building, seen, drawn

    def original(self, source: Source) -> None:
        """Record the machine code of an unmutated source."""
        self._seen.add(self._building.code(source))

    def code(self, source: Source) -> str:
        """Return the digest of a mutated source's machine code; empty when it does not compile or is not new."""
        code = self._building.code(source)
        if not code:
            self._drawn["not compiled"] += 1
        elif code in self._seen:
            self._drawn["the same machine code"] += 1
            return ""
        self._seen.add(code)
        return code


def _of_kind(kind: str, subjects: Sequence[Subject], new: _New, seed: int) -> Iterator[Mutant]:
    """Yield mutants of one kind of region: its subjects in turn, each time by the mutator that was used least."""
    rng, used = random.Random(f"mutants {seed} {kind}"), Counter[str]()
    places: dict[str, _Places] = {}
    waiting = rng.sample(list(subjects), len(subjects))
    while waiting:
        for subject in list(waiting):
            if subject.name not in places:
                new.original(subject.source)
                places[subject.name] = _Places(subject, rng)
            mutant = _one(places[subject.name], used, new, rng)
            if mutant is None:
                waiting.remove(subject)
            else:
                used[mutant.mutation.mutator] += 1
                yield mutant


def _one(places: _Places, used: Counter[str], new: _New, rng: random.Random) -> Mutant | None:
    subject = places.subject
    while names := [name for name, left in places.left.items() if left]:
        name = min(names, key=lambda name: (used[name], rng.random()))
        mutation = places.left[name].pop()
        source = replace(subject.source, text=mutation.apply(subject.source.text))
        if code := new.code(source):
            return Mutant(subject=subject, mutation=mutation, source=source, code=code)
    return None
