"""Loops over static ranges, evaluated on numbers alone: which elements a mutated line still visits in a region.

Shared texts split a range between a loop of vectors and a loop over the rest. A mutation that moves the split may still
visit the same elements, each once; that follows from extents, parameters and the vectors' width, and is decided here by
counting. An expression that cannot be evaluated counts as not equivalent.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import ExprError, parse
from agentcompile.ir.region import Region

from .extents import BYTE, TILE, elements, no_odd_pair, same_type, shares, widths

_MOST_TURNS = 1 << 16
_EACH = (
    "inline void each(long n, F body) {",
    "const long whole = n / LANES * LANES;",
    "for (long i = 0; i < whole; i += LANES) body(wide{}, i);",
    "for (long i = whole; i < n; ++i) body(one{}, i);",
)
"""The lines of `each` in `_include/simd.h`, which are mutated one at a time."""
_LOOP = re.compile(
    r"for \((?P<type>long|signed char) (?P<name>\w+) = (?P<first>[^;]+); (?P<asked>[^;]+); (?P<step>[^;]+?)\)(?= |$)"
)
_STEPS = re.compile(
    r"constexpr (?P<type>long|signed char) step = step_of<W>, main = (?P<main>.+), turns = (?P<turns>.+);"
)
_TURNS = re.compile(r"constexpr (?P<type>long|signed char) turns = (?P<turns>.+);")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A mutation of a line in a kernel of `region` that runs on `threads` threads."""

    region: Region
    threads: int
    before: str
    after: str
    params: Mapping[str, int] = field(default_factory=dict)
    """The candidate's parameters, with ``LANES``, and ``NATIVE``: 1 when it has bf16 products.

    A parameter that is missing may have any value.
    """
    kernel: str = ""
    """The template's id, such as ``linear/packed``."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """The widths that a vector may have, in floats."""
        return (self.params["LANES"],) if "LANES" in self.params else (8, 16)

    @property
    def unrolls(self) -> tuple[int, ...]:
        """The numbers of accumulators that a sum may have; attention chooses among some by itself."""
        return (self.params["UNROLL"],) if "UNROLL" in self.params else (1, 2, 4, 8)


def number(text: str, names: Mapping[str, int], type: str = "long") -> int:
    """Evaluate a C expression that has no negative quotient; the value wraps as the C type `type` does."""
    value = evaluate(parse(re.sub(r"(?<!/)/(?!/)", "//", text)), names)
    return (value + 128) % 256 - 128 if type == "signed char" else value


def visits(loop: str, names: Mapping[str, int]) -> list[int]:
    """Return the values of a loop's counter, in order.

    Raises:
        EvaluationError: the loop cannot be read, or has more than `_MOST_TURNS` iterations.
    """
    found = _LOOP.match(loop)
    if found is None:
        raise EvaluationError(f"no loop: {loop}")
    type, name, step = found["type"], found["name"], found["step"].strip()
    at, made = number(found["first"], names, type), list[int]()
    while number(found["asked"], {**names, name: at}):
        made.append(at)
        if len(made) > _MOST_TURNS:
            raise EvaluationError("no end")
        if step.startswith("++"):
            at = number(f"{name} + 1", {name: at}, type)
        elif (moved := re.fullmatch(r"\w+ (\+?)= (.+)", step)) is not None:
            at = number(moved[2], names, type) + (at if moved[1] else 0)
            at = number(name, {name: at}, type)
        else:
            raise EvaluationError(f"no step: {step}")
    return made


def _each(asked: Asked, count: int, lanes: int) -> Counter[int]:
    """Count how often the mutated `each` calls its body for each element of `count`.

    Raises:
        EvaluationError: a line cannot be evaluated.
    """
    head, defined, vectors, singles = (asked.after if line in asked.before else line for line in _EACH)
    names = {"LANES": lanes, "n": number(str(count), {}, "signed char" if "signed char n" in head else "long")}
    found = re.match(r"const (long|signed char) whole = (.+);", defined)
    if found is None:
        raise EvaluationError(defined)
    names["whole"] = number(found[2], names, found[1])
    seen = Counter[int]()
    for loop, width in ((vectors, lanes), (singles, 1)):
        for at in visits(loop, names) if loop != ";" else ():
            seen.update(range(at, at + width))
    return seen


def _lengths(asked: Asked) -> Sequence[int]:
    """Return the lengths that `each` is called with in a kernel of the region."""
    region, dims = asked.region, dict(asked.region.dims)
    block = asked.params.get("BLOCK", 256)
    if region.kind in ("add", "silu-mul"):
        return elements(region, asked.threads)
    if region.kind == "rmsnorm":
        return [dims["hidden"]]
    if region.kind.endswith("gateup-silu-mul"):
        ends = {end - begin for begin, end in shares(region, asked.threads)}
        return [count for end in ends for count in {min(end, block), end % block}]
    if "attention" in region.kind:
        return [*range(1, block + 1), dims["head_dim"], dims["head_dim"] // 2]
    return range(1, TILE + 1)


def same_elements(asked: Asked) -> bool:
    """Return whether `each` visits the same elements as before at all lengths of the region.

    An element may be visited twice only where that writes the same value again.
    """
    often = "attention" in asked.region.kind or asked.region.kind.endswith("residual")
    try:
        for count, lanes in itertools.product(_lengths(asked), asked.lanes):
            seen = _each(asked, count, lanes)
            if set(seen) != set(range(count)) or (often and any(times > 1 for times in seen.values())):
                return False
    except (EvaluationError, ExprError, KeyError):
        return False
    return True


def same_products(asked: Asked) -> bool:
    """Return whether a row's dot product takes the same elements, each once.

    Single elements must lie where the operand has its natural order.
    """
    found = _STEPS.fullmatch(asked.after)
    try:
        return found is not None and all(
            _row(found, width, dtype, lanes, unroll, natural=dtype == "fp32" or asked.params.get("NATIVE") == 1)
            for (width, dtype), lanes, unroll in itertools.product(widths(asked.region), asked.lanes, asked.unrolls)
        )
    except (EvaluationError, ExprError):
        return False


def _row(found: re.Match[str], width: int, dtype: str, lanes: int, unroll: int, *, natural: bool) -> bool:
    names = {"K": width, "UNROLL": unroll, "step": lanes if dtype == "fp32" else 2 * lanes}
    step = names["step"]
    main = names["main"] = number(found["main"], names, found["type"])
    turns = number(found["turns"], names, found["type"])
    seen = Counter[int]()
    for at in range(0, turns, step * unroll):
        seen.update(range(at, at + step * unroll))
    for at in range(turns, main, step):
        seen.update(range(at, at + step))
    if width % step:
        seen.update(range(main, width))
    # An operand for bf16 weights may be reordered, except in its last part.
    ordered = natural or main >= width // step * step
    return ordered and turns % step == 0 and seen == Counter(range(width))


def same_steps(asked: Asked) -> bool:
    """Return whether a packed dot product takes every step once."""
    found = _TURNS.fullmatch(asked.after)
    try:
        return found is not None and all(
            _steps(found, width if dtype == "fp32" else -(-width // 2), unroll)
            for (width, dtype), unroll in itertools.product(widths(asked.region), asked.unrolls)
        )
    except (EvaluationError, ExprError):
        return False


def _steps(found: re.Match[str], steps: int, unroll: int) -> bool:
    turns = number(found["turns"], {"steps": steps, "UNROLL": unroll}, found["type"])
    seen = Counter[int](at + u for at in range(0, turns, unroll) for u in range(unroll))
    seen.update(range(turns, steps))
    return seen == Counter(range(steps))


def blocks_in_a_byte(asked: Asked) -> bool:
    """Return whether the index of every row of a block fits a signed byte."""
    return max(_lengths(asked), default=0) <= BYTE + 1


def swapped_extreme(asked: Asked) -> bool:
    """Return whether the lines differ only in the order of the two arguments of one `std::min` or `std::max`."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(asked.before, asked.after, strict=False))
    begin = asked.before.rfind("(", 0, sum(1 for _ in same) + 1)
    tail = re.search(r"std::(min|max)(<long>)?$", asked.before[:begin])
    found = re.match(r"\((.+?), (.+?)\)", asked.before[begin:])
    if tail is None or found is None or len(asked.before) != len(asked.after):
        return False
    return f"{asked.before[:begin]}({found[2]}, {found[1]}){asked.before[begin + found.end() :]}" == asked.after


