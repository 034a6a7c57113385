"""Finds in a compiled kernel what would let one launch change the next: data of its own that can change, and callees.

A kernel computes its outputs from its arguments. One that counts its launches, or remembers inputs, is right in every
test of a finite length and may be wrong afterwards; no number of launches excludes it. The compiler's output does:
memory that outlives a launch is in sections that can be written, and functions that keep state of their own are
imported by name. The linked library decides: once it is relocated, no page of it can be written, and loading it runs
nothing. What a launch leaves on the stack, in registers or in shared memory is not seen here.

Files are read as ELF (System V gABI, 64 bits, little endian), the format of host objects and of NVIDIA's cubins.
"""

from __future__ import annotations

import functools
import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_WRITE, _ALLOC = 0x1, 0x2
_COMMON, _UNDEFINED, _FUNCTION = 0xFFF2, 0, 2
_SYMBOLS = 2  # the type of a section that holds symbols
_READ_ONLY_LATER = re.compile(r"\.data\.rel\.ro(?:\.local)?(?:\..*)?|\.eh_frame")
"""Sections that linkers place where the loader makes memory read-only (``-z relro``): tables of addresses."""
_RESOLVER = 10
"""The type of a symbol whose address is found by calling it (``STT_GNU_IFUNC``)."""
_LOAD, _DYNAMIC, _THREAD, _RELRO = 1, 2, 7, 0x6474E552
_SEGMENT_WRITE = 2
_STARTS = {12, 13, 25, 26, 32}
"""Tags of a library's dynamic section for functions that run when it is loaded or unloaded (``DT_INIT`` …)."""
_MATHEMATICS = (
    "a?(?:sin|cos|tan)h?|sincos|atan2|exp(?:2|10|m1)?|log(?:2|10|1p|b)?|pow|cbrt|sqrt|hypot|erfc?|[tl]gamma|f(?:abs|dim|"
    "ma|max|min|mod)|floor|ceil|trunc|l?l?r(?:ound|int)|round(?:even)?|nearbyint|remainder|remquo|modf?|frexp|ldexp|"
    "scalbl?n|ilogb|nextafter|nexttoward|copysign|is(?:nan|inf|finite)"
)
_HARMLESS = re.compile(
    rf"(?:__)?mem(?:cpy|move|set|cmp)(?:_chk)?|(?:__)?(?:{_MATHEMATICS})[fl]?(?:_finite)?|_ZGV\w+|_GLOBAL_OFFSET_TABLE_"
    r"|__(?:extend|trunc|fix|fixuns|float|floatun|mul|div|udiv|mod|umod|add|sub|neg|pow|popcount|clz|ctz|bswap|"
    r"cmp|eq|ne|lt|le|gt|ge|unord)\w*[dsthx][fidc]\w*|__stack_chk_fail|_ZSt\d+__(?:throw_|glibcxx_assert_fail)\w+"
)
"""Functions that a compiler calls for a kernel's arithmetic, copies and checks; none keeps anything."""
_DEVICE_DATA = (".nv.global", ".nv.global.init")
_MOST_BYTES = 1 << 30
"""A segment of more bytes belongs to no kernel."""
_MOST = 8
"""Most names that are reported of one kernel."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    width: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    kind: int
    section: int
    size: int


def state_of_object(image: bytes) -> tuple[str, ...]:
    """Return what keeps state in the object file of a C++ kernel, one phrase each; empty for a kernel that keeps none.

    Raises:
        ValueError: the bytes are no such file.
    """
    sections, symbols = _read(image)
    kept = [s.name for s in symbols if s.section == _COMMON]
    for at, section in enumerate(sections):
        changes = section.flags & _WRITE and section.flags & _ALLOC and section.size > 0
        if changes and not _READ_ONLY_LATER.fullmatch(section.name):
            inside = [s.name for s in symbols if s.section == at and s.name and not s.name.startswith("_ZGV")]
            kept += inside or [section.name]
    called = [s.name for s in symbols if s.section == _UNDEFINED and s.name and not _HARMLESS.fullmatch(s.name)]
    called += [s.name for s in symbols if s.section != _UNDEFINED and s.kind == _RESOLVER]
    return (*_phrases("keeps", kept), *_phrases("calls", called))


def state_of_library(image: bytes) -> tuple[str, ...]:
    """Return what keeps state in the linked library of a C++ kernel, as `state_of_object` does.

    It goes by the memory that the loader leaves writable, whatever names sections have: whole pages, because a kernel
    may use what is left of one. Libraries are linked with `KERNEL_LINK_FLAGS`, so that the toolchain adds none.

    Raises:
        ValueError: the bytes are no such file.
    """
    segments = _segments(image)
    pages: set[int] = set()
    for kind, flags, _, begin, size in segments:
        if kind == _LOAD and flags & _SEGMENT_WRITE and size:
            pages |= set(range(begin // mmap.PAGESIZE, -(-(begin + size) // mmap.PAGESIZE)))
    for kind, _, _, begin, size in segments:  # the loader protects only whole pages, and so leaves the last part
        if kind == _RELRO:
            pages -= set(range(begin // mmap.PAGESIZE, (begin + size) // mmap.PAGESIZE))
    found = [f"keeps {len(pages) * mmap.PAGESIZE} bytes that can be written"] if pages else []
    if any(kind == _THREAD and size for kind, _, _, _, size in segments):
        found.append("keeps data of each thread")
    if any(_starts(image, offset, size) for kind, _, offset, _, size in segments if kind == _DYNAMIC):
        found.append("runs when it is loaded")
    return tuple(found)


def state_of_cubin(image: bytes, text: str) -> tuple[str, ...]:
    """Return what keeps state in the cubin of the CUDA program `text`, as `state_of_object` does.

    Device memory holds a program's constants too: those are data whose name `text` declares ``constexpr`` or ``const``.

    Raises:
        ValueError: the bytes are no such file.
    """
    sections, symbols = _read(image)
    global_data = {at for at, section in enumerate(sections) if section.name in _DEVICE_DATA}
    kept = [s.name for s in symbols if s.section in global_data and s.size > 0 and not _is_constant(s.name, text)]
    called = [s.name for s in symbols if s.section == _UNDEFINED and s.kind == _FUNCTION and s.name]
    return (*_phrases("keeps", kept), *_phrases("calls", called))


def refusal(found: Iterable[str]) -> str:
    """Return the log of a build that is refused for what was `found`; empty when that is nothing."""
    found = tuple(found)
    hint = "a kernel keeps nothing between launches: constants are `constexpr`, memory is a workspace"
    return f"kernel: {'; '.join(found)}; {hint}" if found else ""


def _phrases(verb: str, names: Iterable[str]) -> tuple[str, ...]:
    found = sorted({_plain(name) for name in names})
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return (f"{verb} {', '.join(f'`{name}`' for name in found[:_MOST])}{more}",) if found else ()


def _plain(name: str) -> str:
    """Return the last identifier of a mangled name (Itanium C++ ABI), or the name."""
    found = list(_identifiers(name))
    return found[-1] if name.startswith("_Z") and found else name


def _identifiers(name: str) -> Iterator[str]:
    name, at = re.sub(r"L[a-z]n?\d+E", "", name), 0  # numbers among the arguments of a C++ template
    while (match := re.compile(r"\d+").search(name, at)) is not None:
        at = match.end() + int(match[0])
        if int(match[0]) and at <= len(name):
            yield name[match.end() : at]
        else:
            at = match.end()


def _is_constant(name: str, text: str) -> bool:
    """Return whether `text` declares the data `name` constant somewhere, and nowhere as a variable; strings are.

    A mangled name of a template's data holds the names of its arguments too, so each is looked up.
    """
    if name.startswith("$str"):
        return True
    names = set(_identifiers(name)) if name.startswith("_Z") else {name}
    statements = [statement for one in names for statement in _declared(one, _bare(text))]
    constant = [re.search(r"\b(?:constexpr|const)\b", statement) is not None for statement in statements]
    variable = [re.search(r"\b(?:static|__device__|__managed__)\s", statement) is not None for statement in statements]
    return any(constant) and not any(own and not fixed for own, fixed in zip(variable, constant, strict=True))


def _declared(name: str, text: str) -> Iterator[str]:
    """Yield what stands before `name` in each statement that may declare it; it goes on with one of ``= [ { , ;``."""
    for match in re.finditer(rf"\b{re.escape(name)}\b\s*[=\[{{,;](?!=)", text):
        yield text[max(text.rfind(mark, 0, match.start()) for mark in ";{}") + 1 : match.start()]


@functools.lru_cache(maxsize=8)
def _bare(text: str) -> str:
    """Return a text without its comments and the compiler's directives."""
    return re.sub(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*", " ", text, flags=re.DOTALL | re.MULTILINE)


def _segments(image: bytes) -> list[tuple[int, int, int, int, int]]:
    """Return each segment's type, flags, offset in the file, address and bytes in memory.

    Raises:
        ValueError: the bytes are no such file.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    try:
        (begin,), (width, count) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<2H", image, 54)
        if width != 56:
            raise ValueError(f"program headers of {width} bytes")
        raw = [struct.unpack_from("<2I6Q", image, begin + at * width) for at in range(count)]
    except struct.error as error:
        raise ValueError(f"a damaged ELF file: {error}") from error
    if any(r[6] > _MOST_BYTES for r in raw):
        raise ValueError("a segment that no memory holds")
    return [(r[0], r[1], r[2], r[3], r[6]) for r in raw]


def _starts(image: bytes, offset: int, size: int) -> bool:
    """Return whether a dynamic section names functions that the loader calls."""
    table = image[offset : offset + size - size % 16]
    return any(tag in _STARTS for tag, _ in struct.iter_unpack("<2Q", table[: len(table) - len(table) % 16]))


def _read(image: bytes) -> tuple[list[_Section], list[_Symbol]]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    try:
        (begin,), (width, count, names) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<3H", image, 58)
        if width != 64:
            raise ValueError(f"section headers of {width} bytes")
        raw = [struct.unpack_from("<2I4Q2I2Q", image, begin + at * width) for at in range(count)]
        text = image[raw[names][4] : raw[names][4] + raw[names][5]] if raw else b""
        sections = [_Section(_text(text, r[0]), r[1], r[2], r[4], r[5], r[6], r[9]) for r in raw]
        return sections, [s for section in sections if section.kind == _SYMBOLS for s in _symbols(image, section, raw)]
    except (struct.error, IndexError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from error


def _symbols(image: bytes, table: _Section, raw: list[tuple[int, ...]]) -> Iterator[_Symbol]:
    if table.width != 24:
        raise ValueError(f"symbols of {table.width} bytes")
    text = image[raw[table.link][4] : raw[table.link][4] + raw[table.link][5]]
    for at in range(table.offset, table.offset + table.size, table.width):
        name, info, _, section, _, size = struct.unpack_from("<I2BH2Q", image, at)
        yield _Symbol(_text(text, name), info & 0xF, section, size)


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(0, at)].decode("utf-8", "replace") if at < len(table) else ""
