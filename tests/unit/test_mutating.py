"""Mutators change the program and nothing else, and a campaign against a evaluator that accepts everything fails."""

from __future__ import annotations

import pytest
from agentcompile.bench.campaign.mutating import MUTATORS, mutations
from agentcompile.bench.campaign.phrases import Code, place, statements, tokens
from agentcompile.bench.campaign.probing import trapped

PROLOGUE = "// add/plain, specialised\n#include <immintrin.h>\nconstexpr long hidden = 64;\n#define ISA_AVX2 1\n"
BODY = """#line 1 "add/plain/kernel.cpp"
// never 7 + 7 in a comment < this
#if ISA_AVX2
constexpr int LANES = 8;
#else
constexpr int LANES = 123;
#endif
inline float scaled(const float* x, long n, float scale) {
    const char* name = "a + 1";
    float total = 0, top = -INFINITY;
    alignas(64) float kept[LANES] = {};
    for (long i = 0; i < n; i += LANES) total += x[i] * scale;
    if (n > 4 && total != 0) top = std::max(top, total);
    else return -1.5f;
    while (top == 3) __syncthreads();
    const float half = total / float(n);
    unsigned mask = unsigned(n) & 0xffffu;
    put(kept, total, half);
    return total > top ? kept[1] : to_float(to_bf16(half)) - total;
}
"""
TEXT = PROLOGUE + BODY


def changed(mutator: str) -> set[str]:
    """The lines after each mutation of a mutator."""
    return {str(m.describe(TEXT)["after"]) for m in mutations(TEXT)[mutator]}


@pytest.mark.parametrize("mutator", list(MUTATORS))
def test_every_mutator_finds_a_place_and_changes_one_line_of_the_template(mutator: str) -> None:
    for mutation in mutations(TEXT)[mutator]:
        after = mutation.apply(TEXT)
        assert after != TEXT
        assert after.startswith(PROLOGUE), "the prologue is the region's"
        untouched = [line for line in TEXT.splitlines() if "never" in line or "123" in line or "name" in line]
        assert all(line in after for line in untouched), "comments, strings and dropped branches stay"
        assert mutation.describe(TEXT)["file"] == "add/plain/kernel.cpp"


@pytest.mark.parametrize(
    ("mutator", "after"),
    [
        ("boundary", "for (long i = 0; i <= n; i += LANES) total += x[i] * scale;"),
        ("constant", "if (n > 5 && total != 0) top = std::max(top, total);"),
        ("logic", "if (n > 4 || total != 0) top = std::max(top, total);"),
        ("equality", "if (n > 4 && total == 0) top = std::max(top, total);"),
        ("extreme", "if (n > 4 && total != 0) top = std::min(top, total);"),
        ("negated", "if (!(n > 4 && total != 0)) top = std::max(top, total);"),
        ("factor", "for (long i = 0; i < n; i += LANES) total += x[i];"),
        ("index", "for (long i = 0; i < n; i += LANES) total += x[(i) + 1] * scale;"),
        ("initial", "float total = 1, top = -INFINITY;"),
        ("initial", "float total = 0, top = 0.0f;"),
        ("sign", "else return 1.5f;"),
        ("barrier", "while (top == 3) ;"),
        ("cast", "const float half = to_float(to_bf16(total / float(n)));"),
        ("mask", "unsigned mask = unsigned(n) & 0x7fffu;"),
        ("arguments", "put(total, kept, half);"),
        ("dropped", ";"),
        ("block", ";"),
        ("stride", "for (long i = 0; i < n; i += 2 * (LANES)) total += x[i] * scale;"),
        ("compound", "for (long i = 0; i < n; i += LANES) total = x[i] * scale;"),
    ],
)
def test_a_mutator_makes_the_fault_that_its_name_says(mutator: str, after: str) -> None:
    assert after in changed(mutator)


def test_a_declared_array_and_a_template_argument_are_no_subscript_and_no_comparison() -> None:
    text = '#line 1 "k.cpp"\ntemplate <class W> void f() {\n    float room[4];\n    g<W, 4>(room);\n}\n'
    found = mutations(text)
    assert "boundary" not in found
    assert "index" not in found


def test_statements_are_told_from_declarations_and_headers() -> None:
    code = Code(TEXT, tokens(TEXT))
    texts = {TEXT[code.tokens[a].start : code.tokens[b].end] for a, b in statements(code)}
    assert "put(kept, total, half);" in texts
    assert "total += x[i] * scale;" in texts
    assert not any(text.startswith(("float", "const", "i <", "i +=")) for text in texts)


def test_a_place_is_told_by_the_line_directives() -> None:
    text = '#line 1 "a.h"\none\n#line 7 "b.h"\nseven\neight\n'
    assert place(text, text.index("one")) == ("a.h", 1)
    assert place(text, text.index("eight")) == ("b.h", 8)


@pytest.mark.parametrize(
    ("within", "before"),
    [
        ("x[i] * scale", "if ((__builtin_trap(), true)) total += x[i] * scale;"),
        ("i < n", "__builtin_trap(); for (long i = 0;"),
        ("i += LANES", "i += LANES) if ((__builtin_trap(), true)) total += x[i] * scale;"),
        ("if (n > 4", "if (n > 4 && total != 0) if ((__builtin_trap(), true)) top = "),
        ("kept, total", "__builtin_trap(); put(kept, total, half);"),
        ("1.5f", "if ((__builtin_trap(), true)) return -1.5f;"),
    ],
)
def test_a_trap_stands_before_the_statement_that_is_mutated(within: str, before: str) -> None:
    assert before in trapped(TEXT, TEXT.index(within))
