"""A lock runs its own sources where the templates have changed or are gone, and binds all that it says."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.build import Binary, compile
from agentcompile.catalog import Catalog
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import DriftFound, Event, Warned
from agentcompile.lockfile.bundle import Bundle, beside
from agentcompile.lockfile.files import render_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.replay.open import OpenedLock, opened_with
from agentcompile.replay.sources import LockSources, write_bundle
from agentcompile.system.store import Store
from bench.campaign.locks import Attempt, HungError, Target, attack, limited, resealed, same, wrong
from bench.campaign.report import Campaign
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT

Make = Callable[[str, str], Path]


@pytest.fixture
def target(warm: Path, planted: Make, checkpoint: Make, tmp_path: Path) -> Target:
    """The tiny Qwen3's all-kernel lock, opened."""
    lock = tmp_path / "a.lock.toml"
    lock.write_bytes(planted("tiny-qwen3", "fp32").read_bytes())
    return Target.of(lock, flows.options(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT), tmp_path)


def opened(
    target: Target, templates: Catalog, kept: LockSources, *, locked: bool = False
) -> tuple[OpenedLock, list[Event]]:
    told: list[Event] = []
    made = opened_with(target.path, target.lock, target.here, target.model, templates, kept, told.append, locked=locked)
    return made, told


def changed(catalog: Catalog) -> Catalog:
    """The same templates with another manifest and another kernel each."""
    return Catalog(
        templates=tuple(
            replace(one, about="Later.", source=one.source + "\n// later\n") if one.source else one
            for one in catalog.templates
        )
    )


@pytest.mark.parametrize("later", [changed, lambda _: Catalog(templates=())], ids=["changed", "gone"])
def test_a_lock_whose_templates_changed_runs_its_own_sources_says_so_and_has_not_drifted(
    later: Callable[[Catalog], Catalog], target: Target
) -> None:
    before = opened(target, target.templates, LockSources())[0]
    now, told = opened(target, later(target.templates), target.kept, locked=True)
    assert same(now, before)
    assert not [event for event in told if isinstance(event, DriftFound)]
    (warned,) = (event for event in told if isinstance(event, Warned))
    assert "own sources; the templates here have changed: " in warned.text
    with pytest.raises(AgentCompileError, match=r"now gives source|no template") as caught:
        opened(target, later(target.templates), LockSources())
    assert caught.value.exit_code is ExitCode.DRIFT
    assert "bundle" in caught.value.hint


@pytest.mark.usefixtures("compiler_itself")
def test_a_source_from_a_bundle_builds_the_same_binary_as_the_template_does(target: Target, tmp_path: Path) -> None:
    write_bundle(target.path, target.kept.bundle, beside(target.path))
    own = LockSources.of(target.path, Store(tmp_path / "none"))
    job = min(opened(target, target.templates, LockSources())[0].jobs, key=lambda job: len(job.source.text))
    found, binaries = own.source(job.source.digest), []
    assert found is not None
    for name, source in (("own", found), ("usual", job.source)):
        made = compile(source, Store(tmp_path / name), toolchain=target.here.toolchain, limit_s=60)
        assert isinstance(made, Binary), made
        binaries.append(made.digest)
    assert binaries[0] == binaries[1]


def test_a_manifest_that_changed_alone_is_drift_where_the_locks_own_is_nowhere(target: Target) -> None:
    later = Catalog(templates=tuple(replace(one, about="Later.") for one in target.templates.templates))
    _, told = opened(target, later, LockSources())
    rows = [event for event in told if isinstance(event, DriftFound)]
    assert {row.grade for row in rows} == {"rebuild"}
    assert all(row.field.startswith("template.") for row in rows)
    with pytest.raises(AgentCompileError, match=r"template\."):
        opened(target, later, LockSources(), locked=True)


