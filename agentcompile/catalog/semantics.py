"""Checks of a manifest beyond its types: names that exist, domains that make sense, texts that fit.

In: a template, the facts of its region kind, the layout names. Out: nothing, or the first fault as an
`AgentCompileError` that names file, key, value and what is allowed there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from agentcompile.catalog.decode import hint_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.expr import ExprError, free_names, parse
from agentcompile.ir.kind import KindFacts
from agentcompile.ir.scope import ISA, names_of
from agentcompile.ir.template import COUNT, Launch, Param, Template

MAX_POINTS = 65_536
"""The most points that the domains of one template may span before constraints; no search sees more."""
_PARAM = re.compile(r"[A-Z][A-Z0-9_]*")
_VARIANT = re.compile(r"[a-z][a-z0-9-]*")
"""The form of a variant's name, which enters `#line` directives, command lines and locks unquoted."""
_LOWER = re.compile(r"[a-z][a-z0-9_]*")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_CUDA_ARCH = re.compile(r"sm_[0-9]{2,3}[af]?")
_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a alignas alignof and args asm auto bf16 bool break case catch char class const constexpr continue
        default delete do double else enum explicit export extern false float for fp16 friend goto if inline int
        long main mutable namespace new not operator or private protected public rank register return short
        signed size sizeof static struct switch template this throw true try typedef typename union unsigned
        using virtual void volatile while xor
        """,
    )
)
"""Words of C++ and of every generated head, which no port, workspace or entry is called."""
_TYPES = frozenset(
    re.findall(
        r"\w+",
        """
        blkcnt blkcnt64 blksize caddr char16 char32 char8 clock clockid comparison_fn cookie_close_function
        cookie_io_functions cookie_read_function cookie_seek_function cookie_write_function cpu_set daddr dev div
        double float fpos fpos64 fsblkcnt fsblkcnt64 fsfilcnt fsfilcnt64 fsid gid id ino ino64 int16 int32 int64 int8
        int_fast16 int_fast32 int_fast64 int_fast8 int_least16 int_least32 int_least64 int_least8 intmax intptr key
        ldiv lldiv locale loff max_align mbstate mode nlink nullptr off off64 pid pthread pthread_attr pthread_barrier
        pthread_barrierattr pthread_cond pthread_condattr pthread_key pthread_mutex pthread_mutexattr pthread_once
        pthread_rwlock pthread_rwlockattr pthread_spinlock ptrdiff quad register sigset size socklen ssize suseconds
        time timer u_int16 u_int32 u_int64 u_int8 u_quad uid uint16 uint32 uint64 uint8 uint_fast16 uint_fast32
        uint_fast64 uint_fast8 uint_least16 uint_least32 uint_least64 uint_least8 uintmax uintptr useconds wchar wint
        """,
    )
)
"""Names whose ``NAME_t`` is a type of the C library's headers.

Every generated head includes such headers, and calls the type of a port ``NAME_t`` too.
"""
RESERVED = _WORDS | _TYPES
"""Names that no port may have; a workspace or an entry has no type of its own, and may be called as a type is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong at a key of the manifest, and what to do."""

    key: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """What a manifest is checked against: the facts of its region kind and the layout names."""

    kind: KindFacts
    layouts: Collection[str]

    @property
    def families(self) -> list[str]:
        """The kind's port families, in order."""
        return [port.family for port in self.kind.ports]


def refuse(file: str, key: str, text: str, hint: str) -> AgentCompileError:
    """Return the error for a fault in a manifest, as file, key and fault.

    It reads like ``templates/x/y/template.toml: params.VEC.default: 3 is not in its domain``.
    """
    return AgentCompileError(f"{file}: {key}: {text}" if key else f"{file}: {text}", hint=hint)


def verify(template: Template, *, file: str, kinds: Mapping[str, KindFacts], layouts: Collection[str]) -> None:
    """Check `template` with `CHECKS`, in order.

    Raises:
        AgentCompileError: the first fault (usage).
    """  # noqa: DOC501
    kind = kinds.get(template.region)
    if kind is None:
        hint = hint_of(template.region, sorted(kinds))
        raise refuse(file, "region", f'"{template.region}" is not a region kind', hint)
    beside = ManifestFacts(kind=kind, layouts=layouts)
    for check in CHECKS:
        for fault in check(template, beside):
            raise refuse(file, fault.key, fault.text, fault.hint)


