"""The contract of a task: what it says, and that no time of a machine is part of its identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.answers import Draft, manifest_text, read_draft
from agentcompile.agents.prompts import prompt_of
from agentcompile.agents.windows import alone
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.ir.attempt import Contract, Times, Written
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Template
from agentcompile.tasks.contract import contract_of, facts_of, region_of
from agentcompile.tasks.reading import read
from agentcompile.tasks.wire import Loaded, Signature, TensorFact
from tests.unit.fakes import target
from tests.unit.refined import contract_in, node

CEILING = Ceiling(dram_bytes_per_s=20e9, cache_bytes_per_s=200e9, flops_per_s=200e9)
TOLD = Loaded(
    text="class Model: ...\n",
    signatures=(
        Signature(
            tensors=(
                TensorFact(name="in0", role="input", dtype="bf16", shape=(4, 96)),
                TensorFact(name="weight", role="parameter", dtype="bf16", shape=(33, 96), source="weight"),
                TensorFact(name="out0", role="output", dtype="bf16", shape=(4, 33)),
            )
        ),
    ),
    flops=2 * 4 * 33 * 96,
    touched_bytes=7368,
    wide=True,
)


@dataclass
class Task:
    """A task as its contract sees it, without a process."""

    told: Loaded = TOLD
    path: Path = Path("product.py")
    kind: str = "task-product"


def made(*, us: float = 9.0, ceiling: Ceiling = CEILING) -> Contract:
    baseline: Json = {"fastest": "torch.compile", "us": {"pytorch": us}}
    times = Times(reference_ns=us * 1e3, incumbent_ns=us * 1e3)
    return contract_of(Task(), "cpp", target(), ceiling, times, baseline)  # type: ignore[arg-type] # what it reads


def test_no_measured_number_is_part_of_what_is_asked_for() -> None:
    one, other = made(), made(us=5.0, ceiling=replace(CEILING, dram_bytes_per_s=1e9))
    assert one.digest == other.digest
    assert one.measured != other.measured
    assert canonical(one.interface) == canonical(other.interface)


def test_a_question_shows_rates_and_pytorch_s_times() -> None:
    nodes = (node(0, None, 9000.0),)
    told: dict[str, Any] = contract_in(prompt_of(made(), nodes, alone("code"), attempt=1).system)["measured"]
    assert told["baseline"]["us"] == {"pytorch": 9.0}
    assert (told["dram_gb_per_s"], told["binds"]) == (20.0, "flops")


def test_rates_that_were_measured_beside_others_give_no_floor() -> None:
    assert made().floor_ns == pytest.approx(1e9 * TOLD.flops / 200e9)
    busy = made(ceiling=replace(CEILING, calm=False))
    assert busy.floor_ns == 0.0
    assert isinstance(busy.measured, dict)
    assert busy.measured["quiet"] is False
    assert busy.measured.keys() == {"quiet", "about", "baseline"}, "no rate that is too low, and no floor of it"
    text = prompt_of(busy, (node(0, None, 9000.0),), alone("code"), attempt=1)
    assert "floor_by" not in text.system
    assert "over_floor" not in text.user


def test_what_a_contract_gives_to_start_from_is_read_as_a_template() -> None:
    contract, region = made(), region_of(Task())  # type: ignore[arg-type] # what it reads
    interface: Any = contract.interface
    draft = read_draft(
        canonical(
            {
                "notes": "",
                "manifest": interface["manifest"]["answer"],
                "kernel": interface["launch"]["skeleton"],
            }
        ).decode()
    )
    assert isinstance(draft, Draft), draft
    written = Written(manifest=manifest_text(contract, draft.manifest), kernel=draft.kernel)
    found = read(written, region, facts_of(region), "cpp")
    assert isinstance(found, Template), found
    assert found.source_name == KERNEL_FILES["cpp"]
    assert found.launches[0].arguments == ("in0", "weight", "out0")
    assert "layouts" not in interface["manifest"]["keys"], "nothing of a task is packed"