def one_stream(asked: Asked) -> bool:
    """Return whether rows are read one after another."""
    return asked.params.get("STREAMS") == 1


def one_vector(asked: Asked) -> bool:
    """Return whether a tile is one vector."""
    return set(asked.lanes) == {TILE}


def in_place(asked: Asked) -> bool:
    """Return whether an operand may be used in place: it has the matrices' type, and no row ends in half a pair."""
    whole = no_odd_pair(asked.region, asked.threads) or "/rows" in asked.kernel
    return same_type(asked.region, asked.threads) and whole


def packed(asked: Asked) -> bool:
    """Return whether matrices are packed: each lane has a row, and all rows are summed in the same order."""
    return "/packed" in asked.kernel


def counted_by_a_byte(asked: Asked) -> bool:
    """Return whether a loop's counter fits a signed byte from its first value to its last, at the largest bound."""
    found = _LOOP.match(asked.before)
    if found is None:
        return False
    most = re.fullmatch(rf"{found['name']} <=? (.+)", found["asked"].partition(" && ")[0])
    if most is None:
        return False
    try:
        for names in _bounds(asked):
            if "* UNROLL" not in found["step"]:  # other loops count `turns` in steps of a packed row
                names["turns"] = names["K"]
            step = 1 if found["step"].startswith("++") else number(found["step"].partition("+= ")[2], names)
            first, bound = number(_spelled(found["first"]), names), number(_spelled(most[1]), names)
            # A counter from zero ends at the first multiple of its step that is not below the bound.
            end = -(-bound // step) * step if first == 0 and "<=" not in found["asked"] else bound + step - 1
            if step <= 0 or max(end, first) > BYTE:
                return False
    except (EvaluationError, ExprError):
        return False
    return True


def _spelled(text: str) -> str:
    return re.sub(r"operand_room<\w+>", "room", text)


def _bounds(asked: Asked) -> list[dict[str, int]]:
    """Return the largest values of the names in loop bounds, for every dot product and width of vectors."""
    region, threads = asked.region, asked.threads
    lengths = [port.numel for port in region.ports if port.role == "weight" and len(port.shape) == 1]
    every = [*widths(region), *((length, "fp32") for length in lengths)] or [(1, "fp32")]
    shared = {
        **({"groups": dict(region.dims)["hidden"]} if "hidden" in dict(region.dims) else {}),
        **dict(region.dims),
        **asked.params,
        "n": max(_lengths(asked), default=1),
        "TILE": TILE,
        "BLOCK": asked.params.get("BLOCK", 256),
        "size": threads,
        "rank": threads - 1,
    }
    if "attention" in region.kind:
        shared |= dict.fromkeys(("high", "end", "low", "begin"), shared["context"])
        shared["items"] = shared["kv_heads"] * asked.params.get("SPLITS", 64)
    else:
        rows = max((end for _, end in shares(region, threads)), default=0)
        shared |= dict.fromkeys(("end", "begin", "stop"), rows)
        shared |= dict.fromkeys(("high", "low"), shared["groups"]) if "groups" in shared else {}
    found = []
    for (width, dtype), lanes in itertools.product(every, asked.lanes):
        room, step = -(-width // (2 * lanes)) * 2 * lanes, lanes if dtype == "fp32" else 2 * lanes
        mine = {"K": width, "D": width, "LANES": lanes, "room": room, "step": step}
        mine |= dict.fromkeys(("turns", "main", "whole", "steps"), width)
        for unroll in _accumulators(asked, width // step):
            found.append({**shared, **mine, "UNROLL": unroll, "turns": width // (step * unroll) * step * unroll})
    return found


def _accumulators(asked: Asked, steps: int) -> Sequence[int]:
    """Return how many partial sums a row of `steps` steps may have side by side, chosen as in `attend_slots`."""
    if "attention" not in asked.region.kind:
        return asked.unrolls
    return (4, 2) if steps >= 4 else (2,) if steps >= 2 else (1,)
