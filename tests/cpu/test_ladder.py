"""The ladder end to end on a tiny checkpoint: cut, killed and gone on with, shared out by region, reported."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from agentcompile.bench.harness.partial import FIRST_COMPILE, read_partial
from agentcompile.bench.harness.result import Case, Rung, SuiteResult, read_result
from agentcompile.bench.ladder import insides
from agentcompile.bench.ladder.climb import CONTEXT as LOCKED
from agentcompile.bench.ladder.decoder import ByHand, Replayed
from agentcompile.bench.ladder.rungs import RUNGS

from agentcompile.ir.program import Program
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.replay.load import replay_lock
from agentcompile.replay.open import open_lock
from tests.cpu import flows
from tests.cpu.flows import Ended

TINY = ("eager", "merged-projections", "no-python", "first-templates")
"""Of those whose locks need no search."""
CODE = flows.RATES_ONCE + (
    "import sys; from agentcompile.bench.ladder.recipe import run; sys.exit(run(sys.argv[1:], calm=lambda _: None))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run that was killed as soon as it had a lock, ended by its own time, and gone on with to its end."""

    killed: Ended
    kept_lock: str
    """Of the first lock, when the run was killed."""
    stopped: Ended
    done: Ended
    out: Path
    left: tuple[Path, ...]

    @property
    def result(self) -> SuiteResult:
        """What was found."""
        assert self.done.code == 0, self.done.err
        return read_result(self.out)

    @property
    def case(self) -> Case:
        """The only one."""
        (case,) = self.result.cases
        return case

    def rung(self, name: str) -> Rung:
        """One of its rungs."""
        return next(rung for rung in self.case.rungs if rung.name == name)


