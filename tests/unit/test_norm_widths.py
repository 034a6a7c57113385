"""A norm belongs to the operators behind it where it is as wide as what they read."""

from __future__ import annotations

import pytest
from graphs import Builder, seen

from agentcompile.ir.region import Regime
from agentcompile.regions.partition import partition


@pytest.mark.parametrize(
    ("groups", "kinds"), [(1, {"rmsnorm-linear", "rmsnorm", "linear"}), (4, {"rmsnorm", "linear"})]
)
def test_a_norm_in_groups_is_no_part_of_a_product_over_all_of_them(groups: int, kinds: set[str]) -> None:
    build = Builder()
    x = build.input("x", (1, 1, 64), "activation")
    narrow = (1, 1, groups, 64 // groups) if groups > 1 else (1, 1, 64)
    weight = build.input("norm", (64 // groups,))
    n = build.op("rms_norm", seen(x, *narrow), weight, shape=narrow, eps=1e-6, offset=0.0)
    y = build.op("linear", seen(n, 1, 1, 64), build.input("w", (32, 64)), shape=(1, 1, 32))
    found = partition(build.graph(y=y), Regime(phase="decode", context=(1, 64)))
    assert {region.kind for region in found.regions} == kinds
    assert [refusal.reason for refusal in found.refusals] == (
        [] if groups == 1 else ["hidden is 64 and 16 in one region"]
    )
