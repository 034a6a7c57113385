"""Mutators: each finds every place of a kernel's text where one small fault can be inserted.

In: a materialised text. Out: `Mutation`s, each a span of the text and its replacement. Nothing is drawn and nothing is
compiled here; many mutations leave a program that does not compile or that has the same machine code.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import phrases
from .phrases import Code, Token, statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One fault: `old`, at offset `start` of the text, becomes `new`."""

    mutator: str
    start: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the text with the fault."""
        assert text.startswith(self.old, self.start), "a mutation belongs to one text"
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    def describe(self, text: str) -> dict[str, Any]:
        """Return the place in the template's own files, and the first line that differs, before and after."""
        file, line = phrases.place(text, self.start)
        return {
            "mutator": self.mutator,
            "file": file,
            "line": line,
            "before": phrases.line_at(text, self.start),
            "after": phrases.line_at(self.apply(text), self.start),
        }

    def behind(self, text: str) -> str:
        """Return the line behind the mutated one, without its indentation."""
        end = text.find("\n", self.start)
        return phrases.line_at(text, end + 1) if end >= 0 else ""


def mutations(text: str) -> dict[str, tuple[Mutation, ...]]:
    """Return every mutation of a materialised text, by mutator in the table's order.

    A mutator that finds no place is absent.
    """
    code = Code(text, phrases.tokens(text))
    found = {}
    for name, mutator in MUTATORS.items():
        made = [Mutation(mutator=name, start=a, old=text[a:b], new=new) for a, b, new in mutator(code)]
        unique = {(m.start, m.old, m.new): m for m in made if m.new != m.old}
        if unique:
            found[name] = tuple(unique.values())
    return found


Edit = tuple[int, int, str]
"""Start offset, end offset and replacement."""
Mutator = Callable[[Code], Iterator[Edit]]


def _swap(table: Mapping[str, tuple[str, ...]]) -> Mutator:
    """Make a mutator that replaces the names or operators of `table` by others.

    Of operators, only those between blanks count: those are binary, and no template's bracket or pointer is.
    """

    def find(code: Code) -> Iterator[Edit]:
        for i, token in enumerate(code.tokens):
            if token.text in table and (token.kind == "name" or (token.kind == "operator" and code.spaced(i))):
                for new in table[token.text]:
                    yield token.start, token.end, new

    return find


_INTEGER = re.compile(r"(\d+)([uUlL]*)")
_HEX = re.compile(r"(0[xX])([0-9a-fA-F]+)([uUlL]*)")


def _constant(code: Code) -> Iterator[Edit]:
    """Replace an integer by one more and by one less: bounds, shifts, offsets, lanes."""
    for token in code.tokens:
        match = _INTEGER.fullmatch(token.text) if token.kind == "number" else None
        if match is not None:
            value = int(match[1])
            yield token.start, token.end, f"{value + 1}{match[2]}"
            if value:
                yield token.start, token.end, f"{value - 1}{match[2]}"


def _mask(code: Code) -> Iterator[Edit]:
    """Remove the highest or the lowest bit of a mask, or halve its width."""
    for token in code.tokens:
        match = _HEX.fullmatch(token.text) if token.kind == "number" else None
        if match is not None:
            value = int(match[2], 16)
            lowest, highest = value & -value, 1 << max(value.bit_length() - 1, 0)
            for other in dict.fromkeys((value ^ lowest, value ^ highest, value >> 1)):
                yield token.start, token.end, f"{match[1]}{other:x}{match[3]}"
        elif token.text == "ALL":
            yield token.start, token.end, "(ALL >> 16)"


_DECIMAL = re.compile(r"((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)([fF]?)")


def _coefficient(code: Code) -> Iterator[Edit]:
    """Double or negate a floating-point number; replace 0 by 1."""
    for token in code.tokens:
        match = _DECIMAL.fullmatch(token.text) if token.kind == "number" else None
        if match is not None and float(match[1]) == 0.0:
            yield token.start, token.end, f"1.0{match[2]}"
        elif match is not None:
            yield token.start, token.end, f"(2.0f * {token.text})"
            yield token.start, token.end, f"(-{token.text})"


