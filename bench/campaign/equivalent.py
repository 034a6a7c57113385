"""The table of equivalent mutants: surviving mutations, and why no input can distinguish them from the original.

A row is matched by the template's or shared file, the mutators, the line before and after and, where it depends on
them, the region's extents. "It passed" is no reason: a reason says why the results are the same, or lie within what
the template declares, whatever the inputs are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentcompile.ir.region import Region

from .equivalent_cuda import CUDA
from .equivalent_others import OTHERS
from .equivalent_products import PRODUCTS
from .equivalent_ranges import RANGES
from .excuses import Row
from .loops import Asked

EQUIVALENT: tuple[Row, ...] = (*OTHERS, *PRODUCTS, *RANGES, *CUDA)
"""All rows, in the order in which they are matched; the first match gives the reason."""


def reason(
    mutator: str,
    region: Region,
    file: str,
    before: str,
    after: str,
    *,
    threads: int,
    params: Mapping[str, int] | None = None,
    kernel: str = "",
    unreached: bool = False,
    undefined: bool = False,
) -> str:
    """Return why a mutation of a kernel of `region` on `threads` threads is equivalent; empty when no row matches.

    `params` are the candidate's parameters with ``LANES`` added, and `kernel` is its template's id. Without them a row
    matches only when it holds for all of their values.
    """
    question = Asked(region=region, threads=threads, before=before, after=after, params=params or {}, kernel=kernel)
    for row in EQUIVALENT:
        asked = (
            (not row.mutators or mutator in row.mutators) and unreached >= row.unreached and undefined >= row.undefined
        )
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region.kind)
        said = asked and here and re.search(row.before, before) and re.search(row.after, after)
        if said and row.where(region, threads) and (row.counts is None or row.counts(question)):
            return row.why
    return ""
