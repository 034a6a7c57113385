"""Planted kernels: every wrong one is caught by the checks meant for it, and no right one is lost."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentcompile.ir.region import Region
from agentcompile.ir.template import Depth, Params
from agentcompile.ir.trial import NumericReport
from agentcompile.validate import DeclaredArithmetic, validate
from tests.adversarial.expectations import (
    ATTENTION,
    LINEAR,
    NORMED,
    PARAMETER,
    PLOTS,
    UNSEEN,
    WINDOW,
    WRONG,
    Plot,
    Wrong,
)
from tests.adversarial.planted import KERNELS, Planted, plant
from tests.kernels.regions_for import region_for
from tests.kernels.remembered import Remembered

SEEDS = (0, 1, 2, 3)
REMEMBERED = Remembered()
Grow = Callable[..., Planted]


@pytest.fixture(scope="module")
def grow(tmp_path_factory: pytest.TempPathFactory) -> Grow:
    """Compiles the kernels of a plot, once."""
    root: Path = tmp_path_factory.mktemp("binaries")
    made: dict[tuple[Plot, Params], Planted] = {}

    def planted(plot: Plot, params: Params = (("UNROLL", 8),)) -> Planted:
        key = (plot, params)
        if key not in made:
            made[key] = plant(region_for(plot.kind, plot.dtype, **dict(plot.extents)), root, params)
        return made[key]

    return planted


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def evaluated(
    planted: Planted,
    entry: str,
    *,
    depth: Depth = "accept",
    seed: int = 7,
    repeats: int = 24,
    facts: DeclaredArithmetic | None = None,
    serial: bool = True,
) -> NumericReport:
    facts = facts or planted.facts()
    return validate(
        planted.region,
        facts,
        lambda buffers: planted.run(entry, buffers),
        seed=seed,
        repeats=repeats,
        depth=depth,
        serial=(lambda buffers, backwards: planted.serial(entry, buffers, backwards)) if serial else None,
        tools=REMEMBERED.tools(planted.region, facts, seed),
    )


def failed(report: NumericReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.name for wrong in WRONG])
def test_a_wrong_kernel_falls_to_the_checks_meant_for_it(grow: Grow, wrong: Wrong) -> None:
    planted = grow(wrong.plot)
    report = evaluated(planted, wrong.entry, repeats=250 if wrong.entry == "wrong_rarely" else 24)
    assert set(wrong.seen) <= failed(report), report


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.name for wrong in WRONG])
def test_a_search_rejects_nearly_all_of_them(grow: Grow, wrong: Wrong) -> None:
    report = evaluated(grow(wrong.plot), wrong.entry, depth="search", repeats=16)
    assert not report.ok or wrong.entry in SLIPS or wrong in UNSEEN
    if not report.ok:
        assert report.cases < 8


SLIPS = (
    "wrong_floor_at_zero", "wrong_skips_nan", "wrong_largest_magnitude", "wrong_rarely", "wrong_sixth_term",
    "wrong_top_at_zero", "wrong_nan_unseen",
)  # fmt: skip
"""What a search may let through, and acceptance does not."""


@pytest.mark.parametrize("plot", PLOTS, ids=[plot.name for plot in PLOTS])
@pytest.mark.parametrize(("seed", "depth"), [(0, "accept"), (1, "accept"), (2, "search"), (3, "search")])
def test_right_kernels_are_kept_whatever_the_order_of_their_sums(
    grow: Grow, plot: Plot, seed: int, depth: Depth
) -> None:
    planted = grow(plot)
    for entry in planted.entries:
        if entry.startswith("right"):
            report = evaluated(planted, entry, depth=depth, seed=seed, repeats=8)
            assert report.ok, (entry, [check for check in report.checks if not check.ok])


@pytest.mark.parametrize("fault", sorted({wrong.fault for wrong in WRONG}))
def test_every_class_falls_to_two_independent_checks(fault: str) -> None:
    kernels = [wrong for wrong in WRONG if wrong.fault == fault]
    assert len({(wrong.plot.kind, wrong.entry) for wrong in kernels}) >= (1 if fault == PARAMETER else 2)
    assert len({check for wrong in kernels for check in wrong.seen}) >= 2


def test_every_planted_kernel_is_expected_somewhere() -> None:
    expected = {(wrong.plot.kind, wrong.entry) for wrong in WRONG}
    for file in KERNELS.glob("*.cpp"):
        names = [line[7 : line.index(")")] for line in file.read_text().splitlines() if line.startswith("KERNEL(")]
        wrong = {name for name in names if name.startswith("wrong") and not name.endswith("_then")}
        assert {entry for kind, entry in expected if kind == file.stem} == wrong


def test_a_defect_of_one_parameter_value_shows_at_that_value_alone(grow: Grow) -> None:
    assert evaluated(grow(LINEAR, (("UNROLL", 4),)), "wrong_when_unrolled_by_8").ok
    assert not evaluated(grow(LINEAR, (("UNROLL", 8),)), "wrong_when_unrolled_by_8").ok


def test_rounding_a_value_is_right_when_it_is_declared_and_wrong_when_it_is_not(grow: Grow) -> None:
    planted = grow(NORMED)
    assert "element" in failed(evaluated(planted, "declared_rounds_n"))
    for seed in SEEDS:
        assert evaluated(planted, "declared_rounds_n", seed=seed, facts=planted.facts(rounds=(("n", "bf16"),))).ok


def test_ignoring_a_window_is_right_where_there_is_none(grow: Grow) -> None:
    assert evaluated(grow(ATTENTION), "wrong_window_ignored").ok
    assert not evaluated(grow(WINDOW), "wrong_window_ignored").ok


def test_a_read_behind_a_full_cache_dies_at_the_fence(tmp_path: Path) -> None:
    region = region_for("rope-attention-decode", "bf16", context=90)
    assert isinstance(plant(region, tmp_path), Planted)
    context = multiprocessing.get_context("spawn")
    dying = context.Process(target=_evaluated_apart, args=(region, tmp_path, "overruns_a_full_cache"))
    dying.start()
    dying.join(120)
    assert dying.exitcode == -signal.SIGSEGV


def _evaluated_apart(region: Region, root: Path, entry: str) -> None:
    evaluated(plant(region, root), entry, serial=False)


def test_a_nondeterministic_template_must_still_stay_within_its_bounds(grow: Grow) -> None:
    planted = grow(LINEAR)
    facts = planted.facts(deterministic=False)
    assert evaluated(planted, "right_halves", facts=facts).ok
    assert "element" in failed(evaluated(planted, "wrong_rarely", facts=facts, repeats=250))


def test_races_are_seen_by_repeats_or_poison_even_without_running_ranks_in_order(grow: Grow) -> None:
    racing = [wrong for wrong in WRONG if "order" in wrong.seen]
    seen = [not evaluated(grow(wrong.plot), wrong.entry, serial=False, repeats=250).ok for wrong in racing]
    assert sum(seen) >= len(racing) // 2
