"""Runs that were recorded long ago choose the same candidates today: their trials, ranked again, give their choices."""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from agentcompile.catalog import default_root, load
from agentcompile.events import ChoiceMade, Event, PlanAdmitted, TrialFinished, decode
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Fallback, Kernel, Trial
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts
from agentcompile.tuning.ranking import Traits, finalists, rank, signature_of

RUNS = Path(__file__).parents[1] / "tui" / "runs"
NAMES = ("finished", "reviewed", "stopped")
NO_TRAITS = Traits()
"""A recorded run does not keep them: they decide only between kernels that are as fast as one another."""


@cache
def events(name: str) -> tuple[Event, ...]:
    lines = lzma.decompress((RUNS / f"{name}.jsonl.xz").read_bytes()).splitlines()
    return tuple(decode(json.loads(line)["event"]) for line in lines)


def trials(name: str) -> Mapping[str, list[Trial]]:
    found = defaultdict[str, list[Trial]](list)
    for event in events(name):
        if isinstance(event, TrialFinished):
            found[event.trial.candidate.region].append(event.trial)
    return found


@cache
def templates(name: str) -> dict[str, Template]:
    """The templates of a run's trials by the ids that they had then."""
    catalog = load([default_root()], kinds=facts(), layouts=LAYOUTS)
    ids = {trial.candidate.template for own in trials(name).values() for trial in own}
    found = {id: catalog.find(id, "bf16") for id in ids}
    return {id: template for id, template in found.items() if template is not None}


@pytest.mark.parametrize("name", NAMES)
def test_every_region_of_a_recorded_run_chooses_the_same_candidate_again(name: str) -> None:
    chosen = {event.region: event.choice for event in events(name) if isinstance(event, ChoiceMade)}
    assert len(chosen) == 26
    for region, choice in chosen.items():
        best = rank(trials(name)[region], templates(name), traits=lambda _: NO_TRAITS).best
        if isinstance(choice, Kernel):
            assert best == choice
        else:  # the sentence became more exact, its counts and the nearest candidate are the same
            assert isinstance(best, Fallback)
            assert best.reason.partition(" faster: ")[2] == choice.reason.partition(" faster: ")[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_confirmed_candidates_of_a_recorded_run_are_the_first_finalists_of_their_layouts(name: str) -> None:
    confirmed = 0
    for own in trials(name).values():
        kept = {trial.candidate.id for trial in own if trial.fidelity == "confirm"}
        layouts = defaultdict[object, list[str]](list)
        for candidate in finalists(own, templates(name), each=len(own)):
            layouts[signature_of(templates(name)[candidate.template])].append(candidate.id)
        for ids in layouts.values():
            taken = [id in kept for id in ids]
            assert taken == sorted(taken, reverse=True)
            confirmed += sum(taken)
    assert confirmed > 0


@pytest.mark.parametrize("name", ["finished", "reviewed"])
def test_every_kernel_of_an_admitted_plan_is_in_the_ranking_of_its_region(name: str) -> None:
    plans = [event.plan for event in events(name) if isinstance(event, PlanAdmitted)]
    assert plans
    parts = [part for plan in plans for part in plan.parts if isinstance(part.choice, Kernel)]
    measured = [part for part in parts if part.choice.decided_by == "measured"]
    assert measured
    for part in measured:
        ranking = rank(trials(name)[part.region], templates(name), traits=lambda _: NO_TRAITS)
        assert replace(part.choice, approval="") in [kernel for _, kernels in ranking.kernels for kernel in kernels]
