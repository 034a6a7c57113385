"""The suite end to end on the sample checkpoint: cut and gone on with, held against fp32, reported and compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.partial import FIRST_COMPILE, OutOfTime, Partial, PartialFile, read_partial
from agentcompile.bench.harness.rates import Round
from agentcompile.bench.harness.result import ArmResult, Case, SuiteResult, read_result, samples_digest
from agentcompile.bench.harness.times import Build, Took
from agentcompile.bench.harness.trial import OURS, Setup, command_of
from agentcompile.bench.harness.workload import make_workload
from agentcompile.bench.harness.workloads import Shape, Suite, load_workloads
from agentcompile.bench.suite.finding import Asked, Locks, find

from agentcompile.lockfile.files import read_lock
from tests.cpu import flows
from tests.cpu.flows import Ended
from tests.cpu.trials import Commands, setup

DISTURBED = "no round was undisturbed"
"""What an arm's row says where others kept the machine busy: no test may depend on an idle one."""
KEYS = ["sample/chat-small/greedy", "sample/chat-small/sampled"]
Planted = Callable[[str, str], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run whose time ended after its first case, and what became of it."""

    stopped: Ended
    kept: tuple[Round, ...]
    """Rounds that the run had when it stopped."""
    refused: Ended
    """Going on with other settings."""
    foreign: Ended
    """Going on with another interpreter for a peer."""
    done: Ended
    """Going on."""
    out: Path
    left: tuple[Path, ...]
    """Partial results that are still there."""

    @property
    def result(self) -> SuiteResult:
        """What was found; one round is too few for the bounds of this suite, which is then undecided."""
        assert self.done.code == 7, self.done.err
        assert self.done.err.count("UNDECIDED: sample/chat-small/") == len(KEYS), self.done.err
        return read_result(self.out)


def impatient(home: Path, *words: object) -> Ended:
    """Run `agentcompile bench` in a process of its own that does not wait for a machine without other work."""
    code = "import sys; from agentcompile.bench.suite.run import run; sys.exit(run(sys.argv[1:], calm=lambda _: None))"
    code = flows.RATES_ONCE + code
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], env=flows.environment(home), cwd=flows.ROOT,
        capture_output=True, text=True, timeout=600, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory, warm: Path, planted: Planted) -> Course:
    """One run of both modes for all tests of this file."""
    folder = tmp_path_factory.mktemp("suite")
    cache, out = folder / "cache", folder / "found.json"
    words: list[object] = [
        *("--suite", "ci", "--lock", planted("sample", "bf16"), "--rounds", 1, "--processes", 1),
        *("--arms", "hf-eager,agentcompile,llama.cpp", "--mode", "greedy", "--mode", "sampled"),
        *("--threads", flows.THREADS, "--cache", cache, "--out", out),
    ]
    stopped = impatient(warm, *words, "--minutes", "1e-6")
    (path,) = cache.glob("figures-*.json")
    return Course(
        stopped=stopped,
        kept=read_partial(path).models["sample.chat-small.greedy"].outcome.rounds,
        refused=flows.verb(warm, "bench", *words, "--resume", "--seconds", "5"),
        foreign=flows.verb(warm, "bench", *words, "--resume", "--llama-python", sys.executable),
        done=impatient(warm, *words, "--resume"),
        out=out,
        left=tuple(cache.glob("figures-*")),
    )


def arm(case: Case, name: str) -> ArmResult:
    found = case.arm(name)
    assert found is not None
    return found


def test_a_run_out_of_time_says_how_to_go_on(gone_on: Course) -> None:
    assert gone_on.stopped.code == 7, gone_on.stopped.err
    assert (
        "stopped after 1e-06 minutes with 1 of 2 rounds; go on with: agentcompile bench --suite" in gone_on.stopped.err
    )
    assert gone_on.stopped.err.rstrip().endswith("--resume")
    assert "Traceback" not in gone_on.stopped.err


def test_a_run_is_not_gone_on_with_under_other_settings(gone_on: Course) -> None:
    gone_on.refused.refuses(2, "--resume: ", "seconds: 0 there, 5 here")
    gone_on.foreign.refuses(2, "--resume: ", "llama-python: none there, ")


def test_the_result_says_which_prompt_weights_and_machine_it_is_of(gone_on: Course) -> None:
    result = gone_on.result
    assert {len(case.prompt) for case in result.cases} == {64}
    assert len({case.prompt for case in result.cases}) == 1, "one prompt in both modes"
    assert {case.checked_tokens for case in result.cases} == {64}
    assert len({one.machine for case in result.cases for one in case.rounds}) == 1
    assert all(one.machine and set(one.waited) == set(one.token_s) for case in result.cases for one in case.rounds)
    (compiled,) = result.compiled.values()
    assert compiled.weights
    assert result.luck == {}, "one process says nothing of others"


def test_a_lock_whose_cache_is_too_short_is_refused_before_anything_runs(warm: Path, planted: Planted) -> None:
    words = ("--suite", "cpu", "--lock", planted("sample", "bf16"), "--workload", "reasoning")
    flows.verb(warm, "bench", *words).refuses(2, "--lock: ", "its cache holds 96 tokens, and a workload has 2304")


def test_a_run_that_goes_on_keeps_its_rounds_and_leaves_nothing_beside_its_result(gone_on: Course) -> None:
    result = gone_on.result
    assert result.resumed == 1
    assert [case.key for case in result.cases] == KEYS
    (was,), (found,) = gone_on.kept, result.cases[0].rounds
    assert found.token_s == {name: was.token_s(name) for name in was.visits}
    assert (found.kept, found.read_bytes_per_s) == (not was.contended, was.read_bytes_per_s)
    assert not gone_on.left


def test_every_arm_has_a_row_and_the_one_that_is_not_here_says_why(gone_on: Course) -> None:
    for case in gone_on.result.cases:
        assert (case.prompt_tokens, case.new_tokens, case.baseline) == (32, 64, "hf-eager")
        assert [row.name for row in case.arms] == ["hf-eager", "agentcompile", "llama.cpp"]
        foreign = arm(case, "llama.cpp")
        assert foreign.state == "absent"
        assert "--llama-python" in foreign.reason
        assert set(case.rounds[0].token_s) == {"hf-eager", "agentcompile"}
        for row in case.arms[:2]:
            assert (row.state, row.reason) in (("measured", ""), ("failed", DISTURBED)), row.name
            assert (row.tokens_per_s is None) == (row.state == "failed")
            assert row.facts["threads"] == str(flows.THREADS)


def test_greedy_tokens_of_both_arms_agree_with_fp32(gone_on: Course) -> None:
    for case in gone_on.result.cases:
        assert [arm(case, name).agrees for name in ("hf-eager", "agentcompile")] == ["", ""]


def test_the_samples_are_those_that_the_result_was_made_from(gone_on: Course) -> None:
    samples = json.loads(gone_on.out.with_suffix(".samples.json").read_text(encoding="utf-8"))
    assert list(samples) == KEYS
    for case in gone_on.result.cases:
        assert samples_digest(samples[case.key]) == case.samples
        for row in case.arms[:2]:
            count = len(samples[case.key][row.name])
            assert count >= 2
            assert row.token_s is None or row.token_s.count == count


def test_the_lock_and_its_regions_are_in_the_result(gone_on: Course, planted: Planted) -> None:
    compiled = gone_on.result.compiled["sample"]
    assert compiled.lock == read_lock(planted("sample", "bf16")).content_hash
    assert compiled.compile_s is None
    shares = [share.ns * share.sites for share in compiled.regions]
    assert shares == sorted(shares, reverse=True)
    assert all(share > 0 for share in shares)
    assert any("/" in region.choice and region.floor_ns > 0 for region in compiled.regions)


def test_the_result_names_no_folder_of_the_machine(gone_on: Course) -> None:
    assert str(gone_on.out.parent) not in gone_on.out.read_text(encoding="utf-8")


def test_a_result_is_drawn_and_compared(gone_on: Course, tmp_path: Path) -> None:
    assert gone_on.result.cases
    drawn = flows.verb(tmp_path, "bench", "report", gone_on.out, "--out", tmp_path / "report")
    assert drawn.code == 0, drawn.err
    text = (tmp_path / "report/report.md").read_text(encoding="utf-8")
    assert all(name in text for name in ("hf-eager", "agentcompile", "llama.cpp", "chat-small"))
    compared = flows.verb(tmp_path, "bench", "compare", gone_on.out, gone_on.out, "--fail-on-slower")
    assert compared.code == 0, compared.err
    measured = {row.name for case in gone_on.result.cases for row in case.arms if row.state == "measured"}
    assert all(name in compared.out for name in measured)


def locks(folder: Path, suite: Suite, made: Setup, given: Path | None = None) -> Locks:
    file = PartialFile(folder / "figures-x.json", Partial(identity={"models": "x"}))
    file.folder.mkdir()
    return Locks(suite=suite, setup=made, file=file, given=given, seconds=0, cache_bytes=())


def asked(name: str, model: Path = flows.SAMPLE, **absent: str) -> Asked:
    """A case of few tokens."""
    shape = Shape(name=name, prompt=4, new=8, about="made up")
    work = make_workload(f"sample.{name}.greedy", flows.SAMPLE, seed=0, tokens=(shape.prompt, shape.new))
    reasons = {arm.replace("_", "-"): reason for arm, reason in absent.items()}
    return Asked(
        model="sample", shape=shape, mode="greedy", workload=replace(work, model=model), absent=reasons, cache_bytes=100
    )


def suite(*arms: str) -> Suite:
    return replace(load_workloads().of("ci"), arms=arms, baseline="max-autotune", lock={})


def rows(cases: Sequence[Case]) -> list[tuple[str, str, str]]:
    return [(row.name, row.state, row.reason) for case in cases for row in case.arms]


def test_arms_that_fail_are_rows_with_their_reasons_and_the_rest_goes_on(tmp_path: Path) -> None:
    broken = tmp_path / "sample"
    broken.mkdir()
    for path in flows.SAMPLE.glob("*.*"):
        (broken / path.name).write_bytes(path.read_bytes()[: 1 << 20])  # what a copy leaves where the disk is full
    fakes = Commands({"hf-compile": "os.kill(os.getpid(), 9)"})

    def command(name: str, build: Build | None, made: Setup) -> list[str]:
        return (command_of if name == "hf-eager" else fakes)(name, build, made)

    made = replace(setup(tmp_path, fakes), command=command, rounds=1, processes=1)
    source = locks(tmp_path, suite("hf-eager", "hf-compile", "max-autotune", OURS), made)
    source.file.progress("sample").times[FIRST_COMPILE] = Took(seconds=None, reason="exit code 6: no room")
    found = find([asked("a", broken), asked("b", hf_eager="not wanted")], source.suite, source, flows.CEILING)
    first, *others = rows(found.cases)
    assert first[:2] == ("hf-eager", "failed")
    assert first[2].startswith("exit code 1: ")
    assert "safetensors" in first[2].lower() or "incomplete" in first[2].lower(), first[2]
    disturbed = [("max-autotune", "measured", ""), ("max-autotune", "failed", DISTURBED)]
    for killed, living, ours in (others[:3], others[4:]):
        assert killed == ("hf-compile", "failed", "killed by signal 9")
        assert living in disturbed
        assert ours == ("agentcompile", "failed", "compile: exit code 6: no room")
    assert others[3] == ("hf-eager", "absent", "not wanted")
    assert [list(case.rounds[0].token_s) for case in found.cases] == [["max-autotune"]] * 2
    assert not found.compiled


def test_a_committed_lock_that_does_not_hold_is_said_and_another_one_compiled(
    tmp_path: Path, warm: Path, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    lock = planted("sample", "bf16")
    other = flows.rewrite(read_lock(lock), tmp_path / "other.lock.toml", target={"device": "Another CPU"})
    said: list[str] = []

    def pause() -> None:
        raise OutOfTime  # before what would be compiled

    made = replace(setup(tmp_path, Commands(), say=said.append, pause=pause), threads=flows.THREADS)
    holds = locks(tmp_path, replace(suite(OURS), lock={"sample": str(lock)}), made)
    build = holds.of(asked("a"))
    assert build is not None
    assert (build.lock, build.home, said) == (lock, None, [])
    with pytest.raises(OutOfTime):
        replace(holds, suite=replace(holds.suite, lock={"sample": str(other)})).of(asked("a"))
    assert said.pop().startswith("other.lock.toml: does not hold here, so sample is compiled: ")
    # Peers would have one thread, and ours those of its lock.
    with pytest.raises(OutOfTime):
        replace(holds, setup=replace(made, threads=flows.THREADS + 1)).of(asked("a"))
    assert f"target.threads: locked {flows.THREADS}, here {flows.THREADS + 1}" in said.pop()
    assert not said
