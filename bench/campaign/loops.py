"""Loops over static ranges, evaluated on numbers alone: which elements a mutated line still visits in a region.

Shared texts split a range between a loop of vectors and a loop over the rest. A mutation that moves the split may still
visit the same elements, each once; that follows from extents, parameters and the vectors' width, and is decided here by
counting. An expression that cannot be evaluated counts as not equivalent.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import parse

from .extents import BYTE, TILE, Asked, elements, no_odd_pair, shares

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
_STEPS = r"constexpr (long|signed char) step = step_of<W>, main = (.+), turns = (.+);"
_TURNS = r"constexpr (long|signed char) turns = (.+);"


def number(text: str, names: Mapping[str, int], type: str = "long") -> int:
    """Evaluate a C expression that has no negative quotient; the value wraps as the C type `type` does."""
    value = evaluate(parse(re.sub(r"(?<!/)/(?!/)", "//", text)), names)
    return (value + 128) % 256 - 128 if type == "signed char" else value


def matched(pattern: str, line: str) -> tuple[str, ...]:
    """Return the groups of a pattern that must match a whole line.

    Raises:
        EvaluationError: it does not.
    """
    found = re.fullmatch(pattern, line)
    if found is None:
        raise EvaluationError(f"not understood: {line}")
    return found.groups()


def visits(loop: str, names: Mapping[str, int]) -> list[int]:
    """Return the values of a loop's counter, in order.

    Raises:
        EvaluationError: the loop cannot be read, or has more than `_MOST_TURNS` iterations.
    """
    found = _LOOP.match(loop)
    if found is None:
        raise EvaluationError(f"no loop: {loop}")
    type, name, step = found["type"], found["name"], found["step"].strip()
    plus, moved = ("+", "1") if step.startswith("++") else matched(r"\w+ (\+?)= (.+)", step)
    at, made = number(found["first"], names, type), list[int]()
    while number(found["asked"], {**names, name: at}):
        made.append(at)
        if len(made) > _MOST_TURNS:
            raise EvaluationError("no end")
        at = number(moved, names, type) + (at if plus else 0)
        at = number(name, {name: at}, type)
    return made


def _each(asked: Asked, count: int, lanes: int) -> Counter[int]:
    """Count how often the mutated `each` calls its body for each element of `count`."""
    head, defined, vectors, singles = (asked.after if line in asked.before else line for line in _EACH)
    names = {"LANES": lanes, "n": number(str(count), {}, "signed char" if "signed char n" in head else "long")}
    type, whole = matched(r"const (long|signed char) whole = (.+);.*", defined)
    names["whole"] = number(whole, names, type)
    seen = Counter[int]()
    for loop, width in ((vectors, lanes), (singles, 1)):
        for at in visits(loop, names) if loop != ";" else ():
            seen.update(range(at, at + width))
    return seen


def _lengths(asked: Asked) -> Sequence[int]:
    """Return the lengths that `each` is called with in a kernel of the region."""
    dims, block = asked.dims, asked.params.get("BLOCK", 256)
    if asked.region.kind in ("add", "silu-mul"):
        return elements(asked)
    if asked.region.kind == "rmsnorm":
        return [dims["hidden"]]
    if asked.gated:
        ends = {end - begin for begin, end in shares(asked)}
        return [count for end in ends for count in {min(end, block), end % block}]
    if asked.attention:
        return [*range(1, block + 1), dims["head_dim"], dims["head_dim"] // 2]
    return range(1, TILE + 1)


def same_elements(asked: Asked) -> bool:
    """Return whether `each` visits the same elements as before at all lengths of the region.

    An element may be visited twice only where that writes the same value again.
    """
    often = asked.attention or asked.region.kind.endswith("residual")
    for count, lanes in itertools.product(_lengths(asked), asked.lanes):
        seen = _each(asked, count, lanes)
        if set(seen) != set(range(count)) or (often and any(times > 1 for times in seen.values())):
            return False
    return True


def same_products(asked: Asked) -> bool:
    """Return whether a row's dot product takes the same elements, each once.

    Single elements must lie where the operand has its natural order.
    """
    type, mains, ends = matched(_STEPS, asked.after)
    for (width, dtype), lanes, unroll in itertools.product(asked.widths, asked.lanes, asked.unrolls):
        step = lanes if dtype == "fp32" else 2 * lanes
        names = {"K": width, "UNROLL": unroll, "step": step}
        main = names["main"] = number(mains, names, type)
        turns = number(ends, names, type)
        seen = Counter[int]()
        for at in range(0, turns, step * unroll):
            seen.update(range(at, at + step * unroll))
        for at in range(turns, main, step):
            seen.update(range(at, at + step))
        if width % step:
            seen.update(range(main, width))
        # An operand for bf16 weights may be reordered, except in its last part.
        natural = dtype == "fp32" or asked.params.get("NATIVE") == 1
        ordered = natural or main >= width // step * step
        if not ordered or turns % step or seen != Counter(range(width)):
            return False
    return True


def same_steps(asked: Asked) -> bool:
    """Return whether a packed dot product takes every step once."""
    type, ends = matched(_TURNS, asked.after)
    for (width, dtype), unroll in itertools.product(asked.widths, asked.unrolls):
        steps = width if dtype == "fp32" else -(-width // 2)
        turns = number(ends, {"steps": steps, "UNROLL": unroll}, type)
        seen = Counter[int](at + u for at in range(0, turns, unroll) for u in range(unroll))
        seen.update(range(turns, steps))
        if seen != Counter(range(steps)):
            return False
    return True


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


def in_place(asked: Asked) -> bool:
    """Return whether an operand may be used in place: it has the matrices' type, and no row ends in half a pair."""
    ports = [port for port in asked.region.ports if port.role in ("activation", "weight")]
    types = {port.dtype for port in ports if port.dtype in ("bf16", "fp16", "fp32")}
    return len(types) == 1 and (no_odd_pair(asked) or "/rows" in asked.kernel)


