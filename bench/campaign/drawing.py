"""Mutants drawn one after another: balanced over kinds of regions and mutators, no two with the same machine code.

In: subjects, a seed. Out: `Mutant`s until every place has been used. A mutation that does not compile, or whose machine
code is that of the original or of an earlier mutant, is counted and skipped.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.build import Binary, compile
from agentcompile.evaluation.machine import Machine
from agentcompile.ir.digest import digest_bytes
from agentcompile.ir.template import Source
from agentcompile.system.store import Store

from .mutating import Mutation, mutations
from .subjects import Subject

_BUILD_S = 60.0
_MAGIC = b"\x7fELF\x02\x01"
_ALLOCATED, _NO_BITS = 0x2, 8
_CUDA = 190
"""The ELF machine number of a cubin. Of its sections, only those with code are marked as loaded."""
_GLOBALS = (b".nv.global", b".nv.constant4", b".rela.nv.constant4")
"""Sections with variables of the whole program, their initial values and their addresses."""
_LEFT_OUT = (".symtab", ".strtab", ".shstrtab", ".comment", ".note", ".debug", ".nv.info.debug", ".nv_debug")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A subject with one fault in its source text; `code` is the digest of its machine code."""

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


def draw(
    subjects: Mapping[str, Sequence[Subject]], building: Building, seed: int, drawn: Counter[str]
) -> Iterator[Mutant]:
    """Yield mutants of every kind of region in turn; count in `drawn` why other mutations gave no mutant."""
    seen = set[str]()

    def of_kind(kind: str, these: Sequence[Subject]) -> Iterator[Mutant]:
        """Yield mutants of the kind's subjects in turn, each time by the mutator that was used least."""
        rng, used = random.Random(f"mutants {seed} {kind}"), Counter[str]()
        places: dict[str, dict[str, list[Mutation]]] = {}
        return _in_turn(of_subject(one, places, used, rng) for one in rng.sample(list(these), len(these)))

    def of_subject(
        subject: Subject, places: dict[str, dict[str, list[Mutation]]], used: Counter[str], rng: random.Random
    ) -> Iterator[Mutant]:
        """Yield mutants of a subject; `places` has the mutations left of each subject by mutator, in a drawn order."""
        if subject.name not in places:
            seen.add(building.code(subject.source))
            found = mutations(subject.source.text)
            places[subject.name] = {name: rng.sample(those, len(those)) for name, those in found.items()}
        left = places[subject.name]
        while names := [name for name, those in left.items() if those]:
            name = min(names, key=lambda name: (used[name], rng.random()))
            mutation = left[name].pop()
            source = replace(subject.source, text=mutation.apply(subject.source.text))
            code = building.code(source)
            if not code or code in seen:
                drawn["the same machine code" if code else "not compiled"] += 1
                continue
            seen.add(code)
            used[name] += 1
            yield Mutant(subject=subject, mutation=mutation, source=source, code=code)

    return _in_turn(of_kind(kind, these) for kind, these in subjects.items())


def _in_turn(every: Iterable[Iterator[Mutant]]) -> Iterator[Mutant]:
    waiting = list(every)
    while waiting:
        for one in list(waiting):
            mutant = next(one, None)
            if mutant is None:
                waiting.remove(one)
            else:
                yield mutant


def code_digest(image: bytes) -> str:
    """Return the digest of the loaded sections of a shared object or cubin; of all bytes for anything else.

    Two texts with one digest are equivalent by construction: every instruction, constant, relocation and imported name
    is the same; names of local symbols are left out. ELF (System V ABI, 64 bits, little endian) is read only as far as
    that needs. A cubin keeps every constant of the text, with its address in constant bank 4; where no instruction may
    read that bank, they are left out.
    """
    if not image.startswith(_MAGIC):
        return digest_bytes("image/1", image)
    machine = struct.unpack_from("<H", image, 18)[0]
    # The section table's offset, entry size and count, and the index of the section that holds the names.
    at, (size, count, names) = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, at + i * size) for i in range(count)]
    strings = headers[names][4]
    parts, globals_read = [], machine != _CUDA
    for name, kind, flags, _, offset, length, *_ in headers:
        begin = strings + name
        label = image[begin : image.index(b"\0", begin)].decode()
        kept = machine == _CUDA or flags & _ALLOCATED
        if kept and kind != _NO_BITS and length and not label.startswith(_LEFT_OUT):
            body = image[offset : offset + length]
            parts.append(label.encode() + b"\0" + body)
            globals_read = globals_read or (label.startswith(".text") and _reads_globals(body))
        elif kept and kind == _NO_BITS:
            parts.append(f"{label} {length}".encode())
    left = parts if globals_read else [part for part in parts if not part.startswith(_GLOBALS)]
    return digest_bytes("code/1", b"\1".join(left))


def _reads_globals(code: bytes) -> bool:
    """Return whether an instruction of 16 bytes may have an operand in constant bank 4.

    Where an instruction has an operand in a constant bank, five bits of it name the bank.
    """
    return any(struct.unpack_from("<Q", code, at)[0] >> 54 & 0x1F == 4 for at in range(0, len(code) - 7, 16))
