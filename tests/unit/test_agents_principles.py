"""The library of principles, what is relevant, and how an idea is refuted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.agents.principles import Principle, PrincipleEvidence, learnt, library, library_text, merged, relevant
from agentcompile.agents.tree import Node
from agentcompile.errors import AgentCompileError
from agentcompile.ir.trial import Cancelled, Disturbed, Measured, Verdict
from tests.unit.refined import CONTRACT, node

GOOD = """\
version = 1
[[principles]]
text = "Read once."
languages = ["cpp"]
dead_end = false
revalidate_if = "never"
evidence = [{ kind = "linear", device = "a", ratio = 1.5 }]
"""


def test_the_library_that_comes_along_is_readable_and_holds_no_source() -> None:
    found = library()
    assert {language for one in found for language in one.languages} == {"cpp", "cuda", "triton"}
    for one in found:
        assert one.evidence
        assert not set("{};") & set(one.text)
        slower = all(measured.ratio < 1 for measured in one.evidence)
        assert one.dead_end == slower, one.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("dead_end = false", "dead_end = 0"), "dead_end: 0 is not true or false"),
        (('["cpp"]', '["rust"]'), "rust"),
        (("text =", "title ="), "title"),
        (("ratio = 1.5", 'ratio = "fast"'), "ratio"),
        (('[{ kind = "linear", device = "a", ratio = 1.5 }]', "[]"), "principles.0.\\.evidence"),
        (('"Read once."', '" "'), "principles.0.\\.text: it is empty"),
        (('"never"', '""'), "principles.0.\\.revalidate_if: it is empty"),
        (("version = 1", "version = 2"), "version: 2 is newer"),
        (("version = 1", "version ="), "not TOML"),
    ],
)
def test_a_wrong_library_is_refused_with_its_key(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    path = tmp_path / "principles.toml"
    path.write_text(GOOD)
    assert len(library(path)) == 1
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change))
    with pytest.raises(AgentCompileError, match=reason):
        library(path)


def principle(kind: str, language: str = "cpp") -> Principle:
    evidence = (PrincipleEvidence(kind=kind, device="d", ratio=1.1),)
    return Principle(text=kind, languages=(language,), dead_end=False, revalidate_if="r", evidence=evidence)  # type: ignore[arg-type]


def test_those_of_the_language_are_relevant_and_those_of_the_kind_come_first() -> None:
    known = [principle("rmsnorm-linear"), principle("rmsnorm", "cuda"), principle("rmsnorm"), principle("linear")]
    found = relevant(known, CONTRACT)
    assert [one.text for one in found] == ["rmsnorm", "rmsnorm-linear"], "that of products alone does not concern it"
    assert relevant(library(), replace(CONTRACT, language="triton"))


def test_a_task_is_told_of_products_where_it_spends_flops_and_of_its_own_kind() -> None:
    known = [principle("linear"), principle("rmsnorm"), principle("decode-step"), principle("task-softmax")]

    def told(kind: str, flops: int) -> list[str]:
        contract = replace(CONTRACT, kind=kind, interface={"region": {"flops": flops}})
        return [one.text for one in relevant(known, contract)]

    assert told("task-softmax", 0) == ["task-softmax"]
    assert told("task-causal-softmax", 0) == []
    assert told("task-int8-matvec", 1000) == ["linear"]


def texts(*nodes: object) -> list[tuple[str, float]]:
    root = node(0, None, 1000.0)
    return [(one.text, one.evidence[0].ratio) for one in learnt((root, *nodes), CONTRACT, "Test CPU")]  # type: ignore[arg-type]


def test_an_idea_whose_attempts_failed_or_were_slower_is_a_dead_end() -> None:
    assert texts(node(1, 0, math.inf, "fails")) == [("fails", 0.0)]
    assert texts(node(1, 0, 1100.0, "slower")) == [("slower", 0.909)]
    assert texts(node(1, 0, 1021.0, "as fast")) == [], "within 2 %, and what the interval adds"
    assert texts(node(1, 0, 900.0, "faster")) == []
    assert texts(node(1, 0, 1100.0, "both"), node(2, 0, 900.0, "both")) == []
    assert texts(node(1, 0, 800.0, "good"), node(2, 1, 900.0, "worse than its parent")) == [
        ("worse than its parent", 0.889)
    ]


def timed(id: int, parent: int, share: float, half_width: float, instruction: str = "", idea: str = "") -> Node:
    """A node with its share of the reference's time, and how well that is known."""
    made = node(id, parent, 1000.0 * share, instruction)
    verdict = made.verdict
    assert isinstance(verdict, Measured)
    verdict = replace(verdict, measurement=replace(verdict.measurement, half_width=half_width))
    log = tuple(replace(step, idea=idea) for step in made.log)
    return replace(made, verdict=verdict, log=log)