def _index(code: Code) -> Iterator[Edit]:
    """Move a subscript one further and one back; sizes of declared arrays are left to `constant`."""
    for i, token in enumerate(code.tokens):
        before, closing = code.tokens[i - 1], code.partner.get(i, i + 1)
        subscripts = before.kind == "name" or before.text in ("]", ")")
        if token.text == "[" and i > 0 and closing > i + 1 and subscripts and not phrases.declared(code, i):
            inner = code.text[token.end : code.tokens[closing].start]
            for step in ("+ 1", "- 1"):
                yield token.end, token.end + len(inner), f"({inner}) {step}"


def _removed(kind: Callable[[Sequence[Token]], bool]) -> Mutator:
    """Make a mutator that removes the statements of a kind, which their tokens tell."""

    def find(code: Code) -> Iterator[Edit]:
        for first, last in statements(code):
            if kind(code.tokens[first:last]):
                yield code.tokens[first].start, code.tokens[last].end, ";"

    return find


def _works(tokens: Sequence[Token]) -> bool:
    """Return whether a statement assigns, counts or calls."""
    words = {token.text for token in tokens}
    assigns = any(word.endswith("=") and word not in ("==", "!=", "<=", ">=") for word in words)
    return assigns or not words.isdisjoint(("++", "--", "("))


_BARRIERS = re.compile(
    r"__syncthreads|__syncwarp|__threadfence\w*|wait_for\w*|copies_there|copies_asked|barriers_made|expect|arrive\w*"
    r"|\w*sync\w*|\w*fence\w*|make_barrier|leave|release\w*|acquire\w*"
)


def _waits(tokens: Sequence[Token]) -> bool:
    """Return whether a statement is a barrier, a fence or a wait."""
    return any(token.kind == "name" and _BARRIERS.fullmatch(token.text) for token in tokens)


def _block(code: Code) -> Iterator[Edit]:
    """Remove a whole `if` or `for` that has no `else`: tails, guards, loops."""
    for i, token in enumerate(code.tokens):
        if token.text in ("if", "for") and token.kind == "name":
            end = phrases.statement_ends(code, i)
            if end > i and code.at(end + 1) != "else":
                yield token.start, code.tokens[end].end, ";"


def _negated(code: Code) -> Iterator[Edit]:
    """Negate a condition, of an `if`, of a `while` or before a question mark."""
    for i, token in enumerate(code.tokens):
        if token.text in ("if", "while") and token.kind == "name":
            if (body := phrases.body_of(code, i)) is not None:
                begin, end = code.tokens[code.partner[body - 1]].end, code.tokens[body - 1].start
                yield begin, end, f"!({code.text[begin:end]})"
        elif token.text == "?" and (asked := code.condition_before(i)) is not None:
            yield asked, token.start, f"!({code.text[asked : token.start].rstrip()}) "


def _arguments(code: Code) -> Iterator[Edit]:
    for spans in phrases.arguments(code):
        for (a, b), (c, d) in itertools.pairwise(spans):
            one, two = code.text[a:b], code.text[c:d]
            if one != two:
                yield a, d, two + code.text[b:c] + one


def _initial(code: Code) -> Iterator[Edit]:
    """Change an initial value: 0 to 1, 1 to 0, an infinity to 0, or the first element of an array of zeros to 1."""
    starts = {"0": "1", "1": "0", "0.0f": "1.0f", "1.0f": "0.0f", "INT32_MIN": "0", "true": "false"}
    for i, token in enumerate(code.tokens):
        if token.text != "=" or code.at(i - 1) in ("[", "(", "operator"):
            continue
        value, after = code.at(i + 1), code.at(i + 2)
        if after in (";", ",") and value in starts:
            yield code.tokens[i + 1].start, code.tokens[i + 1].end, starts[value]
        elif value == "{" and after == "}":
            yield code.tokens[i + 1].start, code.tokens[i + 2].end, "{1.0f}"
        elif value == "-" and after == "INFINITY":
            yield code.tokens[i + 1].start, code.tokens[i + 2].end, "0.0f"


_CASTS = ("float", "int", "long", "unsigned", "uint32_t", "uint16_t", "int64_t", "vf", "vu")


