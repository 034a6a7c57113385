"""The tolerance of tasks: what PyTorch itself errs, and some times more; whole numbers and non-finite values."""

from __future__ import annotations

import math

import pytest
import torch

from agentcompile.tasks import comparing
from agentcompile.tasks.comparing import Expected, Outputs, compare
from agentcompile.tasks.tally import TaskTally


def expected(reference: torch.Tensor, dtype: str = "fp32", error: float = 1e-7) -> Expected:
    torch.manual_seed(0)
    own = (reference + error * torch.randn(reference.shape, dtype=torch.float64)).to(torch.float32)
    moved = (reference * (1 + 2.0**-24),)
    return Expected(name="out0", dtype=dtype, reference=reference, own=own, moved=moved)


def found(y: torch.Tensor, one: Expected) -> TaskTally:
    tally = TaskTally()
    compare(tally, y, one, "inputs 1")
    return tally


def reference(rows: int = 3, width: int = 100) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_rounded_reference_passes_with_an_error_below_pytorchs_own() -> None:
    r = reference()
    tally = found(r.float(), expected(r))
    assert tally.ok
    assert tally.error_ratio < 1


def test_one_wrong_element_is_named_with_its_place_and_values() -> None:
    r = reference()
    y = r.float()
    y[1, 7] += 1e-3
    tally = found(y, expected(r))
    assert not tally.checks["element"].ok
    assert "out0[1, 7] is " in tally.checks["element"].detail


def test_a_small_row_has_the_tolerance_of_its_own_and_not_of_a_large_one() -> None:
    r = reference()
    r[0] *= 1e-4
    one = expected(r, error=0.0)
    y = r.float()
    y[0, 3] += 1e-6
    assert not found(y, one).checks["element"].ok


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_numbers_that_were_rounded_to_a_narrower_type_are_refused(narrow: torch.dtype) -> None:
    r = reference()
    assert not found(r.to(narrow).float(), expected(r)).ok


def test_an_error_some_times_pytorchs_own_is_allowed_in_float32() -> None:
    r = reference()
    y = (r + 1e-6 * torch.randn(r.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).float()
    tally = found(y, expected(r))
    assert tally.ok
    assert 5 < tally.error_ratio < 20


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_where_the_reference_is_fails(value: float) -> None:
    r = reference()
    y = r.float()
    y[2, 99] = value
    assert not found(y, expected(r)).checks["not_finite"].ok


def test_nan_and_infinities_where_the_reference_has_them_pass_and_a_number_there_does_not() -> None:
    r = reference()
    r[0, 0], r[0, 1] = math.nan, math.inf
    one = expected(r)
    y = r.float()
    assert found(y, one).ok
    y[0, 0] = 0.0
    assert not found(y, one).checks["not_finite"].ok
    y[0, 0], y[0, 1] = math.nan, -math.inf
    assert not found(y, one).checks["not_finite"].ok


def test_where_pytorch_overflows_and_float64_does_not_a_finite_number_must_be_right() -> None:
    r = reference()
    one = expected(r)
    one.own[0] = math.nan
    y = r.float()
    y[0] += 1e-7
    assert found(y, one).ok
    y[0, 5] = 1.5
    assert not found(y, one).ok
    one.own[:] = math.inf
    assert found(r.float(), one).ok
    assert not found(y, one).ok


def test_where_pytorch_overflows_and_float64_does_not_either_will_do() -> None:
    r = reference()
    one = expected(r)
    own = one.own.clone()
    own[0, 5] = math.inf
    one = Expected(name="out0", dtype="fp32", reference=r, own=own, moved=one.moved)
    y = r.float()
    assert found(y, one).ok
    y[0, 5] = math.inf
    assert found(y, one).ok
    y[0, 6] = math.inf
    assert not found(y, one).ok


def test_whole_numbers_are_equal_but_where_pytorchs_own_runs_differ() -> None:
    r, own = torch.tensor([3, 4, 5]), torch.tensor([3, 9, 5])
    one = Expected(name="out0", dtype="int64", reference=r, own=own, moved=(r,))
    assert found(torch.tensor([3, 4, 5]), one).ok
    assert found(torch.tensor([3, 9, 5]), one).ok
    tally = found(torch.tensor([3, 4, 6]), one)
    assert "out0[2] is 6 and not 5" in tally.checks["indices"].detail


def test_a_result_that_is_zero_everywhere_has_an_exact_answer() -> None:
    r = torch.zeros(2, 80, dtype=torch.float64)
    one = Expected(name="out0", dtype="fp32", reference=r, own=r.float(), moved=(r,))
    assert found(r.float(), one).ok
    assert not found(r.float() + 1e-12, one).ok


def test_an_element_that_is_nearly_a_whole_row_may_err_some_roundings() -> None:
    r = torch.softmax(reference(width=1024) * 40, -1)
    best = r.argmax(-1)
    rows = torch.arange(len(r))
    assert r[rows, best].min() > 0.4
    one = Expected(name="out0", dtype="fp32", reference=r, own=r.float(), moved=(r,))
    y = r.float()
    y[rows, best] *= 1 + 4 * 2.0**-24
    assert found(y, one).ok, found(y, one).checks
    y[rows, best] = (r[rows, best] * (1 + 2.0**-11)).float()
    assert not found(y, one).checks["element"].ok
    assert not found(r.to(torch.bfloat16).float(), one).ok


def test_launches_with_the_bits_of_the_first_are_evaluated_like_it_without_being_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = list[torch.Tensor]()

    def counted(tally: TaskTally, y: torch.Tensor, one: Expected, label: str) -> None:
        compared.append(y)
        compare(tally, y, one, label)

    monkeypatch.setattr(comparing, "compare", counted)
    r = reference()
    for wrong in (False, True):
        outputs, y, tally = Outputs(), r.float(), TaskTally()
        compared.clear()
        y[1, 7] += 1e-3 * wrong
        assert all(outputs.examine(tally, y.clone(), expected(r), "inputs 1") for _ in range(3))
        assert len(compared) == 1
        assert vars(tally) == vars(found(y, expected(r)))
        y[2, 8] += 1e-3
        assert not outputs.examine(tally, y, expected(r), "inputs 1")
        assert len(compared) == 2
        assert not tally.ok
    tally = TaskTally()
    assert not outputs.examine(tally, r.float(), expected(r), "inputs 1")
    assert tally.ok, "it is this launch that is evaluated, and not the first"
    nowhere = torch.full_like(r, math.nan).float()
    again = Outputs()
    assert all(again.examine(tally, nowhere, expected(r), "inputs 1") for _ in range(2)), "NaN has bits, too"
    assert not tally.ok
