"""The session: routing, the exact count of attempts, duplicates, refusals, arms, and what ends it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcompile.advice.client import Unanswered
from agentcompile.agents.arms import ARMS, AgentArm, roles_for
from agentcompile.agents.journal import Pruned, Refused
from agentcompile.agents.prompts import RolePrompt
from agentcompile.agents.refining import LEAST_ROUNDS, Outcome, SessionSteering, Settings, refine
from agentcompile.agents.spans import BEGINS, ENDS
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Evaluated, Written
from agentcompile.ir.trial import Disturbed
from tests.unit.refined import BROKEN, CONTRACT, RAN, Gate, Memory, Script, capable, contract_in, draft, node, plan


def minds() -> Script:
    return Script(lambda prompt, data: capable(data, prompt.role))


def session(script: Script, gate: Gate | None = None, **settings: Any) -> Outcome:
    return refine(CONTRACT, gate or Gate(), script, Memory(), Settings(**settings))


def test_a_failing_node_goes_to_debug_and_a_sound_one_to_plan_and_code() -> None:
    three, one = ARMS["stark"], ARMS["search-only"]
    assert roles_for(node(0, None, 1000.0), three) == ("plan", "code")
    assert roles_for(node(1, 0, 800.0), three) == ("plan", "code")
    assert roles_for(node(1, 0), three) == ("debug",)
    assert {roles_for(found, one) for found in (node(0, None, 1000.0), node(1, 0, 800.0), node(1, 0))} == {("code",)}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("attempts", [1, 7, 30])
def test_exactly_the_budget_of_attempts_is_made(arm: str, attempts: int) -> None:
    gate = Gate()
    found = session(minds(), gate, arm=arm, attempts=attempts)
    assert found.attempts == attempts == len(found.entries) - 1
    assert len(gate.evaluated) + found.refused + found.repeated == attempts
    assert found.stopped == f"{attempts} of {attempts} attempts are made"


def test_every_node_is_logged_with_who_did_what() -> None:
    script = minds()
    found = session(script, attempts=12, seed=3)
    for one in found.nodes[1:]:
        assert one.parent is not None
        roles = [step.role for step in one.log]
        assert roles == (["plan", "code"] if found.nodes[one.parent].sound else ["debug"])
        assert [step.model for step in one.log] == [f"m-{role}" for role in roles]
        assert all(step.exchange and step.usage.calls == 1 for step in one.log)
        assert bool(one.instruction) == (roles[0] == "plan")
    assert script.roles == [step.role for one in found.nodes for step in one.log]
    assert found.usage.calls == len(script.asked)
    assert found.best is not None
    assert found.best.ns == min(one.ns for one in found.nodes)


def scripted(*answers: str) -> Script:
    """Answers in their order; the last one for all that follow."""
    left = list(answers)
    return Script(lambda prompt, data: left.pop(0) if len(left) > 1 else left[0])


def test_the_same_code_is_not_evaluated_twice_but_counted() -> None:
    gate = Gate()
    found = session(scripted(draft("// 700")), gate, arm="sampling", attempts=5)
    assert (len(gate.evaluated), found.repeated, found.attempts) == (1, 4, 5)
    assert [one.repeats for one in found.nodes[1:]] == [None, 1, 1, 1, 1]
    assert {one.ns for one in found.nodes[1:]} == {700.0}
    assert {one.feedback for one in found.nodes[1:]} == {'{"over_floor": 2.5}'}


def test_a_failure_is_taken_over_too_but_not_a_disturbance() -> None:
    assert session(scripted(draft("broken")), arm="sampling", attempts=3).repeated == 2

    class Disturber:
        def __init__(self) -> None:
            self.count = 0

        def evaluate(self, written: Written) -> Evaluated:
            self.count += 1
            return Evaluated(verdict=Disturbed(stage="measure"))

    disturber = Disturber()
    refine(CONTRACT, disturber, scripted(draft("k")), Memory(), Settings(arm="sampling", attempts=3))
    assert disturber.count == 3


def test_a_refused_answer_costs_an_attempt_and_its_reason_is_in_the_next_question() -> None:
    gate = Gate()
    script = scripted("prose", plan(""), "```\n{}\n```\n```\n{}\n```", plan(""), draft("// 700"))
    found = session(script, gate, attempts=3)
    assert [type(entry).__name__ for entry in found.entries] == ["Opened", "Refused", "Refused", "Node"]
    reasons = [entry.reason for entry in found.entries if isinstance(entry, Refused)]
    assert reasons == [
        "plan: 0 fenced blocks where there must be one",
        "code: 2 fenced blocks where there must be one",
    ]
    refused = [json.loads(prompt.user)["refused"] for prompt in script.asked]
    assert refused == [[], reasons[:1], reasons[:1], reasons, reasons]
    assert (len(gate.evaluated), found.refused, found.attempts) == (1, 2, 3)
    assert [step.role for step in found.entries[2].log] == ["plan", "code"]  # type: ignore[union-attr]


def test_refusals_are_forgotten_once_the_node_has_a_child() -> None:
    script = scripted(plan("x"), plan(""), draft("// 1200"), plan(""), draft("// 1300"))
    session(script, attempts=3, strategy="greedy")
    assert [len(json.loads(prompt.user)["refused"]) for prompt in script.asked] == [0, 1, 1, 0, 0]


KERNEL = "// 700\na\nb\n"


def marked(text: str) -> str:
    return text.replace("a\n", f"{BEGINS}\na\n{ENDS}\n")


@pytest.mark.parametrize(
    ("planned", "written", "reason"),
    [
        (KERNEL, "", "plan: kernel_with_marks: no span is marked"),
        (marked(KERNEL).replace(ENDS, ""), "", "plan: kernel_with_marks: line 2"),
        (marked(KERNEL).replace("b", "c"), "", "plan: kernel_with_marks: without its marks"),
        (marked(KERNEL), "// 500\na2\nb\n", "code: line 1, outside every span: '// 700' was changed"),
        (marked(KERNEL), "// 700\na2\nc\n", "code: line 3, outside every span: 'b' was changed"),
        (marked(KERNEL), marked(KERNEL), "code: line 2: a mark was left"),
    ],
)
def test_wrong_marks_and_edits_outside_spans_are_refused(planned: str, written: str, reason: str) -> None:
    answers = [plan(""), draft(KERNEL), plan(planned), *([draft(written)] if written else [])]
    gate = Gate()
    found = session(scripted(*answers), gate, attempts=2, strategy="greedy")
    (refused,) = [entry for entry in found.entries if isinstance(entry, Refused)]
    assert refused.reason.startswith(reason)
    assert refused.node == 1
    assert len(gate.evaluated) == 1


def test_an_edit_inside_a_span_is_evaluated() -> None:
    gate = Gate()
    answers = (plan(""), draft(KERNEL), plan(marked(KERNEL)), draft(KERNEL.replace("a\n", "a1\na2\n")))
    found = session(scripted(*answers), gate, attempts=2, strategy="greedy")
    assert [one.kernel for one in gate.evaluated] == [KERNEL, "// 700\na1\na2\nb\n"]
    assert found.nodes[2].parent == 1


def test_a_plan_for_the_root_must_leave_the_kernel_empty() -> None:
    found = session(scripted(plan(f"{BEGINS}\n{ENDS}")), attempts=1)
    assert isinstance(found.entries[1], Refused)
    assert "node 0 has no kernel" in found.entries[1].reason


def test_a_kernel_at_the_floor_ends_the_session() -> None:
    found = session(scripted(draft("// 300"), draft("// 105"), draft("// 1")), arm="sampling")
    assert found.attempts == 2
    assert found.stopped == "node 2 is within 5% of its roofline"
    assert found.best is not None
    assert found.best.ns == 105.0


def test_a_kernel_below_the_floor_shows_that_it_is_none_and_the_session_goes_on() -> None:
    found = session(scripted(draft("// 80"), draft("// 70"), draft("// 97")), arm="sampling", attempts=3)
    assert (found.attempts, found.stopped) == (3, "3 of 3 attempts are made")


def test_four_rounds_of_feedback_before_it_gives_up() -> None:
    """A mind that fails to compile, is wrong, is slow, and then is good is heard to the end."""
    answers = (draft("broken"), draft("wrong"), draft("// 2000"), draft("// 500"), draft("again"))
    script = scripted(*answers)
    found = session(script, arm="reflexion", patience=1)
    assert found.best is not None
    assert (found.best.id, found.best.ns) == (4, 500.0)
    assert found.stopped == f"no faster kernel in {LEAST_ROUNDS} attempts"
    assert found.attempts == 4 + LEAST_ROUNDS
    feedback = [json.loads(prompt.user)["nodes"][-1].get("feedback") for prompt in script.asked]
    assert feedback[1] == {"log": "no such thing as broken"}
    assert feedback[4] == {"over_floor": 2.5}


def test_a_session_without_any_sound_kernel_returns_none() -> None:
    found = session(Script(lambda prompt, data: draft(f"broken {data['attempt']}")), arm="search-only", attempts=6)
    assert found.best is None
    assert all(one.ns == math.inf for one in found.nodes[1:])


def test_a_time_without_a_measurement_is_no_time() -> None:
    class Liar:
        def evaluate(self, written: Written) -> Evaluated:
            return Evaluated(verdict=BROKEN, ns=1.0)

    found = refine(CONTRACT, Liar(), scripted(draft("k")), Memory(), Settings(arm="sampling", attempts=1))
    assert found.best is None

    class Instant:
        def evaluate(self, written: Written) -> Evaluated:
            return Evaluated(verdict=RAN, ns=0.0, feedback={"share": math.inf})

    found = refine(CONTRACT, Instant(), scripted(draft("k")), Memory(), Settings(arm="sampling", attempts=1))
    assert found.best is None
    assert found.nodes[1].feedback == '{"share": "Infinity"}'


def test_silence_is_no_attempt_and_ends_the_session_in_the_end() -> None:
    down = Unanswered(reason="down")
    script = Script(lambda prompt, data: down)
    found = session(script)
    assert (found.attempts, found.stopped, len(script.asked)) == (0, "down", 4)
    answers: list[str | Unanswered] = [down, down, draft("// 700"), down, down, down, draft("// 600")]
    found = session(Script(lambda prompt, data: answers.pop(0)), arm="sampling", attempts=2)
    assert found.attempts == 2
    final = Script(lambda prompt, data: Unanswered(reason="a ceiling is reached", final=True))
    assert session(final).stopped == "a ceiling is reached"
    assert len(final.asked) == 1


def test_no_attempt_begins_after_the_seconds_are_over() -> None:
    times = iter(range(100))
    found = refine(
        CONTRACT, Gate(), minds(), Memory(), Settings(seconds=5.0), clock=lambda: float(next(times))
    )  # fmt: skip
    assert found.stopped == "5 s are over"
    assert found.attempts == 4
    clock = iter(range(100))
    going_on = Settings(seconds=5.0)
    found = refine(
        CONTRACT, Gate(), minds(), Memory(found.entries), going_on, clock=lambda: float(next(clock)), spent_s=3.0
    )
    assert (found.stopped, found.attempts) == ("5 s are over", 5)


def test_a_person_stops_and_prunes_between_attempts() -> None:
    asks = [
        SessionSteering(),
        SessionSteering(),
        SessionSteering(prune=(1, 1, 0, 99)),
        *[SessionSteering()] * 5,
        SessionSteering(stop="stopped by a person"),
    ]
    record = Memory()
    found = refine(CONTRACT, Gate(), minds(), record, Settings(), steer=lambda: asks.pop(0))
    assert found.stopped == "stopped by a person"
    assert found.attempts == 8
    assert [entry for entry in found.entries if isinstance(entry, Pruned)] == [Pruned(node=1)]
    assert [one.id for one in found.nodes if one.pruned] == [1]
    assert all(one.parent != 1 for one in found.nodes[3:])
    again = refine(CONTRACT, Gate(), minds(), record, Settings(attempts=8))
    assert again.nodes == found.nodes


def windows(script: Script) -> list[set[int]]:
    return [{one["id"] for one in json.loads(prompt.user)["nodes"]} for prompt in script.asked]


def test_sampling_knows_nothing_of_other_attempts() -> None:
    script = minds()
    found = session(script, arm="sampling", attempts=6)
    assert windows(script) == [{0}] * 6
    assert {one.parent for one in found.nodes[1:]} == {0}
    assert set(script.roles) == {"code"}
    assert all(not json.loads(prompt.user)["refused"] for prompt in script.asked)
    assert len({prompt.digest for prompt in script.asked}) == 6, "each can be recorded"


def test_reflexion_is_one_chain_with_feedback() -> None:
    script = minds()
    found = session(script, arm="reflexion", attempts=5)
    assert [one.parent for one in found.nodes[1:]] == [0, 1, 2, 3, 4]
    assert windows(script) == [{0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}]
    assert set(script.roles) == {"code"}


def test_agents_without_search_are_a_chain_of_all_roles() -> None:
    script = minds()
    found = session(script, arm="agents-only", attempts=9)
    assert [one.parent for one in found.nodes[1:]] == list(range(9))
    assert set(script.roles) == {"plan", "code", "debug"}


def test_search_alone_has_one_agent_and_a_tree() -> None:
    script = minds()
    found = session(script, arm="search-only", attempts=20)
    assert set(script.roles) == {"code"}
    assert len({one.parent for one in found.nodes}) > 3


def test_a_refuted_idea_is_a_dead_end_in_the_next_question() -> None:
    script = scripted(
        plan("", instruction="try magic"), draft("// 2000"), plan("", instruction="better"), draft("// 1")
    )
    session(script, attempts=2, strategy="greedy", device="Test CPU")
    told = [json.loads(prompt.user)["principles"] for prompt in script.asked]
    assert told[:2] == [[], []]
    assert told[2] == told[3]
    assert told[2][0] == {
        "text": "try magic",
        "dead_end": True,
        "evidence": [["rmsnorm", "Test CPU", 0.5]],
        "revalidate_if": "the region's shapes, the machine or the kernel that it changes are others",
    }


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(AgentCompileError, match="'stork' is no arm"):
        session(minds(), arm="stork")
    with pytest.raises(AgentCompileError, match="'gredy' is no strategy"):
        session(minds(), strategy="gredy")
    record = Memory()
    with pytest.raises(AgentCompileError):
        refine(CONTRACT, Gate(), minds(), record, Settings(strategy="gredy"))
    assert record.entries == ()


@pytest.mark.parametrize("change", [{"seed": 1}, {"arm": "reflexion"}, {"strategy": "mcts"}])
def test_a_session_goes_on_with_what_it_was_begun_with(change: dict[str, Any]) -> None:
    record = Memory()
    refine(CONTRACT, Gate(), minds(), record, Settings(attempts=2))
    with pytest.raises(AgentCompileError, match="the session was begun with"):
        refine(CONTRACT, Gate(), minds(), record, Settings(attempts=3, **change))
    with pytest.raises(AgentCompileError, match="begun with contract"):
        refine(replace(CONTRACT, kind="linear"), Gate(), minds(), record, Settings(attempts=3))


def test_times_that_were_measured_anew_do_not_change_the_questions() -> None:
    once, twice = Memory(), Memory()
    first, second = minds(), minds()
    refine(CONTRACT, Gate(), first, once, Settings(attempts=6))
    refine(CONTRACT, Gate(), second, twice, Settings(attempts=3))
    other = replace(CONTRACT, floor_ns=101.0, reference_ns=990.0, incumbent_ns=950.0)
    refine(other, Gate(), second, twice, Settings(attempts=6))
    assert twice.entries == once.entries
    assert [one.digest for one in second.asked] == [one.digest for one in first.asked]


def test_a_prompt_is_asked_for_every_attempt_anew() -> None:
    seen: list[RolePrompt] = []
    script = minds()
    session(script, attempts=10)
    seen += script.asked
    assert len({one.digest for one in seen}) == len(seen)
    assert len({one.place for one in seen}) == len(seen)


def test_the_arms_are_the_paper_s() -> None:
    assert list(ARMS) == ["stark", "sampling", "reflexion", "search-only", "agents-only"]
    assert all(isinstance(arm, AgentArm) and arm.temperatures for arm in ARMS.values())


ANSWERS = st.sampled_from(
    [
        "", "prose", "{}", "[]", "null", '{"kernel": "k"}', "{" * 3000, "```\n{}\n```", "\ud800", "\0",
        plan(""), plan("k"), plan(f"{BEGINS}\n{ENDS}"), plan(marked(KERNEL)),
        draft(KERNEL), draft("// 300\na\nb"), draft("broken"), draft("// 0"), draft("\ud800"), draft("// 500", x=1),
    ]
)  # fmt: skip


HOSTILE = [
    "",
    "\ud800",
    '{"n":1e999}',
    "{" * 3000,
    "[]",
    "null",
    draft("\ud800"),
    draft("// 500", x=1),
    plan(f"{BEGINS}\n{ENDS}"),
]


@example(answers=HOSTILE, arm="stark")
@example(answers=[plan(""), *HOSTILE], arm="stark")
@example(answers=HOSTILE, arm="reflexion")
@example(answers=[plan(""), draft(KERNEL), plan(marked(KERNEL)), draft("// 300\na\nb"), "\ud800"], arm="stark")
@given(answers=st.lists(st.text(max_size=40) | ANSWERS, min_size=1, max_size=8), arm=st.sampled_from(list(ARMS)))
def test_whatever_is_answered_every_attempt_is_counted_and_nothing_raises(answers: list[str], arm: str) -> None:
    count = iter(range(1000))
    gate = Gate()
    found = session(Script(lambda prompt, data: answers[next(count) % len(answers)]), gate, arm=arm, attempts=9)
    assert found.attempts == 9 == len(gate.evaluated) + found.refused + found.repeated
    assert len({one.digest for one in gate.evaluated}) == len(gate.evaluated)


def test_a_session_that_goes_on_asks_with_what_was_measured_at_first() -> None:
    script, record = Script(lambda prompt, data: capable(data, prompt.role)), Memory()
    for attempts, rate in ((1, 20.0), (2, 7.0)):
        contract = replace(CONTRACT, measured={"dram_gb_per_s": rate})
        refine(contract, Gate(), script, record, Settings(arm="sampling", attempts=attempts))
    told = [contract_in(prompt.system)["measured"] for prompt in script.asked]
    assert told == [{"dram_gb_per_s": 20.0}] * 2