def _cast(code: Code) -> Iterator[Edit]:
    """Drop a conversion, narrow a 64-bit index, or round a float to bfloat16 on its way."""
    narrow = "to_float(to_bf16({}))" if "immintrin.h" in code.text or "to_bf16" in code.text else ""
    narrow = narrow or ("to_float(Rounded<bf16>::of({}))" if "Rounded<" in code.text else "")
    for i, token in enumerate(code.tokens):
        if token.kind == "name" and token.text in _CASTS and code.at(i + 1) == "(" and i + 1 in code.partner:
            yield token.start, token.end, ""
        elif token.text == "(" and code.at(i + 1) in _CASTS and code.at(i + 2) == ")":
            yield token.start, code.tokens[i + 2].end, ""
        elif token.text == "long" and code.at(i + 1) not in ("(", ">", ")"):
            yield token.start, token.end, "signed char"
        elif narrow and token.text == "=" and code.at(i - 2) == "float" and (end := code.clause_end(i + 1)) > i + 1:
            begin, stop = code.tokens[i + 1].start, code.tokens[end - 1].end
            yield begin, stop, narrow.format(code.text[begin:stop])


def _factor(code: Code) -> Iterator[Edit]:
    """Remove a factor or a term: a scale, a norm's weight, an offset, a bias."""
    for i, token in enumerate(code.tokens):
        binary = token.text in ("*", "+", "-", "/") and token.kind == "operator" and code.spaced(i)
        if binary and (end := phrases.operand_after(code, i)) > i:
            yield code.tokens[i - 1].end, code.tokens[end].end, ""


def _sign(code: Code) -> Iterator[Edit]:
    for i, token in enumerate(code.tokens):
        if token.text == "-" and not code.spaced(i) and code.at(i - 1) in ("(", ",", "=", "?", ":", "return", "*", "{"):
            yield token.start, token.end, ""


def _stride(code: Code) -> Iterator[Edit]:
    """Double the step of a loop, or make a factor of an index one larger."""
    for first, last in phrases.increments(code):
        text = code.text[code.tokens[first].start : code.tokens[last].end]
        if code.at(first) == "++":
            yield code.tokens[first].start, code.tokens[last].end, f"{text[2:]} += 2"
        elif (at := text.find("+=")) > 0:
            step = text[at + 2 :].strip()
            yield code.tokens[first].start, code.tokens[last].end, f"{text[:at]}+= 2 * ({step})"
    for i, token in enumerate(code.tokens):
        if token.text == "*" and code.spaced(i) and code.at(i + 2) not in ("(", "<", "[", ".", "->", "::"):
            after = code.tokens[i + 1]
            if after.kind == "name":
                yield after.start, after.end, f"({after.text} + 1)"


MUTATORS: Mapping[str, Mutator] = {
    "arithmetic": _swap({"+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "%": ("/",)}),
    "compound": _swap({"+=": ("-=", "="), "-=": ("+=",), "*=": ("/=",)}),
    "boundary": _swap({"<": ("<=",), "<=": ("<",), ">": (">=",), ">=": (">",)}),
    "turned": _swap({"<": (">=",), "<=": (">",), ">": ("<=",), ">=": ("<",)}),
    "equality": _swap({"==": ("!=",), "!=": ("==",)}),
    "logic": _swap({"&&": ("||",), "||": ("&&",)}),
    "bits": _swap({"&": ("|",), "|": ("&",), "^": ("|",), "<<": (">>",), ">>": ("<<",)}),
    "extreme": _swap(
        {"min": ("max",), "max": ("min",), "fminf": ("fmaxf",), "fmaxf": ("fminf",), "INT32_MAX": ("INT32_MIN",)}
    ),
    "constant": _constant,
    "mask": _mask,
    "coefficient": _coefficient,
    "index": _index,
    "dropped": _removed(_works),
    "barrier": _removed(_waits),
    "block": _block,
    "negated": _negated,
    "arguments": _arguments,
    "initial": _initial,
    "cast": _cast,
    "factor": _factor,
    "sign": _sign,
    "stride": _stride,
}
"""The mutators by the name that reports show."""
