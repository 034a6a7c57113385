"""What the assembler reports of a kernel is kept beside its binary, and told to an adviser with its trial."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile import catalog
from agentcompile.advice.prompt import prompt_of
from agentcompile.build import Binary, compile, nvrtc_toolchain, resources_of
from agentcompile.ir.advice import Question
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Source
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts
from agentcompile.space import Space
from agentcompile.system.store import Store
from agentcompile.tuning.prepared import informed
from agentcompile.tuning.trial_database import TrialDatabase
from tests.unit import fakes

GPU = fakes.target(kind="cuda", arch="sm_90", isa=(), threads=132, toolchain=nvrtc_toolchain().name)
REGION = fakes.linear_region()
TEMPLATE = catalog.load([catalog.default_root()], kinds=facts(), layouts=LAYOUTS).get("linear/warp-rows")
SPACE = Space(REGION, (TEMPLATE,), GPU)
CANDIDATE = next(iter(SPACE))
SOURCE = specialise(TEMPLATE, REGION, CANDIDATE.params, GPU)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    made = compile(SOURCE, store, toolchain=nvrtc_toolchain(), limit_s=60)
    assert isinstance(made, Binary), made
    return store


def test_the_report_of_a_binary_is_kept_with_it(built: Store) -> None:
    (found,) = resources_of(SOURCE, built, GPU.toolchain)
    assert found.entry == "gemv"
    assert found.registers > 0


def test_what_was_not_built_here_has_no_report(built: Store, tmp_path: Path) -> None:
    assert resources_of(SOURCE, Store(tmp_path), GPU.toolchain) == ()
    assert resources_of(SOURCE, built, "nvrtc 1.0") == ()
    library = Source(language="library", text="", launches=(), workspaces=(), call="torch.linear")
    assert resources_of(library, built, GPU.toolchain) == ()


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'[{"entry": "gemv", "registers": "many"}]', b"\xff"])
def test_a_damaged_report_is_none(built: Store, tmp_path: Path, damage: bytes) -> None:
    (report,) = built.root.rglob("*.resources.json")
    store = Store(tmp_path)
    store.write(report.name.partition(".")[0], damage, ".resources.json")
    assert resources_of(SOURCE, store, GPU.toolchain) == ()


def test_an_adviser_is_told_it_with_the_trial(built: Store) -> None:
    ceiling = Ceiling(dram_bytes_per_s=3e12, cache_bytes_per_s=7e12, flops_per_s=7e14)
    asked = Question(
        region=REGION,
        target=GPU,
        ceiling=ceiling,
        residency="dram",
        templates=SPACE.templates,
        candidates=tuple(SPACE),
    )
    trial = replace(fakes.measured(CANDIDATE, 0.5), source=SOURCE.digest)
    known = informed(asked, TrialDatabase([trial], None, "p"), built)
    (found,) = resources_of(SOURCE, built, GPU.toolchain)
    (region,) = json.loads(prompt_of([known]).user)["regions"]
    (row,) = region["launches_of_trials"]
    assert row == ["c1", row[1], 64, 4096, found.registers, found.shared_bytes, found.spill_bytes]
    assert informed(asked, TrialDatabase([], None, "p"), built) == asked
