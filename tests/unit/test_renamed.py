"""Trials of before a template got another name: they count for what it is called now, and no others do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.catalog.aliases import formerly
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.materialize import specialise
from agentcompile.space import Space
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.trial_database import Renamed, TrialDatabase
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG
from tests.unit import fakes

REGION = region("linear", Extents(dtype="fp32"))
SPACE = Space(REGION, [CATALOG.get("linear/packed", "fp32"), CATALOG.get("linear/rows")], fakes.target())
NOW = next(SPACE.of("linear/packed"))
OTHER = next(SPACE.of("linear/rows"))
OLD = formerly(SPACE.templates[0])
POLICY = "p"
RENAMED = Renamed([SPACE])


def source_of(candidate: Candidate) -> str:
    template = next(one for one in (*SPACE.templates, OLD) if one is not None and one.id == candidate.template)
    return specialise(template, REGION, candidate.params, SPACE.target).digest


def then(candidate: Candidate = NOW, **more: int) -> Trial:
    """A trial as it was recorded when the template had its old name."""
    assert OLD is not None
    old = replace(candidate, template=OLD.id, template_digest=OLD.digest)
    return replace(fakes.measured(old, 0.5, **more), source=source_of(old))


def test_a_trial_of_an_old_name_is_one_of_the_candidate_that_it_is_now() -> None:
    trial = then()
    assert trial.candidate.template == "linear/packed-fp32"
    assert RENAMED.then(NOW) == trial.candidate
    assert RENAMED.now(trial) == replace(trial, candidate=NOW, source=source_of(NOW))


FOREIGN = {
    "of today": replace(fakes.measured(NOW, 0.5), source=source_of(NOW)),
    "of a template that kept its name": fakes.measured(OTHER, 0.5),
    "of another manifest": replace(then(), candidate=replace(then().candidate, template_digest="other")),
    "of another text": replace(then(), source="other"),
    "of another region": replace(then(), candidate=replace(then().candidate, region="other")),
    "of parameters that are gone": replace(then(), candidate=replace(then().candidate, params=(("TILES", 3),))),
    "of another machine": replace(then(), candidate=replace(then().candidate, target="other")),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_any_other_trial_stays_as_it_is(what: str) -> None:
    assert RENAMED.now(FOREIGN[what]) == FOREIGN[what]


def test_a_candidate_that_kept_its_name_had_no_other() -> None:
    assert RENAMED.then(OTHER) is None
    assert Renamed().then(NOW) is None


def test_a_search_takes_the_shortest_trial_of_before_that_is_long_enough(tmp_path: Path) -> None:
    source = source_of(NOW)
    with MachineTrials(tmp_path / "h.sqlite") as history:
        for trial in (then(rounds=20), then(rounds=8), replace(then(rounds=9), source="other")):
            history.put(trial, POLICY)
        past = TrialDatabase([], history, POLICY, RENAMED)
        for rounds, found in ((5, 8), (8, 8), (9, 20)):
            known = past.known(NOW, source, "search", rounds)
            assert known is not None
            assert (known[0].candidate, known[0].source, known[0].reused, known[1]) == (NOW, source, True, False)
            assert known[0].rounds == found
        assert past.known(NOW, source, "search", 21) is None
        assert past.known(NOW, source, "confirm", 5) is None
        assert past.known(NOW, "another text", "search", 5) is None
        assert TrialDatabase([], history, POLICY).known(NOW, source, "search", 5) is None
        assert TrialDatabase([], history, "another policy", RENAMED).known(NOW, source, "search", 5) is None
        past.forget(NOW.id)
        assert past.known(NOW, source, "search", 5) is None


def test_an_adviser_is_told_of_trials_of_before_until_they_are_to_be_forgotten(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(then(), POLICY)
        past = TrialDatabase([], history, POLICY, RENAMED)
        assert [one.candidate for one in past.shown_to_adviser([NOW, OTHER], source_of)] == [NOW]
        assert past.shown_to_adviser([OTHER], source_of) == ()
        past.forget(NOW.id)
        assert past.shown_to_adviser([NOW, OTHER], source_of) == ()
