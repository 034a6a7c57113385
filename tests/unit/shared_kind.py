"""A campaign that is nothing but shares: what each was told comes out, and one may die."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from bench.campaign.report import Campaign, Report, Say

DEFAULT = 8
DIES, RAISES = 100, 101
"""Counts of campaigns whose second share ends at once, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one share was told."""

    share: int
    attempts: int
    cpus: tuple[int, ...]
    ledger: str


def find(campaign: Campaign, say: Say) -> Findings:
    say("begins")
    if campaign.share == 1 and campaign.count == DIES:
        os._exit(7)
    if campaign.share == 1 and campaign.count == RAISES:
        raise RuntimeError("broken")
    ledger = campaign.partial.name if campaign.partial else ""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return Findings(share=campaign.share, attempts=campaign.quota, cpus=cpus, ledger=ledger)


def report(found: Sequence[Findings]) -> Report:
    rows = tuple({"share": one.share, "ledger": one.ledger, "cpus": len(one.cpus)} for one in found)
    return Report(kind="shared", tried=sum(one.attempts for one in found), failures=(), figures={}, details=rows)