def _folder(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    folder, _, variant = template.id.partition("/")
    if not _VARIANT.fullmatch(variant):
        text = f"{variant!r} cannot name a variant"
        yield Fault(key="", text=text, hint="rename the folder: small letters, digits and hyphens, a letter first")
    if folder != template.region:
        text = f'"{template.region}" differs from the folder {folder}/'
        yield Fault(key="region", text=text, hint="a template is in the folder of its kind: <kind>/<variant>/")


def _basics(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    if not template.about.strip():
        yield Fault(key="about", text="empty", hint="say in one sentence how it works and when it should win")
    yield from _distinct("dtypes", template.dtypes, least=1)
    yield from _distinct("phases", template.phases, least=1)
    yield from _distinct("arch", template.arch, least=0)
    if not 1 <= template.tokens[0] <= template.tokens[1]:
        yield Fault(
            key="tokens", text=f"{list(template.tokens)} is no range", hint="the fewest and the most, from 1 on"
        )
    for index, arch in enumerate(template.arch):
        if template.language == "cpp" and arch not in ISA:
            text = f'"{arch}" is not a known instruction-set extension'
            yield Fault(key=f"arch[{index}]", text=text, hint=hint_of(arch, ISA))
        if template.language in ("cuda", "triton") and not _CUDA_ARCH.fullmatch(arch):
            yield Fault(key=f"arch[{index}]", text=f'"{arch}" is not a CUDA architecture', hint="like sm_90a")
        if template.language == "library" and not _CUDA_ARCH.fullmatch(arch):
            text = "a library call runs anywhere, or on CUDA architectures alone"
            yield Fault(key="arch", text=text, hint="remove it, or name architectures like sm_90a")


def _distinct(key: str, values: tuple[str, ...], *, least: int) -> Iterator[Fault]:
    if len(values) < least:
        yield Fault(key=key, text="empty", hint="name at least one")
    for value, times in Counter(values).items():
        if times > 1:
            yield Fault(key=key, text=f'"{value}" appears {times} times', hint="name each once")


def _params(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    points = 1
    for param in template.params:
        key = f"params.{param.name}"
        if not _PARAM.fullmatch(param.name) or param.name.startswith("ISA_"):
            text = "parameter names are upper case, and ISA_… is taken"
            yield Fault(key=key, text=text, hint="name it like ROWS or TILE_K")
        yield from _domain(param, key, template.language == "cpp")
        points *= len(param.domain)
    if points > MAX_POINTS:
        text = f"the domains span {points} points, more than {MAX_POINTS}"
        yield Fault(key="params", text=text, hint="shorten the domains; powers of two usually do")


def _domain(param: Param, key: str, integers: bool) -> Iterator[Fault]:
    if not param.domain:
        yield Fault(key=f"{key}.domain", text="empty", hint="list every value that may be tried")
    for value, times in Counter(param.domain).items():
        if times > 1:
            yield Fault(key=f"{key}.domain", text=f"{value} appears {times} times", hint="list each value once")
        if integers and not isinstance(value, int):
            yield Fault(key=f"{key}.domain", text=f'"{value}" is not a whole number', hint="C++ takes integers")
    if len({type(value) for value in param.domain}) > 1:
        yield Fault(key=f"{key}.domain", text="mixes numbers and texts", hint="use one of them")
    if param.default not in param.domain:
        shown = ", ".join(str(value) for value in param.domain)
        yield Fault(key=f"{key}.default", text=f"{param.default} is not in the domain", hint=f"allowed: {shown}")
    if not param.about.strip():
        yield Fault(key=f"{key}.about", text="empty", hint="say in one line what it trades")


def _expression(key: str, text: str, allowed: list[str]) -> Iterator[Fault]:
    try:
        names = free_names(parse(text))
    except ExprError as error:
        hint = "whole numbers, names, + - * // %, comparisons, and or not, if else, min max ceil_div round_up"
        yield Fault(key=key, text=str(error), hint=hint)
        return
    for name in names:
        if name not in allowed:
            yield Fault(key=key, text=f"`{text}` names {name}, which is unknown", hint=hint_of(name, allowed))


def _visible(template: Template, beside: ManifestFacts) -> list[str]:
    numbers = [param.name for param in template.params if all(isinstance(value, int) for value in param.domain)]
    return [*numbers, *names_of(beside.kind)]


def _requires(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    allowed = _visible(template, beside)
    for index, text in enumerate(template.requires):
        yield from _expression(f"requires[{index}]", text, allowed)


def _layouts(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    for family, layout in template.layouts:
        port = beside.kind.port(family)
        if port is None:
            text = f"{template.region} has no port of that name"
            yield Fault(key=f"layouts.{family}", text=text, hint=hint_of(family, beside.families))
        elif port.role not in ("weight", "state"):
            held = [port.family for port in beside.kind.ports if port.role in ("weight", "state")]
            text = f"an {port.role} is always row-major"
            yield Fault(key=f"layouts.{family}", text=text, hint=hint_of(family, held))
        if layout not in beside.layouts:
            text = f'"{layout}" is not a layout'
            yield Fault(key=f"layouts.{family}", text=text, hint=hint_of(layout, sorted(beside.layouts)))


def _rounds(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    for index, (value, _) in enumerate(template.rounds):
        known = (*beside.kind.interior, *beside.kind.weights)
        if value not in known:
            text = f'"{value}" is not a value inside {template.region}'
            yield Fault(key=f"rounds[{index}]", text=text, hint=hint_of(value, known))


def _workspaces(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    names = [space.name for space in template.workspaces]
    passed = {name for launch in template.launches for name in launch.arguments}
    for index, space in enumerate(template.workspaces):
        key = f"workspaces[{index}]"
        if not _LOWER.fullmatch(space.name) or space.name in _WORDS:
            yield Fault(key=f"{key}.name", text=f'"{space.name}" is no lower-case name', hint="name it like partial")
        if names.count(space.name) > 1 or space.name in (COUNT, *beside.families):
            yield Fault(key=f"{key}.name", text=f'"{space.name}" is taken', hint="ports have names too; choose another")
        if space.name not in passed:
            text = f'"{space.name}" is an argument of no launch'
            yield Fault(key=f"{key}.name", text=text, hint="pass it to a launch or remove it")
        yield from _expression(f"{key}.count", space.count, _visible(template, beside))


def _launches(template: Template, beside: ManifestFacts) -> Iterator[Fault]:
    if template.language == "library":
        if template.launches or template.workspaces:
            yield Fault(key="launch", text="a library call has no launches or workspaces", hint="name the call alone")
        if not template.call:
            yield Fault(key="call", text="missing", hint='name the call: call = "torch.linear"')
        return
    if template.call:
        yield Fault(key="call", text=f'"{template.call}" in a {template.language} template', hint="remove it")
    if not template.launches:
        yield Fault(key="launch", text="missing", hint="list every [[launch]] with entry and arguments, in order")
    taken = {*beside.kind.dims, *beside.kind.constants, *names_of(beside.kind), *_WORDS}
    blocks: dict[str, tuple[str, ...]] = {}
    for index, launch in enumerate(template.launches):
        key = f"launch[{index}]"
        if not _IDENTIFIER.fullmatch(launch.entry) or launch.entry in taken:
            yield Fault(key=f"{key}.entry", text=f'"{launch.entry}" cannot name a function', hint="name it otherwise")
        elif not re.search(rf"\b{launch.entry}\b", template.source):
            text = f'"{launch.entry}" does not occur in {template.source_name}'
            yield Fault(key=f"{key}.entry", text=text, hint="name a function of the kernel file")
        yield from _arguments(template, beside, f"{key}.arguments", launch.arguments)
        geometry = [*launch.grid, *launch.block, launch.shared_bytes, *launch.cluster]
        if template.language == "cpp" and (geometry != ["0"] or launch.cooperative or launch.pdl):
            yield Fault(key=key, text="a C++ launch has no geometry", hint="remove grid, block and the like")
        if template.language == "triton" and (launch.shared_bytes != "0" or launch.cluster or launch.cooperative):
            text = "Triton decides on shared memory by itself, and launches single blocks"
            yield Fault(key=key, text=text, hint="remove shared_bytes, cluster and cooperative")
        if template.language == "triton" and launch.block != blocks.setdefault(launch.entry, launch.block):
            text = (
                f'"{launch.entry}" is launched with two sizes of block: {blocks[launch.entry][0]} and {launch.block[0]}'
            )
            yield Fault(key=f"{key}.block", text=text, hint="one image is built for each entry: name a second function")
        for text in geometry:
            yield from _expression(key, text, _visible(template, beside))
        yield from _early(launch, beside, f"{key}.early")
        yield from _in_place(launch, beside, f"{key}.in_place")
        yield from _arranged(template, launch, beside, key)
        yield from _maps(template, launch, beside, f"{key}.maps")


def _early(launch: Launch, beside: ManifestFacts, key: str) -> Iterator[Fault]:
    if launch.early and not launch.pdl:
        yield Fault(key=key, text="without pdl a kernel waits before it starts", hint="remove it, or set pdl = true")
    for name in launch.early:
        role = _role(name, launch, beside)
        if not role:
            yield _not_passed(name, launch, key)
        elif role == "output":
            yield Fault(key=key, text=f'"{name}" is an output', hint="only what is read can be read early")


def _in_place(launch: Launch, beside: ManifestFacts, key: str) -> Iterator[Fault]:
    for pair in launch.in_place:
        for name, wanted, lacks in zip(
            pair, ("output", "activation"), ("output", "activation that is read"), strict=True
        ):
            role = _role(name, launch, beside)
            if not role:
                yield _not_passed(name, launch, key)
            elif role != wanted:
                hint = 'a pair is an output and an input: ["y", "x"]'
                yield Fault(key=key, text=f'"{name}" is no {lacks}', hint=hint)


def _arranged(template: Template, launch: Launch, beside: ManifestFacts, at: str) -> Iterator[Fault]:
    """Yield the faults of what a workspace of one number tells a launch of how an input or an output lies."""
    spaces = {space.name: space for space in template.workspaces}
    read = ((f"{at}.pitched", *pair, "activation", "activation that is read", "an input") for pair in launch.pitched)
    made = ((f"{at}.token_major", *pair, "output", "output", "an output") for pair in launch.token_major)
    for key, name, told, wanted, what, one in (*read, *made):
        role, space = _role(name, launch, beside), spaces.get(told)
        if not role:
            yield _not_passed(name, launch, key)
        elif role != wanted:
            yield Fault(key=key, text=f'"{name}" is no {what}', hint=f'a pair is {one} and a workspace: ["x", "told"]')
        if space is None or told not in launch.arguments:
            text = f'"{told}" is no workspace that the launch passes'
            yield Fault(key=key, text=text, hint=hint_of(told, list(spaces)))
        elif (space.dtype, space.count, space.initial) != ("int64", "1", "zero"):
            yield Fault(key=key, text=f'"{told}" is not one int64 that begins as zero', hint="declare it so")


def _maps(template: Template, launch: Launch, beside: ManifestFacts, key: str) -> Iterator[Fault]:
    if launch.maps and template.language != "cuda":
        yield Fault(key=key, text=f"a {template.language} launch has no tensor maps", hint="remove them")
    yield from _distinct(key, tuple(one.of for one in launch.maps), least=0)
    for one in launch.maps:
        port, layout = beside.kind.port(one.of), template.layout(one.of)
        if not _role(one.of, launch, beside):
            yield _not_passed(one.of, launch, key)
        elif port is None or port.optional:
            yield Fault(key=key, text=f'a region may lack "{one.of}"', hint="map a port that every region has")
        elif layout != "row-major":
            yield Fault(key=key, text=f'"{one.of}" is in {layout}', hint="a map is of a matrix in row-major order")
        yield from _expression(key, one.box, _visible(template, beside))


def _role(name: str, launch: Launch, beside: ManifestFacts) -> str:
    port = beside.kind.port(name)
    return port.role if port is not None and name in launch.arguments else ""


def _not_passed(name: str, launch: Launch, key: str) -> Fault:
    text = f'"{name}" is no port that the launch passes'
    return Fault(key=key, text=text, hint=hint_of(name, launch.arguments))


def _arguments(template: Template, beside: ManifestFacts, key: str, arguments: tuple[str, ...]) -> Iterator[Fault]:
    params = [COUNT] if template.language == "cpp" else [param.name for param in template.params]
    allowed = [*beside.families, *(space.name for space in template.workspaces), *params]
    if COUNT in arguments and template.phases != ("prefill",):
        yield Fault(key=key, text=f'"{COUNT}" in a template of decode steps', hint='set phases = ["prefill"]')
    for name in arguments:
        if name not in allowed:
            text = f'"{name}" is neither a port nor a workspace'
            yield Fault(key=key, text=text, hint=hint_of(name, allowed))
    yield from _distinct(key, arguments, least=0)


CHECKS: tuple[Callable[[Template, ManifestFacts], Iterator[Fault]], ...] = (
    _folder, _basics, _params, _requires, _layouts, _rounds, _workspaces, _launches,
)  # fmt: skip
"""The checks, in the order in which a person would correct the faults."""