def test_what_may_be_noise_refutes_no_idea() -> None:
    assert texts(timed(1, 0, 0.5, 0.002, "good"), timed(2, 1, 0.55, 0.002, "slower")) == [("slower", 0.909)]
    assert texts(timed(1, 0, 0.5, 0.002, "good"), timed(2, 1, 0.55, 0.1, "unsure")) == []
    # By the clock it was slower, at a busy moment; beside PyTorch it is faster than its parent.
    busy = replace(timed(2, 1, 0.4, 0.002, "faster"), ns=7451.0)
    assert texts(timed(1, 0, 0.5, 0.002, "good"), busy) == []


def test_an_idea_that_is_surely_faster_than_its_parent_is_a_rule() -> None:
    tree = (
        node(0, None, 1000.0),
        timed(1, 0, 0.5, 0.002, "line 1: all of it", "A whole kernel."),
        timed(2, 1, 0.4, 0.002, "lines 7-9: unroll", "Keep four sums a row."),
        timed(3, 1, 0.48, 0.1, "lines 7-9: prefetch", "Prefetch a row ahead."),
        timed(4, 1, 0.7, 0.002, "line 3: copy", "Copy the input first."),
    )
    found = [(one.text, one.dead_end, one.evidence[0].ratio) for one in learnt(tree, CONTRACT, "Test CPU")]
    assert found == [("Keep four sums a row.", False, 1.25), ("Copy the input first.", True, 0.714)]


def test_an_attempt_that_was_mended_counts_as_what_it_became() -> None:
    assert texts(node(1, 0, math.inf, "idea"), node(2, 1, math.inf), node(3, 2, 900.0)) == []
    assert texts(node(1, 0, math.inf, "idea"), node(2, 1, 1500.0)) == [("idea", 0.667)]


DISTURBED = Disturbed(stage="measure", detail="killed by SIGKILL")


@pytest.mark.parametrize("verdict", [DISTURBED, Cancelled(stage="measure")])
def test_an_attempt_that_was_disturbed_says_nothing_of_its_idea(verdict: Verdict) -> None:
    disturbed = replace(node(1, 0, math.inf, "idea"), verdict=verdict)
    assert texts(disturbed) == []
    assert texts(disturbed, node(2, 1, math.inf)) == [], "what was made of it is no verdict on its code either"
    assert texts(disturbed, node(2, 1, 1500.0)) == [("idea", 0.667)]
    assert texts(disturbed, node(2, 0, math.inf, "idea")) == [("idea", 0.0)], "another attempt failed"
    assert texts(node(1, 0, math.inf, "idea"), replace(node(2, 1, math.inf), verdict=verdict)) == []


def test_a_dead_end_holds_no_source() -> None:
    assert texts(node(1, 0, math.inf, "Unroll by 4:\n  for (int i = 0; i < n; i += 4) {\n}\nand prefetch."))[0] == (
        "Unroll by 4: and prefetch.", 0.0
    )  # fmt: skip
    assert texts(node(1, 0, math.inf, "x = y;")) == []
    (one,) = learnt((node(0, None, 1000.0), node(1, 0, math.inf, "i" * 4000)), CONTRACT, "Test CPU")
    assert len(one.text) == 400
    assert (one.dead_end, one.languages, one.evidence[0].kind) == (True, ("cpp",), "rmsnorm")
    assert one.revalidate_if


def test_what_a_session_refuted_is_added_to_a_library_once(tmp_path: Path) -> None:
    tree = (node(0, None, 1000.0), node(1, 0, math.inf, "fails"), node(2, 0, 1500.0, "slower"))
    own = [*library(), *learnt(tree[:2], CONTRACT, "a")]
    once = merged(own, learnt(tree, CONTRACT, "a"))
    assert [one.text for one in once] == [one.text for one in own] + ["slower"]
    assert merged(once, learnt(tree, CONTRACT, "a")) == once
    more = merged(once, learnt(tree, replace(CONTRACT, language="cuda"), "b"))
    assert [one.device for one in more[-1].evidence] == ["a", "b"]
    assert more[-1].languages == ("cpp", "cuda")
    path = tmp_path / "principles.toml"
    path.write_text(library_text(more))
    assert library(path) == more
