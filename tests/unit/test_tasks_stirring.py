"""Changes of buffers between launches: what is listed is what is made, for every type."""

from __future__ import annotations

import pytest
import torch

from agentcompile.tasks.stirring import (
    Stirred,
    applied,
    fill,
    in_order,
    noisy,
    places_of,
    shuffled,
    spoilt,
    steps_of,
    stirred,
    table_numbers,
    twin,
    warm_up,
)
from agentcompile.tasks.wire import Scratch, Signature, TensorFact


def made(table: torch.Tensor, tensor: torch.Tensor, port: int, steps: int) -> torch.Tensor:
    """What the kernel does with a table to the buffer at place `port`, in bytes."""
    found = tensor.clone().view(-1).view(torch.uint8)
    for at in range(steps * int(table[1])):
        word, value = table[2 + 2 * at :][:2]
        place, nbytes = int(word) & ((1 << 48) - 1), int(word) >> 48 & 15
        if int(word) >> 52 == port:
            found[place : place + nbytes] = value.view(1).view(torch.uint8)[:nbytes]
    return found.view(tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_the_list_of_changes_is_what_becomes_of_the_tensors(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = [(9 * torch.randn(5, 7, generator=generator)).to(dtype) for _ in range(2)]
    table = torch.zeros(table_numbers(), dtype=torch.int64)
    rows = fill(table, [shuffled(one) for one in tensors], 20, generator)
    assert len(rows) == 20
    for port, tensor in enumerate(tensors):
        changed = applied(rows, port, tensor)
        assert torch.equal(changed, made(table, tensor, port, 20))
        assert not torch.equal(changed, tensor)
        assert set(changed.view(-1).tolist()) <= set(tensor.view(-1).tolist())
        assert torch.equal(applied(rows[:0], port, tensor), tensor)


def test_a_place_that_a_step_changes_twice_becomes_one_value() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = fill(torch.zeros(table_numbers(), dtype=torch.int64), [shuffled(torch.randn(2))], 50, generator)
    for step in rows:
        known = dict[int, int]()
        assert all(known.setdefault(int(place), int(value)) == value for place, value in step)


def test_results_are_spoilt_by_nan_and_by_values_that_look_right() -> None:
    generator, table = torch.Generator().manual_seed(3), torch.zeros(table_numbers(), dtype=torch.int64)
    result = torch.randn(64)
    changed = applied(fill(table, [spoilt(result)], 40, generator), 0, result)
    assert changed.isnan().any()
    assert bool(((changed != result) & ~changed.isnan()).any())
    ids = torch.arange(64)
    assert not torch.equal(applied(fill(table, [spoilt(ids)], 40, generator), 0, ids), ids)
    space = torch.zeros(64, dtype=torch.int32)
    assert applied(fill(table, [noisy("int32", 64)], 40, generator), 0, space).any()


@pytest.mark.parametrize(("batch", "sets"), [(1, 4), (2, 4), (7, 4), (400, 4), (9, 2)])
def test_every_launch_of_a_batch_and_its_warm_up_makes_one_step_of_changes(batch: int, sets: int) -> None:
    walked = [at % sets for count in (warm_up(batch), batch) for at in range(count)]
    assert [steps_of(batch, sets, arena) for arena in range(sets)] == [walked.count(arena) for arena in range(sets)]
    rows = [torch.full((steps_of(batch, sets, at), 1, 2), at) for at in range(sets)]
    assert in_order(rows, batch)[:, 0].tolist() == walked


def fact(name: str, role: str, dtype: str, varies: bool = True) -> TensorFact:
    return TensorFact(name=name, role=role, dtype=dtype, shape=(4,), varies=varies)  # type: ignore[arg-type]


def test_all_that_a_kernel_cannot_count_on_is_changed() -> None:
    facts = (
        fact("in0", "input", "fp32"), fact("in1", "input", "bf16"), fact("in2", "input", "int64"),
        fact("in3", "input", "int64", varies=False), fact("weight", "parameter", "fp32", varies=False),
        fact("ids", "parameter", "int64", varies=False), fact("out0", "output", "int64"),
    )  # fmt: skip
    spaces = [Scratch(name=name, dtype="fp32", elements=3, zeroed=name == "zeros") for name in ("free", "zeros")]
    found = stirred(Signature(tensors=facts), spaces)
    assert found == Stirred(elements=("in0", "in1", "weight", "out0", "free"), swapped=("in2",))
    whole = stirred(Signature(tensors=facts), [], whole=True)
    assert whole == Stirred(elements=("weight", "out0"), swapped=("in0", "in1", "in2"))
    addresses = {"in0": 10, "weight": 20, "out0": 30, "in2": 40, twin("in2"): 50}
    ports = Stirred(elements=("weight", "out0"), swapped=("in2",))
    assert places_of(ports, addresses, {"in2": 32}) == [1, 40, 50, 32, 20, 30]