def test_bundling_writes_one_file_that_is_a_lock_by_itself(target: Target, warm: Path, checkpoint: Make) -> None:
    model = ("--model", checkpoint("tiny-qwen3", "fp32"), "--threads", flows.THREADS)
    made = flows.verb(warm, "bundle", target.path, *model, "--json")
    assert made.code == 0, made.err
    file = Path(json.loads(made.out)["file"])
    assert file == beside(target.path)
    assert json.loads(made.out)["kernels"] == len(target.kept.bundle.sources)
    done = flows.verb(warm, "replay", file, "--check", *model)
    assert done.code == 0, done.err
    file.write_bytes(file.read_bytes()[:-40])
    flows.verb(warm, "replay", target.path, "--check", *model).refuses(2, file.name, "agentcompile bundle")


def test_a_bundle_of_another_lock_gives_nothing_and_harms_nothing(target: Target) -> None:
    other = Bundle(sources={}, templates=dict(list(target.kept.bundle.templates.items())[:1]))
    write_bundle(target.path, other, beside(target.path))
    assert opened(target, target.templates, LockSources.of(target.path, target.here.store))[0].jobs


def first_kernel(lock: Lock, **fields: object) -> Lock:
    plan = lock.plan[0]
    at = next(i for i, one in enumerate(plan.choices) if one.params)
    choices = [replace(one, **fields) if i == at else one for i, one in enumerate(plan.choices)]  # type: ignore[arg-type]
    return replace(lock, plan=(replace(plan, choices=tuple(choices)), *lock.plan[1:]))


RESEALED: dict[str, tuple[Callable[[Lock], Lock], str]] = {
    "no layouts": (lambda lock: replace(lock, layouts={}), "is kept as row-major"),
    "an unknown layout": (lambda lock: replace(lock, layouts=dict.fromkeys(lock.layouts, "x")), "is no layout"),
    "another layout": (lambda lock: replace(lock, layouts=dict.fromkeys(lock.layouts, "rows16-k2")), "cannot hold"),
    "no such weight": (lambda lock: replace(lock, layouts={**lock.layouts, "x": "rows16-k1"}), "no such weight"),
    "a parameter of no domain": (
        lambda lock: first_kernel(lock, params=dict.fromkeys(_params(lock), 3_000_001)),
        "is not one of",
    ),
    "a parameter more": (
        lambda lock: first_kernel(lock, params={**_params(lock), "MORE": 1}),
        "there is no parameter MORE",
    ),
    "another name": (lambda lock: first_kernel(lock, name="add@000000"), "add@000000"),
    "other sites": (lambda lock: first_kernel(lock, sites=99), "99"),
}


def _params(lock: Lock) -> dict[str, int | str]:
    return next(one.params for one in lock.plan[0].choices if one.params)


@pytest.mark.parametrize("what", RESEALED)
def test_a_resealed_lock_that_binds_nothing_is_drift(what: str, target: Target) -> None:
    change, words = RESEALED[what]
    if not target.lock.layouts and "layout" in what:
        pytest.skip("no kernel of this machine reads a packed weight")
    made = target.attempt("one", what, lambda: render_lock(change(target.lock)))
    assert (made.plan, made.refused, made.failure) == (None, 3, "")
    with pytest.raises(AgentCompileError, match=words):
        target.opened(target.path, change(target.lock))


def test_spoiled_and_resealed_locks_open_as_they_were_or_not_at_all(target: Target) -> None:
    asked = Campaign(count=300, seed=1, seconds=0)
    found = attack(target, asked, lambda _: None, model="", home="", runs=0, share=1 / 3)
    assert found.tried == 300
    assert found.failures == ()
    assert {"raw, refused with exit 2", "resealed, refused with exit 3"} <= set(found.figures)


def test_the_campaign_sees_crashes_hangs_and_other_outputs(target: Target) -> None:
    assert "ZeroDivisionError" in target.attempt("one", "", lambda: bytes(1 // 0)).failure
    with pytest.raises(HungError), limited(0.05):
        signal.pause()
    assert "0.5" in wrong({"apart": 0.5, "finite": 1})
    assert wrong({"apart": 0.0, "finite": 0})
    assert wrong({"refused": 1, "message": "internal"})
    assert not wrong({"apart": 0.001, "finite": 1})
    plans = [resealed(target, target.ground(), at, seed=3) for at in range(40)]
    assert all(isinstance(made, Attempt) and not made.failure for made in plans)
