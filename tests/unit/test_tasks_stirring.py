"""Changes of an input between launches: what is listed is what is made, for every type."""

from __future__ import annotations

import pytest
import torch

from agentcompile.tasks.stirring import applied, fill, rows_of, steps_of, stirred_input, table_numbers, warm_up
from agentcompile.tasks.wire import Signature, TensorFact


def made(table: torch.Tensor, tensor: torch.Tensor, steps: int) -> torch.Tensor:
    """What the kernel does with a table, in bytes."""
    found = tensor.clone().view(-1).view(torch.uint8)
    nbytes = int(table[1])
    for _ in range(steps):
        place, value = table[2 + 2 * int(table[0]) :][:2]
        found[int(place) : int(place) + nbytes] = value.view(1).view(torch.uint8)[:nbytes]
        table[0] += 1
    return found.view(tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_list_of_changes_is_what_becomes_of_the_tensor(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    tensor = torch.randn(5, 7, generator=generator).to(dtype)
    table = torch.zeros(table_numbers(), dtype=torch.int64)
    fill(table, tensor, 20, generator)
    rows = rows_of(table, 20)
    changed = applied(rows, tensor)
    assert torch.equal(changed, made(table, tensor, 20))
    assert not torch.equal(changed, tensor)
    assert set(changed.view(-1).tolist()) <= set(tensor.view(-1).tolist())
    assert torch.equal(applied(rows[:0], tensor), tensor)


@pytest.mark.parametrize(("batch", "sets"), [(1, 4), (2, 4), (7, 4), (400, 4), (9, 2)])
def test_every_launch_of_a_batch_and_its_warm_up_makes_one_change(batch: int, sets: int) -> None:
    walked = [at % sets for count in (warm_up(batch), batch) for at in range(count)]
    assert [steps_of(batch, sets, arena) for arena in range(sets)] == [walked.count(arena) for arena in range(sets)]


def test_the_largest_input_of_floats_is_changed() -> None:
    def fact(name: str, dtype: str, width: int, varies: bool = True) -> TensorFact:
        return TensorFact(name=name, role="input", dtype=dtype, shape=(width,), varies=varies)  # type: ignore[arg-type]

    facts = (fact("in0", "fp32", 4), fact("in1", "bf16", 6), fact("in2", "int64", 99), fact("in3", "fp32", 50, False))
    assert stirred_input(Signature(tensors=facts)) == "in0"
    assert stirred_input(Signature(tensors=facts[2:])) == ""