def impatient(home: Path, words: list[object]) -> Ended:
    """Run the recipe in a process of its own that does not wait for a machine without other work."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, words)], env=flows.environment(home), cwd=flows.ROOT,
        capture_output=True, text=True, timeout=600, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def killed_at_its_first_lock(home: Path, words: list[object], log: Path) -> Ended:
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, *map(str, words)], env=flows.environment(home), cwd=flows.ROOT, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 300
        while "choose = pytorch: " not in log.read_text() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    return Ended(code=process.wait(), out="", err=log.read_text())


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory, warm: Path, checkpoint: Callable[[str, str], Path]) -> Course:
    folder = tmp_path_factory.mktemp("ladder")
    flows.captured(warm, checkpoint("tiny-qwen3", "bf16"), LOCKED)  # no process has to import Transformers for it
    cache, out = folder / "cache", folder / "ladder.json"
    words: list[object] = [
        *("tiny-qwen3", "--threads", flows.THREADS, "--rungs", ",".join(TINY), "--stored"),
        *("--rounds", 2, "--processes", 1, "--cache", cache, "--out", out),
    ]
    killed = killed_at_its_first_lock(warm, words, folder / "killed.log")
    (path,) = cache.glob("figures-*.json")
    kept = read_partial(path).models["tiny-qwen3, choose = pytorch"]
    return Course(
        killed=killed,
        kept_lock=kept.lock,
        stopped=impatient(warm, [*words, "--resume", "--minutes", "1e-6"]),
        done=impatient(warm, [*words, "--resume"]),
        out=out,
        left=tuple(cache.glob("figures-*")),
    )


def test_a_killed_run_keeps_its_locks_and_one_out_of_time_says_how_to_go_on(gone_on: Course) -> None:
    assert gone_on.killed.code == -signal.SIGKILL
    assert gone_on.kept_lock
    assert gone_on.stopped.code == 7, gone_on.stopped.err
    assert "go on with: agentcompile bench ladder tiny-qwen3" in gone_on.stopped.err
    assert "choose = pytorch: " not in gone_on.stopped.err + gone_on.done.err
    assert gone_on.result.resumed == 2
    assert not gone_on.left


def test_every_rung_is_an_arm_that_agrees_with_fp32(gone_on: Course) -> None:
    case = gone_on.case
    assert [rung.name for rung in case.rungs] == [arm.name for arm in case.arms] == list(TINY)
    assert case.baseline == "eager"
    assert [arm.agrees for arm in case.arms] == [""] * len(TINY)
    assert [set(one.token_s) for one in case.rounds] == [set(TINY)] * 2
    assert all(rung.about for rung in case.rungs)


def test_locks_are_replayable_and_say_how_they_were_chosen(
    gone_on: Course, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gone_on.out.with_name("ladder-locks")
    for name, rule in (("no-python", "pytorch"), ("first-templates", "first")):
        lock = read_lock(folder / f"{rule}.lock.toml")
        rung = gone_on.rung(name)
        assert (rung.choose, rung.lock, lock.policy.choose) == (rule, lock.content_hash, rule)
        assert {choice.decided_by for plan in lock.plan for choice in plan.choices if choice.use == "kernel"} <= {
            "adviser"
        }
        assert any(choice.use == "kernel" for plan in lock.plan for choice in plan.choices) is (rule == "first")
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    model = gone_on.out.parent / "cache/presets/tiny-qwen3"
    lock_file = folder / "first.lock.toml"
    replayed = flows.verb(warm, "replay", lock_file, "--model", model, "--threads", flows.THREADS, "--locked")
    assert replayed.code == 0, replayed.err
    assert "choose = first" in replayed.err
    loaded = replay_lock(lock_file, flows.options(warm, model, read_lock(lock_file).model.context))
    assert len(loaded.generate([3, 5, 7], max_new_tokens=4, ignore_eos=True).tokens) == 4  # type: ignore[union-attr]


def test_shares_of_every_rung_from_the_second_on_sum_to_a_token(gone_on: Course) -> None:
    assert gone_on.rung("eager").rest is None
    for name in TINY[1:]:
        rung = gone_on.rung(name)
        assert rung.rest is not None
        assert sum(one.share for one in rung.shares) + rung.rest == pytest.approx(1)
        assert all(one.share >= 0 for one in rung.shares)
        assert 0 <= rung.rest < 1, name
    sites = {one.kind: one.sites for one in gone_on.rung("first-templates").shares}
    assert (sites["rmsnorm-linear"], sites["linear-residual"], sites["rmsnorm-linear-argmax"]) == (2, 4, 1)
    assert {one.kind: one.sites for one in gone_on.rung("no-python").shares}["attention"] == 2


def test_every_gain_has_owners_that_sum_to_it(gone_on: Course) -> None:
    measured = [arm.name for arm in gone_on.case.arms if arm.state == "measured"]
    for below, name in itertools.pairwise(measured):
        gain = gone_on.rung(name).gain
        assert gain is not None
        assert gain.over == below
        assert sum(one.gain_s for one in (*gain.owners, gain.rest)) == pytest.approx(gain.before_s - gain.after_s)
        owners = {one.name for one in gain.owners}
        if below == "eager":
            assert owners == {RUNGS[2].change}
        else:
            # Sections by hand, single operators and fused regions are told by one vocabulary.
            assert {"qknorm-rope-attention-decode", "rmsnorm-gateup-silu-mul", "rmsnorm-linear"} <= owners, owners


def test_a_result_is_drawn(gone_on: Course, tmp_path: Path) -> None:
    assert gone_on.result
    drawn = flows.verb(tmp_path, "bench", "report", gone_on.out, "--out", tmp_path / "report")
    assert drawn.code == 0, drawn.err
    text = (tmp_path / "report/report.md").read_text(encoding="utf-8")
    assert "Gain by owner, chat-small" in text
    assert "Gain by owner" in (tmp_path / "report/report.html").read_text(encoding="utf-8")
    # Where others kept the machine busy no round counts, and there is nothing to draw.
    measured = any(arm.state == "measured" for arm in gone_on.case.arms)
    for end in ("png", "svg"):
        assert (tmp_path / f"report/ladder-tiny-qwen3-chat-small.{end}").is_file() is measured


def test_the_samples_lie_beside_and_no_folder_of_the_machine_is_named(gone_on: Course) -> None:
    assert list(json.loads(gone_on.out.with_suffix(".samples.json").read_text())) == [gone_on.case.key]
    assert str(gone_on.out.parent) not in gone_on.out.read_text(encoding="utf-8")


def test_what_does_not_exist_is_refused_with_the_nearest_name(warm: Path) -> None:
    flows.verb(warm, "bench", "ladder", "tiny-qwen").refuses(2, "tiny-qwen", "tiny-qwen3")
    flows.verb(warm, "bench", "ladder", "sample", "--rungs", "eagre").refuses(2, "--rungs: 'eagre'", "eager")
    flows.verb(warm, "bench", "ladder", "sample", "--workload", "chats").refuses(2, "--workload: 'chats'")
    flows.verb(warm, "bench", "ladder", "sample", "--rounds", "0").refuses(2, "--rounds: 0")


def test_a_lock_that_does_not_compile_is_a_row_with_its_reason(tmp_path: Path, warm: Path) -> None:
    from agentcompile.bench.harness.partial import Partial, PartialFile
    from agentcompile.bench.ladder.locks import Locks

    from tests.cpu.test_suite_run import setup
    from tests.cpu.trials import Commands

    file = PartialFile(tmp_path / "figures-x.json", Partial(identity={"models": "x"}))
    file.folder.mkdir()
    locks = Locks(name="x", model=tmp_path / "none", setup=setup(tmp_path, Commands()), file=file, context=48)
    assert locks.of("first") is None
    assert locks.failure("first").startswith("compile --choose first: exit code 2")
    assert locks.progress("first").times[FIRST_COMPILE].seconds is None


class Host:
    """Captures where there is no GPU, as a CUDA graph does: the body runs once, and after that a replay writes what it
    wrote then, to the same places, without a line of Python that a reader of the arm could notice."""

    def __init__(self) -> None:
        self.arm: ByHand | None = None
        self.captured = 0

    def __call__(self, body: Callable[[], None]) -> Replayed:
        self.captured += 1
        body()
        arm = self.arm
        assert arm is not None
        place = arm._logits

        def replay() -> None:
            seen = arm._logits
            body()
            if place is not None and arm._logits is not None and arm._logits is not seen:
                place.copy_(arm._logits)
            arm._logits = seen

        return SimpleNamespace(replay=replay)  # type: ignore[return-value]


def captured_arm(request_of: dict[str, object]) -> tuple[ByHand, Host]:
    host = Host()
    # The arm warms up as soon as it is made, before anybody else has it.
    quiet = {**request_of, "prompts": []}
    host.arm = ByHand(quiet, merged=True, capture=host)
    return host.arm, host


@pytest.fixture(scope="module")
def request_of(checkpoint: Callable[[str, str], Path]) -> dict[str, object]:
    model = checkpoint("tiny-qwen3", "bf16")
    return {"model": str(model), "device": "cpu", "threads": 1, "context": 48, "prompts": [4]}


def test_apart_merged_and_captured_steps_make_the_same_tokens(request_of: dict[str, object]) -> None:
    ids = [3, 5, 7, 11]
    captured, host = captured_arm(request_of)
    arms = [ByHand(request_of, merged=False), ByHand(request_of, merged=True), captured]
    made = [arm.generate(ids, 12).tokens for arm in arms]
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 12
    for arm in arms:
        tokens, tops = arm.tops(ids, 12, 5)
        assert tokens == made[0]
        assert all(token == row[0] for token, row in zip(tokens, tops, strict=True))
        assert arm.generate(ids, 12).tokens == made[0]
    assert host.captured == 1


def test_sections_are_timed_by_leaving_them_out_where_the_host_has_no_clock(request_of: dict[str, object]) -> None:
    arm, host = captured_arm(request_of)
    with torch.inference_mode():
        found = arm._left_out([3, 5, 7, 11], 12)
    assert Counter({part["kind"]: part["sites"] for part in found["parts"]}) == {
        "embedding": 1, "position-tables": 1, "rmsnorm-linear": 2, "qknorm-rope-attention-decode": 2,
        "linear-residual": 4, "rmsnorm-gateup-silu-mul": 2, "rmsnorm-linear-argmax": 1,
    }  # fmt: skip
    assert found["token_ns"] > 0
    assert host.captured == 1 + 1 + 7  # the loop's step, the whole step, and the step without each section
    # What was left out is back: a look changes nothing.
    assert arm.generate([3, 5, 7, 11], 6).tokens == ByHand(request_of, merged=True).generate([3, 5, 7, 11], 6).tokens


def test_every_call_and_operator_of_a_step_belongs_to_one_site(planted: Callable[[str, str], Path], warm: Path) -> None:
    lock = planted("tiny-qwen3", "bf16")
    opened = open_lock(lock, Options(threads=flows.THREADS, home=str(warm)))
    program, sites = insides.stages(opened, 20)
    assert sum(stage.calls for stage in sites) == len(program.calls)
    nodes = sorted(node for stage in sites for node in stage.nodes)
    assert nodes == list(range(len(opened.model.captured.decode.nodes)))
    parts = insides.clocked(opened, [10] * len(program.calls), 5, 20)
    assert sum(part["ns"] for part in parts) == pytest.approx(2 * len(program.calls))


def test_a_region_that_is_left_out_takes_what_the_step_takes_less(
    planted: Callable[[str, str], Path], warm: Path
) -> None:
    lock = planted("tiny-qwen3", "bf16")
    opened = open_lock(lock, Options(threads=flows.THREADS, home=str(warm)))
    program, sites = insides.stages(opened, 20)
    parts, kept = insides.parted(program, sites, lambda some: 100.0 * len(some.calls))
    assert not kept
    assert sum(part["ns"] for part in parts) == 100 * len(program.calls)
    assert {part["kind"]: part["sites"] for part in parts}["rmsnorm-gateup-silu-mul"] == 2

    def lacking(some: Program) -> float:
        if len(some.calls) < len(program.calls):
            raise KeyError("a buffer")
        return 1.0

    parts, kept = insides.parted(program, sites, lacking)
    assert (parts, len(kept)) == ([], len({stage.region.id for stage in sites}))
