"""The expression language: what it reads, what it refuses, and that it means what Python means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.evaluate import EvaluationError, evaluate, explain
from agentcompile.ir.expr import (
    MAX_VALUE,
    BinaryOp,
    Compare,
    Expr,
    ExprError,
    FunctionCall,
    IfElse,
    Int,
    Logic,
    Name,
    Negate,
    Not,
    canonical,
    free_names,
    parse,
)

NAMES = ("hidden", "rows", "VEC", "ROWS")


def _nested(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    relations = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    compare = several.flatmap(
        lambda operands: st.tuples(*[relations] * (len(operands) - 1)).map(lambda ops: Compare(ops, operands))
    )
    return st.one_of(
        st.builds(Negate, inner),
        st.builds(Not, inner),
        st.builds(BinaryOp, st.sampled_from(["+", "-", "*", "//", "%"]), inner, inner),
        compare,
        st.builds(Logic, st.sampled_from(["and", "or"]), several),
        st.builds(IfElse, inner, inner, inner),
        st.builds(FunctionCall, st.sampled_from(["min", "max"]), several),
        st.builds(lambda f, a, b: FunctionCall(f, (a, b)), st.sampled_from(["ceil_div", "round_up"]), inner, inner),
    )


LEAVES = st.one_of(st.integers(0, 4096).map(Int), st.sampled_from(NAMES).map(Name))
TREES = st.recursive(LEAVES, _nested, max_leaves=12)
VALUES = st.fixed_dictionaries({name: st.integers(-64, 8192) for name in NAMES})
PYTHON = {
    "__builtins__": {},
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
}


def _evaluated(tree: Expr, values: dict[str, int]) -> tuple[int | None, str]:
    """The value, or None and the reason."""
    try:
        return evaluate(tree, values), ""
    except EvaluationError as error:
        return None, str(error)


@given(TREES, VALUES)
def test_an_expression_means_what_python_means_by_its_text(tree: Expr, values: dict[str, int]) -> None:
    try:
        expected = eval(canonical(tree), PYTHON, dict(values))  # our own text, in a test
    except ZeroDivisionError:
        expected = None
    found, refusal = _evaluated(tree, values)
    assert found == expected or "2^63" in refusal


@given(TREES)
def test_canonical_text_reads_back_to_the_same_tree(tree: Expr) -> None:
    text = canonical(tree)
    if len(text) <= 500:
        assert parse(text) == tree
        assert canonical(parse(text)) == text


@given(TREES, VALUES)
def test_a_false_constraint_can_always_be_explained(tree: Expr, values: dict[str, int]) -> None:
    assert explain(tree, values).startswith(canonical(tree))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_column(text: str) -> None:
    try:
        parse(text)
        column = 1
    except ExprError as error:
        column = error.column
    assert 1 <= column <= len(text) + 1


@given(st.text(alphabet="aAb12 ()+-*/%<>=!,andornotifelse", max_size=40))
def test_what_looks_like_the_language_is_read_as_python_reads_it_or_refused(text: str) -> None:
    try:
        tree = parse(text)
    except ExprError:
        return
    values = dict.fromkeys(free_names(tree), 7)
    try:
        expected = eval(text.strip(), PYTHON, dict(values))
    except ZeroDivisionError:
        expected = None
    assert _evaluated(tree, values)[0] == expected


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "unexpected the end"),
        ("a +", 4, "unexpected the end"),
        ("a ** 2", 4, "unexpected '*'"),
        ("a = b", 3, "unexpected '='"),
        ("a / b", 3, "unexpected '/'"),
        ("1.5", 2, "unexpected '.' after a number"),
        ("2x", 2, "unexpected 'x' after a number"),
        ("0x10", 2, "unexpected 'x' after a number"),
        ("007", 1, "a number with a leading 0"),
        ("a.b", 2, "unexpected '.'"),
        ("a[0]", 2, "unexpected '['"),
        ("'a'", 1, 'unexpected "\'"'),
        ("a b", 3, "unexpected 'b'"),
        ("(a", 3, "expected ')', found the end"),
        ("a)", 2, "unexpected ')'"),
        ("a if b", 7, "expected 'else', found the end"),
        ("not", 4, "unexpected the end"),
        ("and a", 1, "unexpected 'and'"),
        ("True", 1, "unexpected 'True'"),
        ("lambda", 1, "unexpected 'lambda'"),
        ("a + elif", 5, "unexpected 'elif'"),
        ("del", 1, "unexpected 'del'"),
        ("__import__(1)", 1, "no function '__import__'"),
        ("pow(2, 3)", 1, "no function 'pow'"),
        ("min", 1, "min without its arguments"),
        ("min(1)", 1, "min takes two arguments, not 1"),
        ("ceil_div(1, 2, 3)", 1, "ceil_div takes two arguments, not 3"),
        ("min()", 5, "unexpected ')'"),
        ("hidden %% 2", 9, "unexpected '%'"),
        ("ü", 1, "unexpected 'ü'"),
        ("a \x00", 3, "unexpected '\\x00'"),
        ("9223372036854775808", 1, "a number above 2^63 - 1"),
        ("9" * 400, 1, "a number above 2^63 - 1"),
        ("1" + " + 1" * 200, 501, "more than 500 characters"),
        ("(" * 40 + "1" + ")" * 40, 33, "nested deeper than 32"),
        ("-" * 40 + "1", 33, "nested deeper than 32"),
        ("not " * 40 + "1", 129, "nested deeper than 32"),
        ("1" + "+1" * 150, 202, "more than 200 terms"),
    ],
)
def test_text_outside_the_language_is_refused_where_it_goes_wrong(text: str, column: int, reason: str) -> None:
    with pytest.raises(ExprError) as caught:
        parse(text)
    assert (caught.value.column, reason in caught.value.reason) == (column, True), caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 // 2 * 2 + 7 % 2", 7),
        ("-7 // 2", -4),
        ("-7 % 4", 1),
        ("ceil_div(7, 4)", 2),
        ("ceil_div(8, 4)", 2),
        ("round_up(7, 4)", 8),
        ("round_up(0, 4)", 0),
        ("min(3, 1, 2) + max(3, 1, 2)", 4),
        ("1 < 2 < 3", True),
        ("1 < 3 < 2", False),
        ("2 - 1 - 1", 0),
        ("1 if 0 else 2 if 0 else 3", 3),
        ("not 0 and 5", 5),
        ("0 or 0", 0),
        ("  4\t* ( 1 + 1 )\n", 8),
    ],
)
def test_precedence_and_rounding_are_those_of_python(text: str, value: int) -> None:
    assert evaluate(parse(text), {}) == value


def test_only_the_chosen_side_of_a_condition_is_evaluated() -> None:
    assert evaluate(parse("1 // n if n else 0"), {"n": 0}) == 0
    assert evaluate(parse("n == 0 or 8 % n == 0"), {"n": 0}) is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8 % n", "division by zero in `8 % n`"),
        ("8 // n", "division by zero in `8 // n`"),
        ("ceil_div(8, n)", "division by zero in `ceil_div(8, n)`"),
        ("missing + 1", "unknown name missing"),
        (f"{MAX_VALUE} + 1", "exceeds 2^63 - 1"),
        ("big * big", "exceeds 2^63 - 1"),
        ("round_up(big, big - 1) * 9", "exceeds 2^63 - 1"),
    ],
)
def test_an_expression_without_a_value_says_why(text: str, reason: str) -> None:
    with pytest.raises(EvaluationError, match=reason.replace("(", r"\(").replace(")", r"\)").replace("^", r"\^")):
        evaluate(parse(text), {"n": 0, "big": 2**62})


@pytest.mark.parametrize(
    ("text", "values", "explained"),
    [
        ("hidden % 32 == 0", {"hidden": 1000}, "hidden % 32 == 0 with hidden=1000 → 1000 % 32 = 8"),
        ("rows >= ROWS", {"rows": 4, "ROWS": 8}, "rows >= ROWS with rows=4, ROWS=8"),
        (
            "rows >= 4 and hidden % (VEC*32) == 0",
            {"rows": 8, "hidden": 1000, "VEC": 2},
            "rows >= 4 and hidden % (VEC * 32) == 0 with rows=8, hidden=1000, VEC=2 → 1000 % (2 * 32) = 40",
        ),
        ("not (rows + 1 > 2)", {"rows": 4}, "not rows + 1 > 2 with rows=4 → 4 + 1 = 5"),
        ("rows % n == 0", {"rows": 4, "n": 0}, "rows % n == 0 with rows=4, n=0 → division by zero in `rows % n`"),
        ("missing > 1", {}, "missing > 1 → unknown name missing"),
        ("0", {}, "0"),
    ],
)
def test_a_refusal_shows_the_figures(text: str, values: dict[str, int], explained: str) -> None:
    assert explain(parse(text), values) == explained


def test_free_names_come_once_in_reading_order() -> None:
    assert free_names(parse("b + a * b if c else min(d, a)")) == ("b", "a", "c", "d")
