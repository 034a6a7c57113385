"""Every lock in `bench/results` opens at this revision with its own sources, and those of CUDA compile."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from agentcompile.advice.exchange import Exchange
from agentcompile.build.nvrtc import Cubin
from agentcompile.catalog.semantics import verify
from agentcompile.ir.codec import decode
from agentcompile.ir.template import Source
from agentcompile.lockfile.bundle import LOCK, Bundle, beside, members, read_bundle
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.order import ordered
from agentcompile.lockfile.schema import Lock
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts as kinds
from agentcompile.replay.sources import LockSources
from tests.kernels.kept import cubin

LOCKS = sorted(Path(__file__).parents[2].glob("bench/results/**/*.lock.toml"))


def opened(path: Path) -> tuple[Lock, Bundle]:
    lock, bundle = read_lock(path), read_bundle(beside(path))
    assert bundle is not None, f"{path.name}: no bundle lies beside it"
    return lock, bundle


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_committed_lock_opens_with_all_that_its_kernels_are_made_from(path: Path) -> None:
    lock, bundle = opened(path)
    assert ordered(path, lock)
    whole = LockSources(bundle=bundle).whole(lock)
    assert whole is not None
    assert (set(whole.sources), set(whole.templates)) == (set(bundle.sources), set(bundle.templates))
    for template in bundle.templates.values():
        verify(template, file=template.id, kinds=kinds(), layouts=LAYOUTS)
    choices = [choice for plan in lock.plan for choice in plan.choices if choice.use == "kernel"]
    assert all(bundle.templates[choice.template_digest].id == choice.template for choice in choices)
    assert members(beside(path).read_bytes(), path)[LOCK] == path.read_bytes()
    assert read_lock(beside(path)) == lock


def cuda_sources() -> list[tuple[str, Source]]:
    found = {}
    for path in LOCKS:
        for digest, source in opened(path)[1].sources.items():
            if source.language == "cuda":
                found[digest] = source
    return sorted(found.items())


@pytest.mark.parametrize("part", range(2))
def test_the_sources_of_committed_cuda_locks_compile_for_their_architecture(part: int) -> None:
    sources = [(digest, source) for digest, source in cuda_sources() if zlib.crc32(digest.encode()) % 2 == part]
    assert sources
    for digest, source in sources:
        made = cubin(source)
        assert isinstance(made, Cubin), f"{digest}: {made}"
        assert {launch.entry for launch in source.launches} <= {one.entry for one in made.resources}, digest


def test_the_answers_that_advised_a_committed_lock_lie_beside_it() -> None:
    folder = Path(__file__).parents[2] / "bench" / "results" / "searches"
    lock = read_lock(folder / "sample-advised.lock.toml")
    recorded = {}
    for path in (folder / "sample-advised-answers").glob("*.exchange.json"):
        exchange = decode(Exchange, json.loads(path.read_text(encoding="utf-8")))
        recorded[exchange.digest] = exchange
    assert set(lock.evidence.advice) == set(recorded) != set()
    assert all(one.answered_by.startswith("Claude") for one in recorded.values())
