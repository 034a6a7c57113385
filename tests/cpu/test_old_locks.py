"""Locks of before, which name templates as they were called then: they open and generate what they did.

Those in `old_locks` were written when every dtype had templates of its own, for any processor with AVX2.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from agentcompile import catalog, pipeline
from agentcompile.catalog import Catalog
from agentcompile.catalog.aliases import ALIASES
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import DriftFound, Event, Warned
from agentcompile.lockfile.bundle import beside
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.replay.load import replay_lock
from agentcompile.replay.open import OpenedLock, opened_with
from agentcompile.replay.sources import LockSources
from bench.campaign.locks import Target
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.templates.suite import CATALOG

Make = Callable[[str, str], Path]
FOLDER = Path(__file__).with_name("old_locks")
PROMPT = (7, 77, 177, 300, 5)
# Drawn at temperature 1.5 from seed 3: what those locks gave when they were written, with natural logarithms.
GIVEN = {
    "tiny-qwen3": (
        (20, 95, 254, 286, 423, 235, 286, 302, 68, 234, 422, 213),
        (-6.1883, -6.4828, -5.9532, -6.3607, -6.1222, -6.3546, -6.2957, -6.1374, -6.0864, -6.115, -6.275, -6.4794),
    ),
    "tiny-llama": (
        (384, 260, 145, 81, 476, 181, 151, 464, 467, 63, 87, 441),
        (-6.1528, -6.5655, -5.8554, -6.404, -6.0462, -6.3994, -6.3098, -6.0823, -6.0244, -6.0747, -6.2984, -6.5398),
    ),
}


def named(lock: Lock) -> set[str]:
    """Templates that a lock calls by a name of before."""
    return {choice.template for plan in lock.plan for choice in plan.choices} & ALIASES.keys()


@pytest.fixture(params=GIVEN)
def name(request: pytest.FixtureRequest, warm: Path, checkpoint: Make) -> str:
    """A preset that there is an old lock of, on a machine that it may run on."""
    preset = str(request.param)
    here = this_machine(flows.options(warm, checkpoint(preset, "fp32"), CONTEXT)).target
    locked = read_lock(FOLDER / f"{preset}.lock.toml").target
    if here.arch != locked.arch or not set(locked.isa) <= set(here.isa):
        pytest.skip("the locks are for x86_64 with AVX2")
    return preset


def test_an_old_lock_with_its_bundle_generates_what_it_did(
    name: str, warm: Path, checkpoint: Make, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.lock.toml"
    for file in (path, beside(path)):
        shutil.copy(FOLDER / file.name, file)
    assert len(named(read_lock(path))) >= 5
    made = replay_lock(path, flows.options(warm, checkpoint(name, "fp32"), CONTEXT))
    done = made.generate(PROMPT, max_new_tokens=12, temperature=1.5, seed=3, logprobs=True, ignore_eos=True)
    tokens, logarithms = GIVEN[name]
    assert done.tokens == tokens
    assert done.logprobs == pytest.approx(logarithms, abs=2e-3)


def before() -> Catalog:
    """Today's templates as they lay when every dtype had a folder of its own."""
    moved = {(id, (dtype,)) for id, dtype in ALIASES.values()}
    kept = [one for one in CATALOG.templates if (one.id, one.dtypes) not in moved]
    old = [one for name, (_, dtype) in ALIASES.items() if (one := CATALOG.find(name, dtype))]
    return Catalog(templates=tuple(sorted([*kept, *old], key=lambda one: one.id)))


@pytest.fixture
def target(warm: Path, checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A lock that was written with those."""
    path, model = tmp_path / "a.lock.toml", checkpoint("tiny-qwen3", "fp32")
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "load", lambda *_, **__: before())
        flows.write(warm, model, CONTEXT, path)
    return Target.of(path, flows.options(warm, model, CONTEXT), tmp_path)


def opened(target: Target, templates: Catalog, kept: LockSources) -> tuple[OpenedLock, list[Event]]:
    told: list[Event] = []
    made = opened_with(target.path, target.lock, target.here, target.model, templates, kept, told.append)
    return made, [event for event in told if isinstance(event, (DriftFound, Warned))]


def test_a_lock_that_names_templates_of_before_needs_no_bundle(target: Target) -> None:
    assert named(target.lock)
    made, told = opened(target, target.templates, LockSources())
    assert told == []
    assert {job.template.id for job in made.jobs} >= named(target.lock)
    was = opened(target, before(), LockSources())[0]
    assert {job.source.digest: job.template.digest for job in made.jobs} == {
        job.source.digest: job.template.digest for job in was.jobs
    }
    assert made.decode == was.decode


class StoppedError(Exception):
    """Raised where the search would begin."""


def test_a_run_of_before_goes_on_with_its_trials_under_the_names_of_now(
    warm: Path, checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, taken = checkpoint("tiny-qwen3", "fp32"), list[Any]()
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "load", lambda *_, **__: before())
        trials = [one for own in flows.plant(warm, model, CONTEXT, tmp_path / "a").trials.values() for one in own]
    assert {trial.candidate.template for trial in trials} & ALIASES.keys()

    def past(*given: Any) -> NoReturn:
        taken.extend(given)
        raise StoppedError

    monkeypatch.setattr(pipeline, "TrialDatabase", past)
    with pytest.raises(StoppedError):
        pipeline.compile_model(flows.options(warm, model, CONTEXT, out=str(tmp_path / "b.lock.toml")), past=trials)
    found, _, _, renamed = taken
    assert len(found) == len(trials)
    for then, now in zip(trials, found, strict=True):
        old = then.candidate.template
        assert now.candidate.template == ALIASES.get(old, (old,))[0]
        assert (now.source == then.source) == (old not in ALIASES)
        assert (renamed.then(now.candidate) or now.candidate) == then.candidate
