"""What Review says of the part that advice had in a choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agentcompile.tui.ink import Ink
from agentcompile.tui.review import detail
from agentcompile.tui.scene import Advice, Scene, View

from agentcompile.events import AdviceTaken, ChoiceMade
from agentcompile.ir.advice import Advice as Answer
from agentcompile.ir.advice import Claim
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Fallback
from agentcompile.runs.progress import fold
from tests.unit import runs
from tests.unit.searched import point, run, tried

HEAD = Advice(adviser="heuristic", note="", head=(point(4, 2, 1024).label, point(1).label))
CLAIMS = (
    Claim(topic="numerical", template="linear/rows", says="accumulates-in", value="fp32", standing="confirmed"),
    Claim(topic="resource", says="spills", standing="refuted"),
    Claim(topic="bounds", says="in-bounds"),
)


def reviewed(chosen: Candidate | None, answer: Answer | None, head: Advice | None) -> str:
    choice = Fallback(reason="slower") if chosen is None else replace(runs.KERNEL, candidate=chosen)
    taken = [AdviceTaken(region=runs.REGION, exchange="e", advice=answer)] if answer is not None else []
    state = fold(run([tried(point(8, 8, 2048)), *taken, ChoiceMade(region=runs.REGION, choice=choice)]))
    scene = Scene(state=state, path="RUN", advice={runs.REGION: head} if head is not None else {})
    found = detail(scene, View(mode="review"), runs.REGION, 100, Ink())
    return "\n".join(line.plain for line in found if line.plain.startswith(("advice", "claims")))


@pytest.mark.parametrize(
    ("chosen", "order", "head", "expected"),
    [
        (point(4, 2, 1024), None, HEAD, "advice    number 1 of the 2 that heuristic named first"),
        (point(8, 8, 2048), None, HEAD, "advice    not among the 2 that heuristic named first"),
        (point(8, 8, 2048), None, replace(HEAD, head=HEAD.head[:1]), "advice    not the one that heuristic named"),
        (point(8, 8, 2048), None, replace(HEAD, adviser="none"), ""),
        (point(8, 8, 2048), None, None, ""),
        (None, None, HEAD, "advice    nothing that heuristic named runs here"),
        (None, (point(1),), HEAD, "advice    nothing that a-model or heuristic named runs here"),
        (
            point(8, 8, 2048), (point(1), point(8, 8, 2048)), HEAD,
            "advice    number 2 of the 2 that a-model named first; not among the 2 that heuristic named first",
        ),
        (point(8, 8, 2048), (), None, "advice    a-model named none"),
    ],
)  # fmt: skip
def test_review_says_what_advice_contributed_to_a_choice(
    chosen: Candidate | None, order: tuple[Candidate, ...] | None, head: Advice | None, expected: str
) -> None:
    answer = None if order is None else Answer(label="a-model", order=tuple(one.id for one in order))
    assert reviewed(chosen, answer, head) == expected


def test_review_says_which_claims_were_confirmed_or_refuted() -> None:
    answer = Answer(label="a-model", order=(point(4, 2, 1024).id,), claims=CLAIMS)
    shown = reviewed(point(4, 2, 1024), answer, None)
    assert shown.splitlines() == [
        "advice    the one that a-model named",
        "claims    ✓ confirmed: linear/rows accumulates-in fp32",
        "claims    ✗ refuted: spills",
    ]


def test_review_names_who_wrote_a_kernel_that_models_wrote() -> None:
    chosen = point(8, 8, 2048)
    choice = ChoiceMade(region=runs.REGION, choice=replace(runs.KERNEL, candidate=chosen))
    scene = Scene(state=fold(run([tried(chosen), choice])), path="RUN", authors={chosen.template_digest: "code one"})
    known, unknown = (
        [line.plain for line in detail(one, View(mode="review"), runs.REGION, 100, Ink())]
        for one in (scene, replace(scene, authors={}))
    )
    assert [line for line in known if line not in unknown] == ["author    code one"]
