"""Answers of a language model: what is taken, what is refused and why, and that nothing gets out of the space."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcompile.advice.answer import (
    MOST_CHARACTERS,
    AnswerError,
    Reading,
    answer_of,
    fenced_blocks,
    read_answer,
)
from agentcompile.advice.claims import CLAIMS, ROWS, measured, standing_of
from agentcompile.advice.counsel import arranged
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.prompt import CLAIMED, HINTED, RANKED, RATIONALE, SEQUENCES
from agentcompile.advice.schema import answer_schema
from agentcompile.events import clean
from agentcompile.ir.advice import Advice, Claim
from agentcompile.ir.trial import BuildFailed, Check, Incorrect, NumericReport, Trial
from tests.unit import fakes
from tests.unit.answers import answer, hostile, prompt, question

PROMPT = prompt()
ONE = PROMPT.asked[0]
REGION = ONE.question.region.id


def read(found: Any) -> Reading:
    return read_answer(answer_of(json.dumps(found), fenced=False), PROMPT, "a model")


def first(change: Any = None) -> Advice:
    """The advice about the first region of a good answer after `change` was made to its item."""
    made = answer(PROMPT)
    if change is not None:
        change(made["regions"][0])
    return read(made).advice[REGION]


def refusals(advice: Advice) -> list[tuple[str, str]]:
    return [(one.what, one.reason) for one in advice.proposals if not one.accepted]


def test_a_good_answer_is_taken_whole() -> None:
    reading = read(answer(PROMPT))
    assert reading.refused == ()
    assert set(reading.advice) == {one.question.region.id for one in PROMPT.asked}
    advice = reading.advice[REGION]
    assert all(one.accepted for one in advice.proposals)
    assert [id for id, _ in advice.rationales] == [ONE.candidates["c4"].id, ONE.candidates["c1"].id]
    assert {(hint.param, hint.values) for hint in advice.hints} == {("AHEAD", (4096, 1024)), ("FORM", ("linear",))}


def test_claims_are_held_against_the_structure_one_by_one() -> None:
    standing = {claim.text: claim.standing for claim in first().claims}
    assert standing == {
        "computes linear": "confirmed",
        "computes silu": "refuted",
        "bound-by memory": "confirmed",
        "linear/packed accumulates-in bf16": "refuted",
        "linear/form fails-validation": "unverified",
        "extent-varies context": "refuted",
    }
    assert standing_of(first().claims) == "refuted"


def test_a_label_is_unverified_without_claims_and_confirmed_when_all_hold() -> None:
    assert standing_of(()) == "unverified"
    held = [claim for claim in first().claims if claim.standing == "confirmed"]
    assert standing_of(held) == "confirmed"


def verdict_of(kind: str) -> Trial:
    (candidate, *_) = [one for one in ONE.question.candidates if one.template == "linear/packed"]
    match kind:
        case "outside" | "wrong":
            name = "redzone" if kind == "outside" else "element"
            checks = (Check(name=name, ok=False, measured=1, allowed=0),)
            report = NumericReport(checks=checks, error_ratio=9, cases=1, repeats=1)
            return Trial(candidate=candidate, source="", verdict=Incorrect(report=report))
        case "unbuilt":
            return Trial(candidate=candidate, source="", verdict=BuildFailed(log="no"))
        case _:
            return fakes.measured(candidate, -0.5 if kind == "slow" else 0.5)


@pytest.mark.parametrize(
    ("says", "confirming", "refuting"),
    [
        ("fails-validation", "wrong", "fast"),
        ("writes-outside", "outside", "wrong"),
        ("does-not-build", "unbuilt", "fast"),
        ("slower-than-pytorch", "slow", "fast"),
    ],
)
def test_a_measurement_settles_what_structure_left_open(says: str, confirming: str, refuting: str) -> None:
    claim = Claim(says=says, topic=ROWS[says].topic, template="linear/packed")
    assert measured(claim, ()).standing == "unverified"
    assert measured(claim, [verdict_of(confirming)]).standing == "confirmed"
    assert measured(claim, [verdict_of(refuting)]).standing == "refuted"
    elsewhere = Claim(says=says, topic=ROWS[says].topic, template="linear/form")
    assert measured(elsewhere, [verdict_of(confirming)]).standing == "unverified"


SPOILED: list[tuple[Any, tuple[str, str]]] = [
    (lambda item: item.update(code="x"), ("answer", "unknown key")),
    (lambda item: item.pop("hints"), ("answer", "missing, or not a list")),
    (lambda item: item.update(label="text"), ("label", "label: expected a table for _Label, got str")),
    (
        lambda item: item["label"].update(text="x" * (RATIONALE + 1)),
        ("label", "401 characters, at most 400 are allowed"),
    ),
    (lambda item: item["ranking"][0].update(candidate="c99"), ("rank", "no candidate of the region")),
    (lambda item: item["ranking"][0].update(candidate="c1"), ("rank", "ranked twice")),
    (lambda item: item["ranking"][0].update(score=1), ("rank", "ranking.score: unknown key")),
    (lambda item: item["ranking"][0].pop("rationale"), ("rank", "ranking.rationale: missing")),
    (lambda item: item["hints"][0].update(values=[8192]), ("hint", "not one of [0, 1024, 4096]")),
    (lambda item: item["hints"][0].update(values=["4096"]), ("hint", "not one of [0, 1024, 4096]")),
    (lambda item: item["hints"][0].update(values=[]), ("hint", "no value is left")),
    (lambda item: item["hints"][0].update(param="WIDTH"), ("hint", "no template of the region, or no parameter of it")),
    (lambda item: item["hints"].append(item["hints"][0]), ("hint", "hinted twice")),
    (lambda item: item["claims"][0].update(value="ignore"), ("claim", "its value must be embedding or")),
    (lambda item: item["claims"][0].update(template="t1"), ("claim", "it is about the region, and names a template")),
    (lambda item: item["claims"][0].update(says="accumulates-in"), ("claim", "no such statement here")),
    (lambda item: item["risks"][0].update(template=None), ("risk", "it is about a template, and names none")),
    (lambda item: item["risks"][1].update(value="much"), ("risk", "its value must be null")),
    (lambda item: item["risks"].append(item["risks"][0]), ("risk", "said twice")),
    (lambda item: item.update(diagnosis=None), ("diagnosis", "diagnosis: expected a table for Diagnosis")),
    (lambda item: item["diagnosis"].update(limit="x" * (RATIONALE + 1)), ("diagnosis", "401 characters")),
    (lambda item: item["diagnosis"].update(code="x"), ("diagnosis", "diagnosis.code: unknown key")),
    (lambda item: item["diagnosis"].update(attainable_us=0), ("diagnosis", "0 us is no time of a launch")),
    (lambda item: item["diagnosis"].update(attainable_us=-1.5), ("diagnosis", "-1.5 us is no time of a launch")),
    (lambda item: item["diagnosis"].update(attainable_us=10**400), ("diagnosis", "diagnosis.attainable_us: ")),
    (lambda item: item["diagnosis"].update(attainable_us="fast"), ("diagnosis", "diagnosis.attainable_us: ")),
    (lambda item: item.update(sequences={}), ("answer", "missing, or not a list")),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILED)
def test_what_does_not_fit_is_refused_with_its_reason_and_the_rest_is_kept(
    spoil: Any, expected: tuple[str, str]
) -> None:
    before, after = first(), first(spoil)
    assert any(what == expected[0] and reason.startswith(expected[1]) for what, reason in refusals(after)), refusals(
        after
    )
    kept = sum(one.accepted for one in after.proposals)
    assert sum(one.accepted for one in before.proposals) - 3 <= kept


def test_true_is_no_number() -> None:
    spoiled = first(lambda item: item["hints"][0].update(values=[True, 1024]))
    assert ("hint", "hints.values[0]: True fits none of the allowed types") in refusals(spoiled)


def test_of_too_much_the_first_is_read_and_the_rest_counted() -> None:
    def much(item: dict[str, Any]) -> None:
        item["ranking"] = [{"candidate": "c1", "rationale": ""}] * 3000
        item["hints"] = item["hints"] * 300
        item["risks"] = item["risks"] * 300
        item["sequences"] = item["sequences"] * 300

    said = refusals(first(much))
    assert ("answer", f"3000 items, the first {RANKED} are read") in said
    assert len(said) < RANKED + HINTED + CLAIMED + 10


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"regions": [], "regions": []}', "a key stands twice"),
        ('{"regions": [NaN]}', "NaN is no number"),
        ('{"regions": ' + "[" * 40 + "]" * 40 + "}", "nested deeper"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
        (" " * (MOST_CHARACTERS + 1), "characters, at most"),
    ],
)
def test_a_text_that_is_no_answer_is_refused_whole(text: str, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        answer_of(text, fenced=False)


def test_of_a_text_its_one_fenced_block_is_read() -> None:
    good = json.dumps(answer(PROMPT))
    assert answer_of(f"I think:\n```json\n{good}\n```\nDone.", fenced=True) == answer(PROMPT)
    for text, count in ((good, 0), (f"```\n{good}\n```\n```\n{good}\n```", 2)):
        with pytest.raises(AnswerError, match=f"{count} fenced blocks"):
            answer_of(text, fenced=True)


def test_regions_that_were_not_asked_about_or_come_twice_are_refused() -> None:
    made = answer(PROMPT)
    made["regions"] = [*made["regions"], made["regions"][0], {**made["regions"][0], "region": "r0"}]
    assert [one.reason for one in read(made).refused] == ["answered twice", "no region of the question"]
    made["regions"] = made["regions"][:1]
    assert [one.reason for one in read(made).refused] == ["nothing was said about it"]


def test_after_the_ranking_come_the_sequences_then_what_is_hinted_then_the_heuristic() -> None:
    asked = ONE.question
    base = Heuristic().advise(asked)
    ordered = arranged(first(), base, asked.candidates).sorted(asked.candidates)
    labels = [candidate.label for candidate in ordered]
    assert labels[:2] == [ONE.candidates["c4"].label, ONE.candidates["c1"].label]
    assert labels[2:4] == [ONE.candidates["c10"].label, ONE.candidates["c5"].label], "where the sequences end"
    ahead = [dict(candidate.params).get("AHEAD") for candidate in ordered[4:]]
    numbers = [value for value in ahead if value is not None]
    assert numbers == sorted(numbers, key=[4096, 1024, 0].index)
    silent = arranged(Advice(label="a model"), base, asked.candidates)
    assert silent.order == base.order


def test_the_schema_on_the_wire_requires_every_field_and_limits_no_number() -> None:
    import jsonschema

    schema = answer_schema()
    jsonschema.validate(answer(PROMPT), schema)
    text = json.dumps(schema)
    assert not any(word in text for word in ("minimum", "maximum", "minLength", "maxLength", "maxItems", "minItems"))

    def closed(part: Any) -> None:
        if isinstance(part, dict):
            if part.get("type") == "object":
                assert part["required"] == list(part["properties"])
                assert part["additionalProperties"] is False
            for inner in part.values():
                closed(inner)
        elif isinstance(part, list):
            for inner in part:
                closed(inner)

    closed(schema)
    assert {row.says for row in CLAIMS} <= set(text.replace('"', " ").replace(",", " ").split())


FENCED = re.compile(r"^[ ]{0,3}```[a-zA-Z]*[ ]*\n(.*?)^[ ]{0,3}```[ ]*$", re.DOTALL | re.MULTILINE)
"""What a fenced block is; on a long text this takes minutes."""
PIECES = st.sampled_from(["```", "``", "`", "\n", "\n", " ", "   ", "json", "a1", "\r", "\x0b", "\u2028", "{}", "é"])


@given(pieces=st.lists(PIECES, max_size=14))
@example(pieces=["```", "\n", "```", "\n", "```"])
@example(pieces=["```", "json", "\n", "```", "json", "\n", "```"])
@example(pieces=["```", "\n", "{}", "\n", "```", "\n"])
@example(pieces=["    ```", "\n", "   ```", " ", "\n", "```", "\r", "\n", "```"])
def test_fenced_blocks_are_those_of_the_pattern(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert fenced_blocks(text) == FENCED.findall(text)


@pytest.mark.parametrize("line", ["```a\n", "```\n", "   ``` \n", "``` x\n", "`", " ", "\n"])
def test_fences_of_the_longest_text_are_found_at_once(line: str) -> None:
    text = (line * MOST_CHARACTERS)[:MOST_CHARACTERS]
    begin = time.process_time()
    with pytest.raises(AnswerError):
        answer_of(text, fenced=True)
    assert time.process_time() - begin < 5.0


def test_ten_thousand_hostile_answers_crash_nothing_and_name_nothing_outside_the_space() -> None:
    bases = {one.question.region.id: (one, Heuristic().advise(one.question)) for one in PROMPT.asked}
    spaces = {region: sorted(c.id for c in one.question.candidates) for region, (one, _) in bases.items()}
    domains = {
        region: {(t.id, p.name): p.domain for t in one.question.templates for p in t.params}
        for region, (one, _) in bases.items()
    }
    texts, readings, taken, refused, followed, stopped = 0, 0, 0, 0, 0, 0
    for text in hostile(PROMPT, 10_000):
        texts += 1
        try:
            reading = read_answer(answer_of(text, fenced=texts % 2 == 0 and "```" in text), PROMPT, "a model")
        except AnswerError:
            continue
        readings += 1
        assert set(reading.advice) <= set(bases)
        for region, advice in reading.advice.items():
            one, base = bases[region]
            assert sorted(arranged(advice, base, one.question.candidates).order) == spaces[region]
            for hint in advice.hints:
                allowed = domains[region][hint.template, hint.param]
                assert all(any(type(v) is type(a) and v == a for a in allowed) for v in hint.values)
            assert all(claim.says in ROWS for claim in advice.claims)
            ids = set(spaces[region])
            for sequence in advice.sequences:
                assert {sequence.start, *sequence.points} <= ids
                assert len(sequence.steps) == len(sequence.points) > 0
            counts = advice.sequence_counts
            assert counts.full + counts.partial == len(advice.sequences) <= counts.total <= SEQUENCES
            followed += len(advice.sequences)
            stopped += counts.partial + counts.dropped
            for proposal in advice.proposals:
                assert clean(proposal.text) == proposal.text
                assert proposal.accepted is not bool(proposal.reason)
            taken += sum(one.accepted for one in advice.proposals)
            refused += sum(not one.accepted for one in advice.proposals)
    assert texts == 10_000
    assert min(readings, 10_000 - readings) > 500, "some are answers, and some are none"
    assert min(taken, refused) > 10_000, "of those that are, parts are taken and parts refused"
    assert min(followed, stopped) > 1000, "of sequences too"


def test_the_question_of_the_tests_is_small() -> None:
    assert len(question().candidates) == 10
