"""Partial results of the figures: what is kept, which run it belongs to, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.identity import Identity, WorkloadJob, differences, identity_of, key_of
from agentcompile.bench.harness.partial import (
    OutOfTime,
    Partial,
    PartialFile,
    Progress,
    digest_of_lock,
    open_partial,
    read_partial,
)
from agentcompile.bench.harness.rates import Round, Visit
from agentcompile.bench.harness.times import Build, Imported, Took
from agentcompile.bench.harness.trial import Outcome
from agentcompile.bench.harness.workload import Workload

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.target import Target
from agentcompile.lockfile.files import read_lock, write_lock

LOCK = Path(__file__).resolve().parents[2] / "bench/results/sample.lock.toml"
WORK = Workload(
    name="sample",
    model=Path("sample"),
    ids=(1, 2, 3),
    new=8,
    context=16,
    token_bytes=1000,
    weight_bytes=900,
    cache_bytes=100,
    parameters=1,
)
JOB = WorkloadJob(workload=WORK, arms=("hf-eager", "agentcompile"))
TARGET = Target(kind="cpu", device="made up", arch="x86_64", isa=("avx2",), threads=2, cache_bytes=(1, 2, 3))
SETTINGS = {"device": "cpu", "seed": 0, "rounds": 5, "processes": 3, "threads": 2}
CLEAN = {"revision": "a" * 40, "changed_since": False}


def identity(
    job: WorkloadJob = JOB,
    target: Target = TARGET,
    revision: dict[str, object] | None = None,
    lock: Path | None = None,
    **settings: object,
) -> Identity:
    return identity_of([job], target, revision or CLEAN, lock=lock, settings={**SETTINGS, **settings})


def other_lock(folder: Path) -> Path:
    lock = read_lock(LOCK)
    write_lock(folder / "other.lock.toml", replace(lock, model=replace(lock.model, context=lock.model.context + 1)))
    return folder / "other.lock.toml"


def ignored(text: str) -> None:
    """What a run says is not looked at."""


def begin(cache: Path, who: Identity, *, resume: bool = False) -> Partial:
    """Open a partial result, keep one import time in it, and let it go, as a run that is cut does."""
    cache.mkdir(exist_ok=True)
    with open_partial(cache, who, resume=resume, until_s=None, say=ignored) as file:
        if file.content.imported is None:
            file.content.imported = Imported(median_ms=0.1 + 0.2, samples_ms=(0.1, 1 / 3), with_torch=False)
            file.keep()
        return file.content


def path_of(cache: Path, who: Identity) -> Path:
    return cache / f"figures-{key_of(who)}.json"


def timed(process: int, token_s: float) -> Round:
    visit = Visit(first_s=1 / 3, token_s=token_s, generations=3, waited=1e-17, others=0.1 + 0.2, tries=1)
    return Round(process=process, visits={"hf-eager": (visit, visit)}, read_bytes_per_s=2e10 / 3)


def test_what_is_kept_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    outcome = Outcome(
        facts={"hf-eager": {"torch": "2.13", "threads": 2, "freezing": True, "share": 1 / 7, "mode": None}},
        load_s={"hf-eager": (1 / 3, 2.0)},
        reasons={"llama.cpp": "no interpreter"},
        agreement={"hf-eager": ""},
        reference=((7, 8), ((7, 1), (8, 2))),
        rounds=(timed(0, 0.1), timed(1, 1e-9 / 3)),
    )
    progress = Progress(
        times={"first compile": Took(seconds=1 / 7), "replay": Took(seconds=None, reason="exit code 3")},
        folder="sample-x",
        lock="abc",
        outcome=outcome,
        accuracy={"windows": 64, "kl_ratio": 1.0, "text_digest": "d", "mean_kl": {"ours": 1 / 3}},
    )
    content = Partial(identity=identity(), resumed=2, models={"sample": progress})
    PartialFile(tmp_path / "figures-x.json", content).keep()
    assert read_partial(tmp_path / "figures-x.json") == content
    assert [path.name for path in tmp_path.iterdir()] == ["figures-x.json"]


def test_a_visit_that_was_kept_before_it_was_noted_whether_tokens_varied_is_read_back() -> None:
    (steady, _), data = timed(0, 0.1).visits["hf-eager"], json.loads(json.dumps(encode(timed(0, 0.1))))
    assert [noted.pop("same") for noted in data["visits"]["hf-eager"]] == [True, True]
    assert decode(Round, data) == timed(0, 0.1)
    varying = replace(steady, same=False)
    assert decode(Visit, encode(varying)) == varying != steady


def test_a_run_that_is_cut_goes_on_with_what_it_kept(tmp_path: Path) -> None:
    first = begin(tmp_path, identity())
    again = begin(tmp_path, identity(), resume=True)
    assert again.imported == first.imported
    assert begin(tmp_path, identity(), resume=True).resumed == 2


def test_without_resume_a_partial_result_is_replaced_with_what_belongs_to_it(tmp_path: Path) -> None:
    path = path_of(tmp_path, identity())
    begin(tmp_path, identity())
    (path.with_suffix("") / "sample-x" / "home").mkdir(parents=True)
    with open_partial(tmp_path, identity(), resume=False, until_s=None, say=ignored) as file:
        assert file.content == Partial(identity=identity()) == read_partial(path)
        assert not list(file.folder.iterdir())


def test_a_damaged_partial_result_is_replaced_without_resume(tmp_path: Path) -> None:
    path_of(tmp_path, identity()).write_text("{")
    assert begin(tmp_path, identity()).resumed == 0


def test_resuming_where_nothing_was_cut_begins_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    with open_partial(tmp_path, identity(), resume=True, until_s=None, say=said.append) as file:
        assert file.content.resumed == 0
    assert "no run was cut there" in said[0]


def changed(name: str, folder: Path) -> Identity:
    made = {
        "seed": lambda: identity(seed=1),
        "rounds": lambda: identity(rounds=4),
        "processes": lambda: identity(processes=1),
        "threads": lambda: identity(threads=1),
        "lock": lambda: identity(lock=other_lock(folder)),
        "sample.arms": lambda: identity(replace(JOB, arms=("hf-eager",))),
        "sample.prompt": lambda: identity(replace(JOB, workload=replace(WORK, ids=(1, 2, 4)))),
        "sample.new": lambda: identity(replace(JOB, workload=replace(WORK, new=9))),
        "target.device": lambda: identity(target=replace(TARGET, device="another")),
        "target.toolchain": lambda: identity(target=replace(TARGET, toolchain="g++ 99")),
        "revision": lambda: identity(revision={"revision": "b" * 40, "changed_since": False}),
    }
    return made[name]()


@pytest.mark.parametrize(
    "name",
    ["seed", "rounds", "processes", "threads", "lock", "sample.arms", "sample.prompt", "sample.new", "target.device",
     "target.toolchain", "revision"],
)  # fmt: skip
def test_a_run_that_differs_is_not_gone_on_with_and_what_differs_is_named(name: str, tmp_path: Path) -> None:
    first, second = identity(lock=LOCK), changed(name, tmp_path)
    if name != "lock":
        second["lock"] = first["lock"]
    cache = tmp_path / "cache"
    begin(cache, first)
    with pytest.raises(AgentCompileError) as refused:
        begin(cache, second, resume=True)
    assert refused.value.exit_code == ExitCode.USAGE
    assert f"{name}: " in refused.value.message
    assert path_of(cache, first).name in refused.value.message
    assert "begin anew" in refused.value.hint
    assert [path.name for path in cache.iterdir()] == [path_of(cache, first).name]
    begin(cache, second)
    assert begin(cache, first, resume=True).resumed == 1, "a run of its own leaves the other's result alone"


def test_only_what_differs_is_named_with_both_values() -> None:
    assert differences(identity(seed=3), identity()) == ["seed: 3 there, 0 here"]
    assert differences(identity(), identity()) == []
    assert differences(identity(lock=LOCK), identity())[0].endswith("… there, none here")


def test_a_run_on_another_checkpoint_or_device_is_no_obstacle(tmp_path: Path) -> None:
    begin(tmp_path, identity(device="cuda:0"))
    begin(tmp_path, identity(replace(JOB, workload=replace(WORK, name="qwen3-0.6b"))))
    assert begin(tmp_path, identity(), resume=True).resumed == 0


def test_sources_that_were_changed_since_their_revision_are_known_by_their_content() -> None:
    dirty = {"revision": "a" * 40, "changed_since": True}
    assert identity(revision=dirty)["revision"].startswith(f"{'a' * 40}+")
    assert identity(revision=dirty) == identity(revision=dirty)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"version": 1, "ident', "not a partial result"),
        ("\x00\x01", "not a partial result"),
        ("[]", "damaged"),
        ('{"version": 1, "identity": {"seed": 0}}', "identity.seed"),
        ('{"version": 1, "identity": {}, "rounds": 3}', "rounds"),
        ('{"version": 2}', "version: is 2"),
    ],
)
def test_a_damaged_partial_result_is_an_error_that_names_file_and_remedy(text: str, word: str, tmp_path: Path) -> None:
    path = path_of(tmp_path, identity())
    path.write_text(text)
    with pytest.raises(AgentCompileError) as refused:
        begin(tmp_path, identity(), resume=True)
    assert refused.value.exit_code == ExitCode.USAGE
    assert str(path) in refused.value.message
    assert word in refused.value.message
    assert "leave --resume out" in refused.value.hint
    assert path.read_text() == text


def test_two_processes_do_not_share_a_partial_result(tmp_path: Path) -> None:
    with (
        open_partial(tmp_path, identity(), resume=False, until_s=None, say=ignored),
        pytest.raises(AgentCompileError, match="another process") as refused,
    ):
        begin(tmp_path, identity())
    assert refused.value.exit_code == ExitCode.ENVIRONMENT


def test_a_run_stops_when_its_time_has_gone_but_never_before_it_kept_something(tmp_path: Path) -> None:
    now = [0.0]
    file = PartialFile(tmp_path / "figures-x.json", Partial(identity={}), until_s=60.0, clock=lambda: now[0])
    now[0] = 61.0
    file.pause()
    file.write()
    file.pause()
    file.keep()
    with pytest.raises(OutOfTime):
        file.pause()
    now[0] = 59.0
    file.pause()


def test_a_run_without_a_limit_never_stops(tmp_path: Path) -> None:
    file = PartialFile(tmp_path / "figures-x.json", Partial(identity={}), clock=lambda: 1e12)
    file.keep()
    file.pause()


def test_a_result_that_is_complete_leaves_no_partial_one(tmp_path: Path) -> None:
    with open_partial(tmp_path, identity(), resume=False, until_s=None, say=ignored) as file:
        (file.folder / "sample-x").mkdir()
        file.keep()
        file.remove()
    assert not list(tmp_path.iterdir())


def test_a_partial_result_that_cannot_be_written_is_an_error_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError) as refused:
        PartialFile(tmp_path / "missing" / "figures-x.json", Partial(identity={})).keep()
    assert refused.value.exit_code == ExitCode.ENVIRONMENT


def test_a_run_goes_on_only_with_the_lock_and_the_store_that_it_compiled(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    lock = tmp_path / "first.lock.toml"
    lock.write_text("one")
    build = Build(model=tmp_path, lock=lock, home=tmp_path / "home", threads=1)
    progress = Progress(lock=digest_of_lock(lock))
    progress.check(build)
    with pytest.raises(AgentCompileError, match="the store of the first compilation is gone"):
        progress.check(replace(build, home=tmp_path / "moved"))
    lock.write_text("two")
    with pytest.raises(AgentCompileError, match=r"first\.lock\.toml: is not the lock that was compiled"):
        progress.check(build)


def failed(rounds: int, first: str = "") -> Progress:
    compiled = Took(seconds=None if first else 9.0, reason=first)
    return Progress(
        times={"first compile": compiled, "replay": Took(seconds=None, reason="x")},
        accuracy_reason="x",
        outcome=Outcome(reasons={"slow": "x"}, rounds=tuple(timed(0, 0.1) for _ in range(rounds))),
    )


def test_what_failed_is_tried_again_when_asked_for() -> None:
    progress = failed(rounds=1)
    progress.forget_failures(2)
    assert (progress.outcome.reasons, progress.accuracy_reason) == ({}, "")
    assert list(progress.times) == ["first compile"]
    progress = failed(rounds=1, first="exit code 6")
    progress.forget_failures(2)
    assert progress.times == {}


def test_an_arm_that_failed_keeps_its_reason_when_no_round_is_left_for_it() -> None:
    progress = failed(rounds=2, first="exit code 6")
    progress.forget_failures(2)
    assert progress.outcome.reasons == {"slow": "x"}
    assert list(progress.times) == ["first compile"]


def test_rounds_of_another_machine_are_kept_in_a_whole_trial_and_dropped_from_one_that_was_cut() -> None:
    here, there = (replace(timed(0, 0.1), machine=name) for name in ("here", "there"))
    progress = Progress(outcome=Outcome(rounds=(here, here), agreement={"hf-eager": ""}))
    assert progress.forget_others("here", 3) == 0
    assert progress.forget_others("there", 2) == 0, "it is whole"
    assert len(progress.outcome.rounds) == 2
    progress.outcome.rounds = (there, here)
    assert progress.forget_others("here", 3) == 2
    assert progress.outcome == Outcome(agreement={"hf-eager": ""})
