"""Searches of recorded spaces by simulation: their curves, their statistics, and the command."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import canonical
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured, Rejected, TimedOut, Trial, reason
from agentcompile.search import Budget, Proposal, SearchMethod, SearchTask, strategy_of
from bench.ablation import recorded
from bench.ablation.curves import draw, marks_of, quartiles
from bench.ablation.pool import Cell, curves
from bench.ablation.recorded import Request, read_study, study_of
from bench.ablation.run import run
from bench.ablation.simulate import MOST_REPEATS, Curve, simulate
from bench.ablation.spaces import RecordedSpace, read_space
from bench.ablation.study import interval
from bench.ablation.tables import as_csv, as_markdown, report
from tests.unit.recorded import cache, result, t4, write

FAILED = "RuntimeFailedConfig"
TIMES: list[object] = [4.0, FAILED, 2.0, 3.0, 1.0, FAILED, 1.04, 5.0]


def small(tmp_path: Path, times: list[object] = TIMES, name: str = "small") -> RecordedSpace:
    return read_space(write(tmp_path / f"{name}.json", cache(times)))


Propose = Callable[[SearchTask, Sequence[Trial], Budget], Proposal[Candidate]]


def finds(propose: Propose) -> Callable[[str], SearchMethod]:
    """Return a lookup of strategies that has one, which does what `propose` does."""

    class Stub:
        def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
            return propose(task, trials, budget)

    return lambda name: SearchMethod(regions=Stub(), step=strategy_of("random").step)


def test_the_curve_of_a_search_in_the_order_of_the_file(tmp_path: Path) -> None:
    curve = simulate(small(tmp_path), "exhaustive", 7, 0)
    assert curve.steps == ((1, 4e6), (3, 2e6), (5, 1e6))
    assert (curve.evaluations, curve.failed, curve.ended) == (7, 2, "budget")
    assert (curve.evaluations_to(100), curve.evaluations_to(5), curve.evaluations_to(300)) == (3, 5, 1)
    assert [curve.best_after(at) for at in (0, 1, 2, 3, 7)] == [math.inf, 4e6, 4e6, 2e6, 1e6]
    assert curve.area(7) == pytest.approx((0.25 * 2 + 0.5 * 2 + 1 * 3) / 7)
    assert curve.area(4) == pytest.approx((0.25 * 2 + 0.5 * 2) / 4)


def test_a_search_ends_when_every_point_was_evaluated(tmp_path: Path) -> None:
    curve = simulate(small(tmp_path), "random", 1000, 3)
    assert (curve.evaluations, curve.ended) == (len(TIMES), "space")


def test_a_search_ends_when_the_strategy_proposes_nothing(tmp_path: Path) -> None:
    first = finds(
        lambda task, trials, budget: Proposal() if trials else Proposal(candidates=task.candidates[:1], rounds=1)
    )
    curve = simulate(small(tmp_path), "one", 5, 0, find=first)
    assert (curve.evaluations, curve.steps, curve.ended) == (1, ((1, 4e6),), "strategy")


def test_a_proposal_that_is_too_large_is_cut_at_the_budget_and_repeats_in_it_count_once(tmp_path: Path) -> None:
    space = small(tmp_path)
    doubled = tuple(candidate for candidate in space.candidates for _ in range(2))
    curve = simulate(space, "x", 3, 0, find=finds(lambda *_: Proposal(candidates=doubled, rounds=1)))
    assert (curve.evaluations, curve.failed, curve.steps) == (3, 1, ((1, 4e6), (3, 2e6)))


def test_the_same_seed_gives_the_same_curve_and_other_seeds_others(tmp_path: Path) -> None:
    space = small(tmp_path, [float(1 + at * 7 % 50) for at in range(50)])
    found = [simulate(space, "random", 20, seed) for seed in range(6)]
    assert found == [simulate(space, "random", 20, seed) for seed in range(6)]
    assert len({curve.steps for curve in found}) == 6


@pytest.mark.parametrize("name", ["halving", "exhaustive", "random"])
def test_every_strategy_finds_the_best_of_a_small_space(tmp_path: Path, name: str) -> None:
    assert simulate(small(tmp_path), name, 8, 0).best_after(8) == 1e6


def test_random_search_has_its_exact_expectation(tmp_path: Path) -> None:
    """The first of k good points among n, drawn without repeats, comes at (n + 1) / (k + 1) on average."""
    space = small(tmp_path, [1.0 if at in (4, 11, 17) else 2.0 for at in range(19)])
    places = [simulate(space, "random", 19, seed).evaluations_to(5) for seed in range(400)]
    firsts = [place for place in places if place is not None]
    assert len(firsts) == 400
    # The standard deviation of one place is sqrt(k (n + 1) (n - k) / ((k + 1)^2 (k + 2))) = 3.5.
    assert statistics.fmean(firsts) == pytest.approx(20 / 4, abs=4 * 3.5 / math.sqrt(400))


def test_the_strategy_sees_speedups_over_the_median_and_failures_of_their_kind(tmp_path: Path) -> None:
    kinds = ["timeout", "compile", "runtime", "correctness", "constraints"]
    document = t4(*(result({"A": at}, invalidity=kind) for at, kind in enumerate(kinds)),
                  *(result({"A": 10 + at}, ms) for at, ms in enumerate([1.0, 2.0, 4.0])))  # fmt: skip
    space, given = read_space(write(tmp_path / "x.json", document)), list[Sequence[Trial]]()

    def everything(task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        given.append(trials)
        assert (budget.batch, budget.finalists, budget.trials, budget.seed) == (1, 1, 9, 5)
        return Proposal(candidates=task.candidates, rounds=6)

    simulate(space, "x", 9, 5, find=finds(everything))
    verdicts = [trial.verdict for trial in given[0]]
    assert [type(one) for one in verdicts] == [TimedOut, BuildFailed, Crashed, Incorrect, Rejected, *[Measured] * 3]
    assert all(reason(one) for one in verdicts[:5])
    times = [one.measurement for one in verdicts if isinstance(one, Measured)]
    assert [one.log_ratio for one in times] == pytest.approx([math.log(2), 0.0, -math.log(2)])
    assert [(one.median_ns, one.comparison, one.rounds) for one in times] == [
        (1_000_000, "FASTER", 6), (2_000_000, "SAME", 6), (4_000_000, "SLOWER", 6),
    ]  # fmt: skip


def test_the_trials_are_one_list_that_only_grows(tmp_path: Path) -> None:
    lists = list[tuple[int, int]]()

    def one_more(task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        lists.append((id(trials), len(trials)))
        return Proposal(candidates=(task.candidates[len(trials)],), rounds=1)

    simulate(small(tmp_path), "x", 5, 0, find=finds(one_more))
    assert [length for _, length in lists] == [0, 1, 2, 3, 4]
    assert len({identity for identity, _ in lists}) == 1


def test_a_strategy_that_proposes_outside_the_space_is_stopped(tmp_path: Path) -> None:
    (stranger, *_) = small(tmp_path, [1.0, 2.0], "other").candidates
    outside = finds(lambda *_: Proposal(candidates=(stranger,), rounds=1))
    with pytest.raises(
        AgentCompileError, match=r"strategy bad on small: proposed copy\(A=0\), which is not in"
    ) as caught:
        simulate(small(tmp_path), "bad", 5, 0, find=outside)
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert "--strategies" in caught.value.hint


def test_a_strategy_that_repeats_itself_for_ever_is_stopped(tmp_path: Path) -> None:
    again = finds(lambda task, *_: Proposal(candidates=task.candidates[:1], rounds=1))
    with pytest.raises(AgentCompileError, match=f"proposed nothing new {MOST_REPEATS + 1} times in a row"):
        simulate(small(tmp_path), "stuck", 5, 0, find=again)


def test_a_space_of_one_point_and_a_budget_of_one_work(tmp_path: Path) -> None:
    assert simulate(small(tmp_path, [3.0]), "halving", 1000, 0).steps == ((1, 3e6),)
    assert simulate(small(tmp_path), "halving", 1, 0).evaluations == 1


def test_a_search_in_which_every_point_fails_finds_nothing(tmp_path: Path) -> None:
    curve = simulate(small(tmp_path, [FAILED] * 3), "random", 2, 0)
    assert (curve.steps, curve.failed, curve.optimum_ns) == ((), 2, None)
    assert (curve.evaluations_to(5), curve.best_after(9), curve.area(2)) == (None, math.inf, 0.0)


def test_the_seconds_are_those_of_the_strategy_alone(tmp_path: Path) -> None:
    ticks = iter(range(100))
    assert simulate(small(tmp_path), "random", 8, 0, clock=lambda: float(next(ticks))).seconds == 1.0


def request(tmp_path: Path, **changes: object) -> Request:
    space = write(tmp_path / "small.json", cache(TIMES))
    asked = {
        "spaces": (space,),
        "strategies": ("random;exhaustive",),
        "seeds": 5,
        "budget": 6,
        "within": 5.0,
        "jobs": 1,
    }
    return Request(**asked | changes)  # type: ignore[arg-type]


def test_a_study_has_every_curve_and_what_follows_from_them(tmp_path: Path) -> None:
    other = write(tmp_path / "other.json", cache([2.0, 1.0]))
    study = study_of(request(tmp_path, spaces=(tmp_path / "small.json", other)))
    assert len(study.curves) == 2 * 2 * 5
    assert [(facts.name, facts.points, facts.failed, facts.near) for facts in study.spaces] == [
        ("small", 8, 2, ((5.0, 2), (2.0, 1))),
        ("other", 2, 0, ((5.0, 1), (2.0, 1))),
    ]
    found = study.standing("small", "exhaustive")
    near, nearer = found.reaches
    assert (near.percent, near.seeds, near.median, near.low, near.high) == (5.0, 5, 5.0, 5.0, 5.0)
    assert (nearer.percent, nearer.median) == (2.0, 5.0)
    assert found.best == ((6, 1.0),)
    assert found.area == pytest.approx((0.25 * 2 + 0.5 * 2 + 1 * 2) / 6)
    (overall,) = [one for one in study.overall if one.arm == "exhaustive"]
    assert overall.evaluations[0][1] == pytest.approx(math.sqrt(5 * 2))
    assert decode(type(study), json.loads(canonical(encode(study)))) == study


def test_seeds_that_never_arrive_count_as_infinite(tmp_path: Path) -> None:
    study = study_of(request(tmp_path, strategies=("exhaustive",), budget=2))
    (near, _) = study.standing("small", "exhaustive").reaches
    assert (near.seeds, near.median, near.low, near.high) == (0, math.inf, math.inf, math.inf)
    assert study.overall[0].evaluations == ((5.0, math.inf), (2.0, math.inf))
    assert decode(type(study), json.loads(canonical(encode(study)))) == study
    assert "0 of 5" in "\n".join(report(study))


def test_a_bootstrap_interval_holds_the_median_and_is_the_same_again() -> None:
    values = [float(at) for at in range(1, 16)]
    low, high = interval(values, statistics.median)
    assert (low, high) == interval(values, statistics.median)
    assert 3 <= low < 8 < high <= 13
    assert interval([7.0], statistics.median) == (7.0, 7.0)
    assert interval([1.0, math.inf, math.inf], statistics.median)[1] == math.inf


def test_processes_give_the_curves_that_this_process_gives(tmp_path: Path) -> None:
    spaces = {"small": small(tmp_path)}
    cells = [Cell(space="small", arm=arm, seed=seed, budget=8) for arm in ("random", "halving") for seed in range(3)]
    alone, beside = (list(curves(cells, spaces, jobs)) for jobs in (1, 2))
    assert sorted(map(repr, map(_timeless, beside))) == sorted(map(repr, map(_timeless, alone)))


def _timeless(curve: Curve) -> tuple[object, ...]:
    return (curve.space, curve.strategy, curve.seed, curve.steps, curve.evaluations)


def test_a_process_that_dies_is_an_error_and_leaves_no_other_behind(tmp_path: Path) -> None:
    spaces = {"large": small(tmp_path, [float(1 + at) for at in range(400)], "large")}
    cells = [Cell(space="large", arm="halving", seed=seed, budget=400) for seed in range(1000)]
    mine = running_below(os.getpid())
    searches = curves(cells, spaces, 2)
    next(searches)
    started = running_below(os.getpid()) - mine
    victims = [pid for pid in started if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    with pytest.raises(AgentCompileError, match=r"a simulation process died \(signal 9\) at halving on large, seed"):
        list(searches)
    assert not running_below(os.getpid()) & set(victims)


def running_below(parent: int) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}


def test_a_study_goes_on_from_what_its_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    whole = study_of(request(tmp_path))
    half = [*whole.curves[:4], replace(whole.curves[4], seconds=99.0)]
    out.write_bytes(canonical(encode(replace(whole, curves=tuple(half), standings=(), overall=()))))
    study = study_of(request(tmp_path, out=out))
    assert study.curves == whole.curves
    assert study.curves[4].seconds == 99.0, "it was not made again"
    assert "5 finished searches are taken over\n" in capsys.readouterr().err
    for changes, kept in (({"budget": 5}, 0), ({"seeds": 2}, 2), ({"strategies": ("exhaustive",)}, 0)):
        study_of(request(tmp_path, out=out, **changes))
        assert f"{kept} finished searches are taken over; {5 - kept} of other" in capsys.readouterr().err


def test_searches_of_other_code_or_another_space_are_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, whole = tmp_path / "r.json", study_of(request(tmp_path))
    for changes, kept in (
        ({"sources": whole.sources | {"random": "other"}}, 5),
        ({"spaces": (replace(whole.spaces[0], digest="other"),)}, 0),
    ):
        out.write_bytes(canonical(encode(replace(whole, **changes))))
        study_of(request(tmp_path, out=out))
        assert f"{kept} finished searches are taken over" in capsys.readouterr().err


def test_a_study_that_was_killed_goes_on(tmp_path: Path) -> None:
    space = write(tmp_path / "large.json", cache([float(1 + at * 7919 % 2000) for at in range(2000)]))
    out = tmp_path / "r.json"
    words = ["--space", str(space), "--strategies", "halving", "--seeds", "200", "--budget", "600", "--out", str(out)]
    command = [sys.executable, "-c", "import sys; from bench.ablation.run import run; run(sys.argv[1:])", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.05)
        workers = running_below(process.pid)
    finally:
        process.kill()
        process.communicate()
    done = read_study(out)
    assert 0 < len(done.curves) < 200
    assert done.standings == ()
    with pytest.raises(AgentCompileError, match=f"stopped after {len(done.curves)} of 200 searches"):
        run(["--show", str(out)])
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/stat").exists() for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "a process outlives its parent"


def test_the_command_prints_a_table_writes_its_files_and_shows_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space, out = write(tmp_path / "small.json", cache(TIMES)), tmp_path / "r.json"
    words = ["--space", str(space), "--strategies", "random; halving", "--strategies", "exhaustive"]
    assert run([*words, "--seeds", "3", "--budget", "7", "--jobs", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "small (a device): 8 points, 2 failed, 2 within 5 %, 1 within 2 %, best 1 ms" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["random", "halving", "exhaustive"]
    assert "failed points count as evaluations" in text
    study = read_study(out)
    assert "small.json" in study.command
    assert str(tmp_path) not in out.read_text(), "a result names no folder"
    assert (tmp_path / "r.csv").read_text() == as_csv(study)
    assert (tmp_path / "r.md").read_text() == as_markdown(study, "r.svg")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "% of the optimum" in (tmp_path / "r.svg").read_text()
    assert run(["--show", str(out)]) == 0
    assert capsys.readouterr().out == text
    assert run(["--show", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == encode(study)


def test_the_same_study_is_drawn_the_same(tmp_path: Path) -> None:
    study = study_of(request(tmp_path))
    assert draw(study) == draw(study)


def test_a_figure_shows_the_quartiles_at_places_that_are_even_on_a_log_scale(tmp_path: Path) -> None:
    assert marks_of(1) == [1]
    assert marks_of(1000)[:3] == [1, 2, 3]
    assert marks_of(1000)[-1] == 1000
    space = small(tmp_path, [4.0, 2.0, 1.0])
    order = simulate(space, "exhaustive", 3, 0)
    assert quartiles([order], [1, 2, 3]) == ([25, 50, 100], [25, 50, 100], [25, 50, 100])


def test_a_text_of_a_space_cannot_break_the_tables(tmp_path: Path) -> None:
    study = study_of(request(tmp_path))
    study = replace(study, spaces=(replace(study.spaces[0], device="a | b\x1b*"),))
    assert "\x1b" not in "\n".join(report(study))
    assert "a \\| b" in as_markdown(study, "")


WRONG: list[tuple[list[str], str]] = [
    (["--seeds", "0"], "--seeds: 0 is not between 1 and"),
    (["--budget", "0"], "--budget: 0 is not between 1 and"),
    (["--budget", "-3"], "--budget: -3 is not between 1 and"),
    (["--within", "-1"], "--within: -1 is not between"),
    (["--within", "nan"], "--within: nan is not between"),
    (["--jobs", "-1"], "--jobs: -1 is below 0"),
    (["--strategies", "halvin"], "'halvin' is no strategy"),
    (["--strategies", "random,halving"], "'random,halving' is no strategy"),
    (["--strategies", " ; "], "names no strategy"),
    (["--peer", "nobody:x"], "--peer nobody:x: no such peer"),
    (["--space", "{space}"], "a second space called small"),
    (["--space", "{failed}"], "all 2 points failed"),
    (["--space", "{missing}"], "there is no such file"),
    (["--arms", "none"], "--arms does not go with --space"),
    (["model"], "MODEL does not go with --space"),
    (["--out", "r.md"], "this suffix is that of a file beside"),
    (["--out", "{space}"], "no result of a study"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_argument_is_refused_before_anything_runs(tmp_path: Path, words: list[str], message: str) -> None:
    paths = {
        "space": write(tmp_path / "small.json", cache(TIMES)),
        "failed": write(tmp_path / "failed.json", cache([FAILED] * 2)),
        "missing": tmp_path / "missing.json",
    }
    filled = [word.format(**paths) if word.startswith("{") else word for word in words]
    with pytest.raises(AgentCompileError, match=message) as caught:
        run(["--space", str(paths["space"]), *filled])
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failed.json", "small.json"]


def test_what_belongs_to_spaces_needs_one() -> None:
    with pytest.raises(AgentCompileError, match="--strategies needs --space FILE"):
        run(["--strategies", "random"])


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"kind": "recorded-spaces"}', "no result of a study: study.*missing"), ('{"format": 99}', "99 is newer")],
)
def test_a_file_that_is_no_result_of_a_study_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AgentCompileError, match=message):
        read_study(write(tmp_path / "r.json", text))


def test_a_peer_that_is_not_installed_says_how_to_get_it() -> None:
    try:
        import kernel_tuner  # type: ignore[import-not-found,unused-ignore] # noqa: F401
    except ImportError:
        with pytest.raises(AgentCompileError, match="Kernel Tuner is not installed") as caught:
            recorded.peer.source_of("kernel-tuner:genetic_algorithm")
        assert "agentcompile[ablation]" in caught.value.hint
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