def counted_by_a_byte(asked: Asked) -> bool:
    """Return whether a loop's counter fits a signed byte from its first value to its last, at the largest bound."""
    found = _LOOP.match(asked.before)
    if found is None:
        return False
    most = re.fullmatch(rf"{found['name']} <=? (.+)", found["asked"].partition(" && ")[0])
    if most is None:
        return False
    for names in _bounds(asked):
        if "* UNROLL" not in found["step"]:  # other loops count `turns` in steps of a packed row
            names["turns"] = names["K"]
        step = 1 if found["step"].startswith("++") else number(found["step"].partition("+= ")[2], names)
        ends = (found["first"], most[1])
        first, bound = (number(re.sub(r"operand_room<\w+>", "room", text), names) for text in ends)
        # A counter from zero ends at the first multiple of its step that is not below the bound.
        end = -(-bound // step) * step if first == 0 and "<=" not in found["asked"] else bound + step - 1
        if step <= 0 or max(end, first) > BYTE:
            return False
    return True


def _bounds(asked: Asked) -> Iterator[dict[str, int]]:
    """Yield the largest values of the names in loop bounds, for every dot product and width of vectors."""
    every = [*asked.widths, *((length, "fp32") for length in asked.norms)] or [(1, "fp32")]
    shared = {
        **({"groups": asked.dims["hidden"]} if "hidden" in asked.dims else {}),
        **asked.dims,
        **asked.params,
        "n": max(_lengths(asked), default=1),
        "TILE": TILE,
        "BLOCK": asked.params.get("BLOCK", 256),
        "size": asked.threads,
        "rank": asked.threads - 1,
    }
    if asked.attention:
        shared |= dict.fromkeys(("high", "end", "low", "begin"), shared["context"])
        shared["items"] = shared["kv_heads"] * asked.params.get("SPLITS", 64)
    else:
        rows = max((end for _, end in shares(asked)), default=0)
        shared |= dict.fromkeys(("end", "begin", "stop"), rows)
        shared |= dict.fromkeys(("high", "low"), shared["groups"]) if "groups" in shared else {}
    for (width, dtype), lanes in itertools.product(every, asked.lanes):
        room, step = -(-width // (2 * lanes)) * 2 * lanes, lanes if dtype == "fp32" else 2 * lanes
        mine = {"K": width, "D": width, "LANES": lanes, "room": room, "step": step}
        mine |= dict.fromkeys(("main", "whole", "steps"), width)
        for unroll in _accumulators(asked, width // step):
            yield {**shared, **mine, "UNROLL": unroll, "turns": width // (step * unroll) * step * unroll}


def _accumulators(asked: Asked, steps: int) -> Sequence[int]:
    """Return how many partial sums a row of `steps` steps may have side by side, chosen as in `attend_slots`."""
    if not asked.attention:
        return asked.unrolls
    return (4, 2) if steps >= 4 else (2,) if steps >= 2 else (1,)


_ALL = (same_elements, same_products, same_steps, blocks_in_a_byte, swapped_extreme, in_place, counted_by_a_byte)
RULES: Mapping[str, Callable[[Asked], int]] = {rule.__name__: rule for rule in _ALL}
"""Rules by the name that `equivalents.toml` has for them."""
