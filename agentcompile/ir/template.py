"""Templates, their parameters, and candidates. A template is data: a manifest and one kernel file."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.digest import Json, digest
from agentcompile.ir.region import Regime

Language = Literal["cuda", "triton", "cpp", "library"]
Accumulation = Literal["float32", "float64", "bf16x2", "library"]
Depth = Literal["search", "length", "accept"]
"""How much of the correctness suite runs: a handful of cases, all of it, or, for kernels that are made anew for every
number of tokens of a chunk, at numbers other than the usual one, all of it with a third of the cases.
"""
"""Precision of a kernel's sums: `bf16x2` is float32 sums of products whose operands are two bf16 numbers each."""
ParamValue = int | str
COUNT = "count"
"""The argument of a C++ launch that points to the number of tokens of the chunk, one int64, from 1 to `tokens`.

A kernel that has it serves every chunk: all ports are dense for that many tokens, whatever extents it was made with.
"""
QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]*)"[^\n]*$', re.MULTILINE)
"""An include of a shared text (group 1), inlined once, in Python a comment; angle includes stay for the compiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One tunable: a finite ordered domain, a default inside it, and a sentence for advisers and people."""

    name: str
    domain: tuple[ParamValue, ...]
    default: ParamValue
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A scratch buffer of a candidate; `count` is an expression over dims and params, in elements of `dtype`.

    One that is `zero` at first is filled once, before the first launch; every launch leaves it as zeros again.
    """

    name: str
    dtype: Literal["fp32", "int64", "int32", "bf16"]
    count: str
    initial: Literal["undefined", "zero"] = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """How a launch copies boxes of a port to shared memory: the port is a matrix of 16-bit elements in row-major order.

    A box is 128 bytes wide and lies in shared memory with the swizzle of 128 bytes; what it has outside the matrix is
    zero. The kernel gets the map behind the pointers of its argument struct, as ``PORT_map``, and its rows as the
    constant ``PORT_box``. Where a family has several ports, its maps are an array.
    """

    of: str
    """A family of ports; once the launch is resolved, one port of it."""
    box: str
    """Rows of a box, an expression."""
    rows: int = 0
    """Of the matrix, once the launch is resolved; it has all but the last extent of the port's shape."""
    columns: int = 0
    """Likewise, the last extent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch; on CPU every thread calls `entry(args, rank, size)` and a barrier follows.

    `arguments` are port families, workspace names, params or `COUNT`; the geometry strings are expressions and are read
    on CUDA alone.
    """

    entry: str
    arguments: tuple[str, ...]
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    shared_bytes: str = "0"
    cooperative: bool = False
    cluster: tuple[str, ...] = ()
    pdl: bool = False
    early: tuple[str, ...] = ()
    """Arguments that it may read before it waits for its predecessors; the runtime orders writers of them before it."""
    in_place: tuple[tuple[str, str], ...] = ()
    """Pairs of an output and an input that may share a buffer.

    A thread reads its part of the input before it writes there, and no other thread reads what it writes.
    """
    pitched: tuple[tuple[str, str], ...] = ()
    """Pairs of an input and a zeroed workspace of one int64 that holds the input's token stride in elements.

    The input may so be some columns of a wider matrix; a stride of zero means that it is dense. Only the host writes
    it, before any launch.
    """
    token_major: tuple[tuple[str, str], ...] = ()
    """Pairs of an output [1, heads, T, D] and a zeroed workspace of one int64.

    Where that holds 1, the output lies in memory as [T, heads, D]: as the product behind attention reads it. Only the
    host writes it, before any launch.
    """
    maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A manifest with its kernel text; `id` is the folder's path below the root: `rmsnorm-linear/rows`."""

    id: str
    region: str
    language: Language
    about: str
    dtypes: tuple[str, ...]
    """Weight dtypes that it serves: `bf16`, `fp32`."""
    arch: tuple[str, ...] = ()
    """Required ISA extensions (CPU, all of them) or CUDA architectures (one of them); empty means any.

    A library call with any runs on CUDA alone.
    """
    phases: tuple[str, ...] = ("decode",)
    tokens: tuple[int, int] = (1, 1)
    """The fewest and the most sequences that a decode step may hold, with a token of each."""
    layouts: tuple[tuple[str, str], ...] = ()
    """Port family to layout name; a family that is absent is `row-major`."""
    requires: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()
    rounds: tuple[tuple[str, str], ...] = ()
    """Values of the region's body that the kernel holds in a narrower type than float32: (name, dtype)."""
    accumulation: Accumulation = "float32"
    deterministic: bool = True
    workspaces: tuple[Workspace, ...] = ()
    launches: tuple[Launch, ...] = ()
    call: str = ""
    """Name of the call in the library table, for `library`."""
    source_name: str = ""
    source: str = ""
    """Kernel file verbatim; empty for `library`."""
    includes: tuple[tuple[str, str], ...] = ()
    """Name and text of every shared file that the kernel inlines, in the order of first use."""

    @property
    def digest(self) -> str:
        """The identity of manifest and kernel text together."""
        from agentcompile.ir.codec import lean

        return digest("template/2", lean(self))

    @property
    def defaults(self) -> Params:
        """The configuration with every parameter at its default."""
        return tuple((param.name, param.default) for param in self.params)

    @property
    def any_chunk(self) -> bool:
        """Whether its kernels serve chunks of every length, because each launch is given the number of tokens."""
        return bool(self.launches) and all(COUNT in launch.arguments for launch in self.launches)

    def layout(self, family: str) -> str:
        """Return the layout that this template wants for a port family."""
        return dict(self.layouts).get(family, "row-major")

    def carried(self, params: Params) -> Params:
        """Return this template's parameters with those values of `params` that its domains allow, else its defaults."""
        have = dict(params)

        def value_of(param: Param) -> ParamValue:
            mine = have.get(param.name)
            # A boolean or a number of another type equals a value of the domain without being it.
            return next((one for one in param.domain if type(one) is type(mine) and one == mine), param.default)

        return tuple((param.name, value_of(param)) for param in self.params)


