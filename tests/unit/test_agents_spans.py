"""What a plan may mark, and what an edit may touch."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.agents.journal import Refused
from agentcompile.agents.refining import Settings, refine
from agentcompile.agents.spans import BEGINS, ENDS, Spans, spans_of, whole
from tests.unit.refined import CONTRACT, Gate, Memory, Script, draft, plan

KERNEL = "a\nb\nc\nd\ne\n"


def marked(*lines: str) -> Spans | str:
    return spans_of("\n".join(lines), KERNEL)


def spans(*lines: str) -> Spans:
    found = marked(*lines)
    assert isinstance(found, Spans), found
    return found


TWO = ("a", BEGINS, "b", ENDS, "c", f"  {BEGINS}", "d", f"{ENDS} ", "e")


def test_spans_are_the_lines_between_marks() -> None:
    found = spans(*TWO)
    assert found.lines == ("a", "b", "c", "d", "e")
    assert found.spans == ((1, 2), (3, 4))
    assert spans_of(found.marked, KERNEL) == found


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("a", "b", "c", "d", "e"), "no span"),
        (("a", BEGINS, "b", "c", "d", "e"), "line 2: <<<IMPROVE BEGINS>>> without <<<IMPROVE ENDS>>>"),
        (("a", "b", ENDS, "c", "d", "e"), "line 3: <<<IMPROVE ENDS>>> without"),
        ((BEGINS, "a", BEGINS, "b", ENDS, ENDS, "c", "d", "e"), "line 3: .* inside the span that begins on line 1"),
        ((f"// {BEGINS}", "a", ENDS, "b", "c", "d", "e"), "line 1: a mark must be on a line of its own"),
        ((BEGINS, "a", ENDS, "b", "x", "d", "e"), "differs from the kernel on line 3"),
        ((BEGINS, "a", ENDS, "b", "c", "d"), "differs from the kernel on line 5"),
        ((BEGINS, "a", ENDS, "b", "c", "d", "e", "f"), "differs from the kernel on line 6"),
    ],
)
def test_wrong_marks_go_back_with_the_reason(lines: tuple[str, ...], reason: str) -> None:
    found = marked(*lines)
    assert isinstance(found, str)
    assert re.search(reason, found), found


@pytest.mark.parametrize(
    "answer", ["a\nB\nc\nD\ne\n", "a\nc\ne", "a\nb1\nb2\nc\nd1\nd2\ne\n", "a\nc\nc\nc\ne\n", KERNEL]
)
def test_edits_inside_the_spans_pass(answer: str) -> None:
    assert spans(*TWO).refusal(answer) == ""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("A\nb\nc\nd\ne\n", "line 1, outside every span: 'a' was changed"),
        ("a\nb\nc\nd\nE\n", "line 5, outside every span: 'e' was changed"),
        ("a\nb\nC\nd\ne\n", "lines 3 to 3, between two spans: they were changed or are missing"),
        ("", "line 1, outside every span: 'a' was changed"),
        ("a\nb\nc\n", "line 5, outside every span"),
        (f"a\n{BEGINS}\nb\n{ENDS}\nc\nd\ne\n", "line 2: a mark was left"),
        ("top\na\nb\nc\nd\ne\n", "line 1"),
        ("a\nb\nc\nd\ne\nend\n", "line 5"),
    ],
)
def test_an_edit_outside_the_spans_is_refused_with_its_line(answer: str, reason: str) -> None:
    assert reason in spans(*TWO).refusal(answer)


def test_lines_at_both_ends_are_not_counted_twice() -> None:
    found = spans_of(f"a\n{BEGINS}\n{ENDS}\na\n", "a\na\n")
    assert isinstance(found, Spans)
    assert found.refusal("a\na") == ""
    assert found.refusal("a\nnew\na") == ""
    assert "line 2" in found.refusal("a")


def test_a_kernel_that_is_not_written_yet_is_one_span() -> None:
    assert whole("").refusal("anything\nat all") == ""
    assert whole(KERNEL).refusal("") == ""
    assert "mark" in whole(KERNEL).refusal(f"a\n{ENDS}")


LINES = st.lists(st.sampled_from("abc"), max_size=8)


@given(parts=st.lists(LINES, min_size=2, max_size=5), edits=st.data())
def test_an_edit_of_spans_alone_always_passes_and_keeps_every_other_line(
    parts: list[list[str]], edits: st.DataObject
) -> None:
    """Parts at odd places are spans, the others stay."""
    text = [line for part in parts for line in part]
    shown = [line for at, part in enumerate(parts) for line in ([BEGINS, *part, ENDS] if at % 2 else part)]
    found = spans_of("\n".join([*shown, ""]), "\n".join([*text, ""]))
    assert isinstance(found, Spans)
    changed = [edits.draw(LINES) if at % 2 else part for at, part in enumerate(parts)]
    assert found.refusal("\n".join([*(line for part in changed for line in part), ""])) == ""


@given(parts=st.lists(LINES, min_size=3, max_size=7), answer=LINES | LINES.map(lambda lines: lines * 3))
def test_every_part_between_spans_is_found_in_its_order_or_the_edit_is_refused(
    parts: list[list[str]], answer: list[str]
) -> None:
    ends, spans = [*itertools.accumulate(len(part) for part in parts)], list[tuple[int, int]]()
    spans = [(ends[at - 1], ends[at]) for at in range(1, len(parts) - 1, 2)]
    text = [line for part in parts for line in part]
    fixed = [
        "".join(text[a:b]) for a, b in zip([0, *(e for _, e in spans)], [*(b for b, _ in spans), None], strict=True)
    ]
    pattern = ".*?".join(re.escape(part) for part in fixed)
    fits = re.fullmatch(pattern, "".join(answer), re.DOTALL) is not None
    found = Spans(lines=tuple(text), spans=tuple(spans))
    if (0, len(text)) not in spans:
        assert (found.refusal("\n".join([*answer, ""])) == "") == fits


def test_equal_lines_are_searched_at_once() -> None:
    """Of the longest kernels: one differs from the other behind thousands of equal lines."""
    text = [*[""] * 60_000, "x", *[""] * 5]
    found = Spans(lines=tuple(text), spans=((0, 1), (60_001, 60_002)))
    begin = time.process_time()
    assert "between two spans" in found.refusal("\n".join([*[""] * 180_000, "y", *[""] * 5]))
    assert time.process_time() - begin < 5.0


@given(text=LINES, answer=LINES, span=st.tuples(st.integers(0, 8), st.integers(0, 8)))
def test_what_passes_begins_and_ends_like_the_kernel(text: list[str], answer: list[str], span: tuple[int, int]) -> None:
    begin, end = sorted(min(one, len(text)) for one in span)
    found = Spans(lines=tuple(text), spans=((begin, end),))
    before, after = text[:begin], text[end:]
    fits = len(answer) >= len(before) + len(after)
    fits = fits and answer[: len(before)] == before and answer[len(answer) - len(after) :] == after
    assert (found.refusal("\n".join([*answer, ""])) == "") == fits


@given(text=st.text(max_size=200), kernel=st.text(max_size=200))
def test_no_text_raises(text: str, kernel: str) -> None:
    assert spans_of(text, kernel)
    assert isinstance(whole(kernel).refusal(text), str)


@pytest.mark.parametrize("arm", ["stark", "sampling"])
@pytest.mark.parametrize("mark", [BEGINS, ENDS])
def test_a_mark_that_any_role_leaves_is_refused_with_its_line(arm: str, mark: str) -> None:
    left = f"// 700\n// {mark} here\n"
    last = {"plan": plan(""), "debug": draft(left), "code": draft("broken" if arm == "stark" else left)}
    script, gate = Script(lambda prompt, data: last[prompt.role]), Gate()
    found = refine(CONTRACT, gate, script, Memory(), Settings(arm=arm, strategy="epsilon-greedy:roots=1", attempts=3))
    reasons = {entry.reason for entry in found.entries if isinstance(entry, Refused)}
    assert reasons == {f"{'debug' if arm == 'stark' else 'code'}: line 2: a mark was left in the kernel"}
    assert all(mark not in one.kernel for one in gate.evaluated)
    assert "a mark was left" in script.asked[-1].user or arm == "sampling", "sampling remembers nothing"


def test_unbalanced_marks_go_back_to_plan_with_the_reason() -> None:
    first, unbalanced = f"// 700\n{KERNEL}", f"// 700\n{BEGINS}\n{KERNEL}"
    left = [plan(), draft(first), plan(unbalanced), plan(unbalanced)]
    script = Script(lambda prompt, data: left.pop(0))
    found = refine(CONTRACT, Gate(), script, Memory(), Settings(attempts=3, strategy="greedy"))
    reasons = [one.reason for one in found.entries if isinstance(one, Refused)]
    assert len(reasons) == 2
    assert all(one.startswith("plan: kernel_with_marks: line 2") for one in reasons)
    assert script.roles == ["plan", "code", "plan", "plan"]
    asked = [json.loads(prompt.user) for prompt in script.asked]
    assert [(one["node"], one["refused"]) for one in asked[2:]] == [(1, []), (1, reasons[:1])]
