"""What a kernel for a task is checked on: scales, arenas, parameters, and inputs that hardly changed."""

from __future__ import annotations

import torch

from agentcompile.tasks.inputs import SCALES, cases, nudged, nudged_tree, randomised, scaled, seed_of


def test_every_scale_is_checked_and_both_arenas_several_times() -> None:
    found = list(cases(5, 0))
    assert {case.scale for case in found} == set(SCALES)
    assert all(sum(case.arena == arena for case in found) >= 3 for arena in (0, 1))
    assert len({case.seed for case in found}) == len(found)


def test_the_last_case_changes_the_inputs_before_it_in_the_same_arena() -> None:
    *_, before, last = cases(5, 0)
    assert last.nudged
    assert (last.arena, last.scale) == (before.arena, before.scale)


def test_other_seeds_give_other_inputs_in_another_order() -> None:
    orders = {tuple(case.scale for case in cases(seed, 0)) for seed in range(20)}
    assert len(orders) > 5
    assert not {case.seed for case in cases(1, 0)} & {case.seed for case in cases(2, 0)}


def test_a_label_tells_nothing_of_scale_and_seed() -> None:
    one, other = list(cases(1, 0)), list(cases(2, 0))
    assert [case.label for case in one] == [case.label for case in other]


def test_most_cases_have_random_parameters_and_one_has_the_models_own() -> None:
    found = list(cases(3, 0))
    assert sum(not case.randomised for case in found) == 1


def test_seeds_follow_from_all_their_parts() -> None:
    assert seed_of(1, "a") == seed_of(1, "a")
    assert len({seed_of(1, "a"), seed_of(2, "a"), seed_of(1, "b")}) == 3


def test_floats_are_scaled_and_whole_numbers_are_not() -> None:
    assert scaled(torch.ones(2, dtype=torch.bfloat16), -1.0).tolist() == [-1, -1]
    assert scaled(torch.ones(2, dtype=torch.bfloat16), 3.0).dtype == torch.bfloat16
    assert scaled(torch.tensor([4, 5]), 3.0).tolist() == [4, 5]


def test_a_nudge_changes_few_elements_and_neither_the_first_nor_the_last() -> None:
    x = torch.randn(40, 5)
    moved = nudged(x, torch.Generator().manual_seed(0))
    changed = (moved != x).view(-1)
    assert 1 <= int(changed.sum()) <= 5
    assert not changed[0]
    assert not changed[-1]


def test_a_nudge_leaves_whole_numbers_as_the_task_draws_them() -> None:
    before, drawn = ([torch.randn(50), {"ids": torch.randperm(50)}, 3] for _ in range(2))
    x, held, number = nudged_tree(before, drawn, torch.Generator().manual_seed(0))
    assert 1 <= int((x != before[0]).sum()) <= 5
    assert torch.equal(held["ids"], drawn[1]["ids"])
    assert number == 3


def test_parameters_leave_ones_and_zeros_keep_signs_and_spare_masks() -> None:
    ones, zeros = torch.ones(64), torch.zeros(64)
    mask = torch.tensor([0.0, -torch.inf, 1.0])
    ids = torch.arange(4)
    gamma, beta, masked, same = randomised([ones, zeros, mask, ids], torch.Generator().manual_seed(0))
    assert bool((gamma > 0).all())
    assert not bool((gamma == 1).any())
    assert bool((beta != 0).any())
    assert masked[0] == 0
    assert masked[1] == -torch.inf
    assert torch.equal(same, ids)