Params = tuple[tuple[str, ParamValue], ...]
"""A configuration: every parameter of the template, in the manifest's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A region, regime, template, parameters and target; its identity leaves out who proposed it."""

    region: str
    regime: Regime
    template: str
    template_digest: str
    params: Params
    target: str

    @property
    def id(self) -> str:
        """The identity of the point in the space."""
        return _candidate_id(self)

    @property
    def label(self) -> str:
        """The label for people: ``rmsnorm-linear/rows(ROWS=4, AHEAD=4096)``."""
        inner = ", ".join(f"{name}={value}" for name, value in self.params)
        return f"{self.template}({inner})" if inner else self.template

    def distance(self, other: Candidate) -> float:
        """Return how many parameters differ from another candidate's; infinite when the templates differ."""
        if self.template != other.template:
            return math.inf
        return sum(mine != theirs for mine, theirs in zip(self.params, other.params, strict=True))


@functools.lru_cache(maxsize=1 << 16)
def _candidate_id(candidate: Candidate) -> str:
    """Return a candidate's id; it is cached, because screens look up thousands of trials."""
    r = candidate.regime
    regime: Json = [r.phase, r.batch, list(r.context)]
    params: Json = [[name, value] for name, value in candidate.params]
    template: Json = [candidate.template, candidate.template_digest]
    return digest("candidate/1", candidate.region, regime, template, params, candidate.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Self-contained program text of a candidate, with everything needed to launch it."""

    language: Language
    text: str
    launches: tuple[Launch, ...]
    workspaces: tuple[tuple[str, str, int, bool], ...]
    """(name, dtype, elements, zeroed) with the counts evaluated."""
    call: str = ""
    settings: Params = ()
    """Settings of the call, for `library`."""
    flags: tuple[str, ...] = ()
    """Compiler flags that are part of the identity."""

    @property
    def digest(self) -> str:
        """The identity of what a compiler sees."""
        return _source_digest(self)


@functools.lru_cache(maxsize=4096)
def _source_digest(source: Source) -> str:
    """Return a source's digest, cached: every site of every timed plan asks for it, on tens of kilobytes of text."""
    from agentcompile.ir.codec import lean

    return digest("source/2", lean(source))
