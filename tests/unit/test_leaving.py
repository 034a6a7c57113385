"""What leaving native code costs is part of what a cover weighs: by made-up times, none of which is measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from agentcompile.ir.advice import Advice
from agentcompile.ir.graph import Phase
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Fallback, Kernel, Part
from agentcompile.planning.alternatives import RankedAlternatives
from agentcompile.planning.plans import Planned, leaves, plan
from agentcompile.tuning.ranking import LEAVING_NS, Ranking
from agentcompile.tuning.tasks import TuneTask
from tests.unit.fakes import rows_template
from tests.unit.test_admission import cover_of, cut_of, kernel

CEILING = Ceiling(dram_bytes_per_s=1e10, cache_bytes_per_s=1e11, flops_per_s=1e11)
CUT = cut_of((1, 32))
PARTS = cover_of(CUT)
LAST = next(part.region for part in reversed(PARTS))
"""The region of the step's end, which one site has."""
PYTORCH = Fallback(reason="no kernel is faster")
KERNEL_NS = 10_000.0


@dataclass(frozen=True, slots=True)
class Space:
    templates: tuple[Template, ...] = (rows_template(id="linear/rows", layouts=()),)


def planned(
    pytorch_ns: Mapping[str, float],
    kernel_ns: Mapping[str, float],
    leaving_ns: Mapping[Phase, float] | None = LEAVING_NS,
    won: Collection[str] = (),
) -> Planned:
    """The cover where PyTorch takes so long at a site of a region, and the region's kernel so long; kernels of regions
    that `won` did so beside PyTorch, whatever these times say."""
    tasks, rankings = list[TuneTask](), dict[str, Ranking]()
    for part in PARTS:
        region = CUT.regions[part.region]
        own = ((), (kernel(region, 1),))
        faster = kernel_ns[region.id] < pytorch_ns[region.id] or region.id in won
        rankings[region.id] = Ranking(kernels=(own,) if faster else (), fallback=PYTORCH, near=() if faster else (own,))
        tasks.append(
            TuneTask(
                region=region,
                space=cast(Any, Space()),
                advice=Advice(label="none"),
                residency="dram",
                floor_ns=1.0,
            )
        )
    chosen = set(rankings)
    return plan(
        [CUT],
        CUT,
        tasks,
        rankings,
        {},
        lambda region: pytorch_ns[region.id] if region.id in chosen else 1e9,
        CEILING,
        "cuda",
        kernel_ns=lambda region, _: kernel_ns[region.id],
        leaving_ns=leaving_ns,
    )


def of(found: Planned, region: str) -> Part:
    return next(part for part in found.decode[0] if part.region == region)


@pytest.fixture
def times() -> tuple[dict[str, float], dict[str, float]]:
    """PyTorch's and the kernels' times: kernels win by far, but that of the last region, by a little."""
    own = [part.region for part in PARTS]
    return dict.fromkeys(own, 5 * KERNEL_NS) | {LAST: KERNEL_NS - 300}, dict.fromkeys(own, KERNEL_NS)


def test_one_region_that_pytorch_just_wins_alone_does_not_take_the_step_out_of_native_code(
    times: tuple[dict[str, float], dict[str, float]],
) -> None:
    assert isinstance(of(planned(*times, leaving_ns=None), LAST).choice, Fallback)
    found = planned(*times)
    assert all(isinstance(part.choice, Kernel) for part in found.decode[0])
    assert found.decode_ns == KERNEL_NS * sum(len(part.sites) for part in found.decode[0])


def test_a_kernel_that_loses_more_than_leaving_costs_is_not_taken(
    times: tuple[dict[str, float], dict[str, float]],
) -> None:
    pytorch, kernels = times
    kernels[LAST] = pytorch[LAST] + LEAVING_NS["decode"] + 1000
    assert isinstance(of(planned(pytorch, kernels), LAST).choice, Fallback)


@pytest.mark.parametrize(("more_ns", "use"), [(-1000, Kernel), (1000, Fallback)])
def test_a_chunk_of_a_prompt_stays_in_native_code_for_a_kernel_that_loses_little(
    times: tuple[dict[str, float], dict[str, float]], more_ns: float, use: type
) -> None:
    pytorch, kernels = times
    kernels[LAST] = pytorch[LAST] + LEAVING_NS["prefill"] + more_ns
    found = planned(pytorch, kernels)
    assert isinstance(of(found, LAST).choice, Fallback), "in a decode step leaving costs less"
    assert isinstance(next(part.choice for part in found.prefill if part.region == LAST), use)


def test_an_unpaired_time_of_pytorch_that_looks_cheaper_than_a_kernel_that_won_beside_it_counts_as_little(
    times: tuple[dict[str, float], dict[str, float]],
) -> None:
    """The kernel is in the ranking, for it won in paired rounds; PyTorch's time alone was taken at another moment."""
    assert isinstance(of(planned(*times, leaving_ns=None, won={LAST}), LAST).choice, Fallback)
    assert isinstance(of(planned(*times, won={LAST}), LAST).choice, Kernel)


def test_where_all_of_a_step_is_pytorchs_nothing_is_left(times: tuple[dict[str, float], dict[str, float]]) -> None:
    pytorch, kernels = (dict.fromkeys(times[0], KERNEL_NS - 300), times[1])
    found = planned(pytorch, kernels)
    assert all(isinstance(part.choice, Fallback) for part in found.decode[0])
    assert leaves(CUT, found.decode[0]) == 0


def test_what_a_step_leaves_native_code_for_is_counted_by_stretches() -> None:
    def some(*fallen: int) -> list[Part]:
        return [replace(part, choice=PYTORCH) if at in fallen else part for at, part in enumerate(PARTS)]

    assert leaves(CUT, PARTS) == 0
    assert leaves(CUT, some(0)) == len(PARTS[0].sites)
    assert leaves(CUT, some(len(PARTS) - 1)) == 1
    assert leaves(CUT, some(*range(len(PARTS)))) == 0
    assert leaves(CUT, some(*range(1, len(PARTS)))) == 1


def test_the_step_may_still_prefer_pytorch_to_a_kernel_that_it_beats_alone() -> None:
    region = CUT.regions[LAST]
    near, other = kernel(region, 1), kernel(region, 2)
    alternatives = RankedAlternatives(
        cast(Any, None), cast(Any, None), {LAST: Ranking(kernels=(), fallback=PYTORCH, near=(((), (near, other)),))}
    )
    assert alternatives.candidates_for(Part(region=LAST, choice=near)) == (PYTORCH, other)
