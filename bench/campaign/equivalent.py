"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

A row is keyed by the template's or shared file, mutators and the line before and after, and where it needs some by the
region's extents. "It passed" is no reason: a reason says why the results are the same, or lie within what the template
declares, whatever the inputs are.
"""

from __future__ import annotations

import re

from agentcompile.ir.region import Region

from .equivalent_cuda import CUDA
from .equivalent_others import OTHERS
from .equivalent_products import PRODUCTS
from .excuses import Params, Row

EQUIVALENT: tuple[Row, ...] = (*OTHERS, *PRODUCTS, *CUDA)
"""In the order in which they are asked."""


def reason(
    mutator: str,
    region: Region,
    file: str,
    before: str,
    after: str,
    *,
    threads: int,
    params: Params | None = None,
    unreached: bool = False,
    undefined: bool = False,
) -> str:
    """Why a mutation of a kernel of `region` on so many threads is equivalent; empty when no row says so. `params` are
    those of the candidate."""
    for row in EQUIVALENT:
        asked = (
            (not row.mutators or mutator in row.mutators) and unreached >= row.unreached and undefined >= row.undefined
        )
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region.kind)
        said = asked and here and re.search(row.before, before) and re.search(row.after, after)
        if said and row.where(region, threads) and row.fits(region, threads, params or {}):
            return row.why
    return ""
