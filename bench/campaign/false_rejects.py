"""False rejects: kernels as they are shipped, validated again and again with other seeds; none may be rejected.

Every template's default and a drawn point are validated at real shapes, mostly at search depth and partly at acceptance
depth. `count` is the number of validations of each template. A run that is bounded by seconds validates all templates
equally often and is continued by the next run.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.template import Depth, Language
from agentcompile.options import resolve
from agentcompile.tuning.trial_database import evaluation_digest

from ..harness.ledger import Ledger
from .gates import Many
from .report import Campaign, Figures, Report, Say
from .subjects import Subject, chosen, regions, shipped, subjects

DEFAULT = 2000
"""The default number of validations of every template."""
_ROUND = 20
"""The seeds that one template is validated with before the next one's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of one share: the number of validations of every template, and of those at acceptance depth."""

    tried: dict[str, int]
    accepted: int
    """The number of validations at acceptance depth."""
    failures: tuple[str, ...]


def find(campaign: Campaign, say: Say) -> Findings:
    """Validate every template `count` times, as far as the time limit allows, together with the other shares."""
    machine = this_machine(resolve({"threads": campaign.threads or None}).options)
    languages: tuple[Language, ...] = ("cuda", "triton") if machine.target.kind == "cuda" else ("cpp",)
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(f"false rejects {campaign.seed}")
        found = regions(machine.target, Path(folder))
        made = chosen(subjects(found, shipped(), machine.target, languages, rng), campaign.only)
        with Many(machine) as many:
            # All shares need all kernels: each builds some of them first, and finds the others in the store.
            for subject in [s for these in made.values() for s in these][campaign.share :: campaign.shares]:
                many.build(subject)
            say("built its part of the kernels")
            return repeat(made, many, campaign, say)


def repeat(made: Mapping[str, Sequence[Subject]], many: Many, campaign: Campaign, say: Say) -> Findings:
    """Make the share's validations of the subjects in `made`, with a template's points in turn."""
    every = campaign.accept_every
    ledger = Ledger(campaign.partial, (evaluation_digest(), "false-rejects", every))
    by_template: dict[str, list[Subject]] = {}
    for subject in [subject for these in made.values() for subject in these]:
        by_template.setdefault(subject.variant, []).append(subject)
    tried, accepted, failures = dict.fromkeys(by_template, 0), 0, list[str]()
    for subject, seeds in _turns(by_template, campaign):
        key = f"{subject.source.digest} {seeds.start} {seeds.stop}"
        told = ledger.known(key)
        if told is None and campaign.over:
            continue
        if told is None:
            found = ((seed, many.refuses(subject, seed, _depth(seed, every))) for seed in seeds)
            told = {"refused": [f"seed {seed}: {why}" for seed, why in found if why]}
            ledger.keep(key, told)
            say(f"{subject.name}: seeds {seeds.start} to {seeds.stop - 1}: {len(told['refused'])} refused")
        tried[subject.variant] += len(seeds)
        accepted += sum(_depth(seed, every) == "accept" for seed in seeds)
        failures += [f"{subject.name}: {row}" for row in told["refused"]]
    return Findings(tried=tried, accepted=accepted, failures=tuple(failures))


def report(found: Sequence[Findings]) -> Report:
    """Merge the results of all shares into one report."""
    tried, failures = Counter[str](), [failure for one in found for failure in one.failures]
    for one in found:
        tried.update(one.tried)
    figures: Figures = {
        "templates": len(tried),
        "validations": tried.total(),
        "validations at acceptance": sum(one.accepted for one in found),
        "validations of the least tried template": min(tried.values(), default=0),
        "false rejects": len(failures),
        **{f"validations of {id}": count for id, count in sorted(tried.items()) if count},
    }
    return Report(kind="false-rejects", tried=tried.total(), failures=tuple(failures), figures=figures)


def _depth(seed: int, every: int) -> Depth:
    return "accept" if seed % every == every - 1 else "search"


def _turns(by_template: Mapping[str, Sequence[Subject]], campaign: Campaign) -> Iterator[tuple[Subject, range]]:
    """Yield the share's turns: every template in turn, a round of seeds each, with its points one after another.

    Another campaign seed gives other seeds. Where a share's turns end in one round, the next share's begin, so that
    every share gets every template.
    """
    first, count = campaign.seed * campaign.count, campaign.count
    for round, begin in enumerate(range(0, count, _ROUND)):
        for at, these in enumerate(by_template.values()):
            if (round + at) % campaign.shares == campaign.share:
                yield these[round % len(these)], range(first + begin, first + min(begin + _ROUND, count))
