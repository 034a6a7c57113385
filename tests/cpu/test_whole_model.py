"""The last gate before a lock: right models pass, one wrong kernel is found, and a wrong capture stops all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile import catalog
from agentcompile.events import ChoiceMade, Event, ModelChecked, Warned
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Fallback, Kernel, Plan, TimedOut
from agentcompile.jobs import Failed
from agentcompile.judge import WorkerJudge
from agentcompile.layouts import LAYOUTS
from agentcompile.lockfile import read_lock
from agentcompile.machine import judge_of, this_machine
from agentcompile.materialize import specialise
from agentcompile.regions.kinds import facts as kinds
from agentcompile.session import RunDirectory
from agentcompile.whole import Gate, units
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.models import tiny

Checkpoints = Callable[[str, str], Path]
PLANTED = {
    "wrong": "if (at > 30) at = 0;",
    "crash": "if (at > 30) *(volatile int*)nullptr = 1;",
    "hang": "while (at > 30) { volatile int waits = 0; (void)waits; }",
}
"""What a kernel does beyond position 30, where no check of it alone looked."""


def gate(home: Path, made: flows.Planted, judge: WorkerJudge, events: list[Event], *folders: Path) -> Gate:
    here = this_machine(flows.options(home, made.model.captured.checkpoint, CONTEXT))
    found = catalog.load([catalog.default_root(), *folders], kinds=kinds(), layouts=LAYOUTS)
    return Gate(
        here=here,
        captured=made.model.captured,
        constants=made.model.constants,
        cuts=made.cuts,
        templates={template.id: template for template in found.templates},
        judge=judge,
        emit=events.append,
        seed=0,
    )


def plans(made: flows.Planted) -> list[Plan]:
    covers = [*made.planned.decode, made.planned.prefill]
    return [
        Plan(regime=cut.partition.regime, parts=parts, exact=True) for cut, parts in zip(made.cuts, covers, strict=True)
    ]


def planted(made: flows.Planted, folder: Path, fault: str) -> tuple[list[Plan], str]:
    """The plans with a wrong kernel for the position tables, and the region that has it."""
    original, home = flows.ROOT / "templates/position-tables/copy", folder / "position-tables" / fault
    home.mkdir(parents=True)
    (home / "template.toml").write_text((original / "template.toml").read_text())
    text = (original / "kernel.cpp").read_text().replace("a.positions[0]", "at")
    text = text.replace("{\n", "{\n    long long at = a.positions[0];\n    " + PLANTED[fault] + "\n", 1)
    assert PLANTED[fault] in text
    (home / "kernel.cpp").write_text(text)
    (template,) = catalog.load([folder], kinds=kinds(), layouts=LAYOUTS).templates
    first, *others = plans(made)
    region = next(
        made.cuts[0].regions[part.region]
        for part in first.parts
        if made.cuts[0].regions[part.region].kind == "position-tables"
    )
    target = made.facts.target
    source = specialise(template, region, (), target)
    candidate = Candidate(
        region=region.id,
        regime=region.regime,
        template=template.id,
        template_digest=template.digest,
        params=(),
        target=target.digest,
    )
    kernel = Kernel(candidate=candidate, source=source.digest, speedup=9.0, half_width=0.0, decided_by="human")
    parts = tuple(replace(part, choice=kernel) if part.region == region.id else part for part in first.parts)
    return [replace(first, parts=parts), *others], region.id


@pytest.fixture(scope="module")
def made(warm: Path, checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> flows.Planted:
    out = tmp_path_factory.mktemp("whole") / "a.lock.toml"
    return flows.plant(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT, out)


@pytest.fixture(scope="module")
def judge(warm: Path, made: flows.Planted) -> Iterator[WorkerJudge]:
    with judge_of(this_machine(flows.options(warm, made.model.captured.checkpoint, CONTEXT)), 0) as found:
        yield found


def test_a_kernel_that_is_wrong_from_some_position_on_is_found_and_the_others_stay(
    warm: Path, made: flows.Planted, judge: WorkerJudge, tmp_path: Path
) -> None:
    (wrong, region), events = planted(made, tmp_path, "wrong"), list[Event]()
    left, found = gate(warm, made, judge, events, tmp_path).right(wrong, made.planned.layouts)
    assert found.ok
    assert {one.phase for one in found.phases} == {"decode", "prefill"}
    assert {region for region, _ in units(wrong)} - {region for region, _ in units(left)} == {region}
    fallen = next(part.choice for part in left[0].parts if part.region == region)
    assert isinstance(fallen, Fallback)
    assert "position 3" in fallen.reason
    assert [event.region for event in events if isinstance(event, ChoiceMade)] == [region]
    assert [event.text for event in events if isinstance(event, Warned)]
    # Whoever takes the run up again asks nobody: all of it is in the events.
    known = {event.plans: event.check for event in events if isinstance(event, ModelChecked)}
    again = replace(gate(warm, made, judge, events, tmp_path), judge=None, known=known)  # type: ignore[arg-type]
    assert again.right(wrong, made.planned.layouts) == (left, found)


def test_a_kernel_that_crashes_in_the_model_alone_falls_back(
    warm: Path, made: flows.Planted, judge: WorkerJudge, tmp_path: Path
) -> None:
    wrong, region = planted(made, tmp_path, "crash")
    left, found = gate(warm, made, judge, [], tmp_path).right(wrong, made.planned.layouts)
    assert found.ok
    fallen = next(part.choice for part in left[0].parts if part.region == region)
    assert isinstance(fallen, Fallback)
    assert "crashed" in fallen.reason


def test_a_kernel_that_hangs_in_the_model_is_ended_and_says_where(
    warm: Path, made: flows.Planted, judge: WorkerJudge, tmp_path: Path
) -> None:
    wrong, _ = planted(made, tmp_path, "hang")
    request = gate(warm, made, judge, [], tmp_path).request(wrong, made.planned.layouts)
    ended = judge.feed(replace(request, out=str(tmp_path / "logits")), limit_s=3.0)
    assert isinstance(ended, Failed)
    assert isinstance(ended.verdict, TimedOut)


@pytest.mark.parametrize("name", ["phi3-longrope", "hunyuan", "recurrent-gemma"])
def test_a_model_that_is_captured_wrong_is_never_locked(name: str, warm: Path, tmp_path: Path) -> None:
    model, lock = tiny.write(name, tmp_path / name), tmp_path / "a.lock.toml"
    settings = ("--context", 128, "--threads", flows.THREADS, "--choose", "pytorch")
    done = flows.verb(warm, "compile", model, *settings, "--out", lock, "--run-dir", tmp_path / "run")
    assert done.code in (4, 2), done.out + done.err
    assert name in ("recurrent-gemma", "phi3-longrope") or done.code == 4
    done.refuses(done.code)
    assert not lock.exists()


def test_the_lock_says_how_near_to_float32_the_model_is_and_a_resumed_run_checks_nothing_again(
    warm: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    lock, run = tmp_path / "a.lock.toml", tmp_path / "run"
    settings = ("--context", CONTEXT, "--threads", flows.THREADS, "--choose", "pytorch")
    done = flows.verb(warm, "compile", checkpoint("tiny-llama", "bf16"), *settings, "--out", lock, "--run-dir", run)
    assert done.code == 0, done.err
    rows = {row.phase: row for row in read_lock(lock).evidence.model}
    assert set(rows) == {"decode", "prefill"}
    for row in rows.values():
        assert (row.oracle, row.verdict) == ("transformers", "pass")
        assert float(row.kl) <= 2 * float(row.kl_eager)
        assert {1, 2, 17} <= set(row.prompts)
    before = lock.read_bytes()
    lock.unlink()
    assert flows.verb(warm, "compile", "--resume", "--run-dir", run).code == 0
    assert lock.read_bytes() == before
    assert sum(isinstance(event, ModelChecked) for event in RunDirectory.open(run).events()) == 1
