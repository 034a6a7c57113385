"""Studies of search strategies on recorded spaces: their statistics, processes and files, and the command."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import canonical
from bench.ablation.curves import draw, marks_of, quartiles
from bench.ablation.pool import Cell, curves
from bench.ablation.recorded import Request, read_study, study_of
from bench.ablation.run import run
from bench.ablation.simulate import Curve, simulate
from bench.ablation.study import interval
from bench.ablation.tables import as_csv, as_markdown, report
from tests.unit.recorded import FAILED, TIMES, cache, small, write

NO_NETWORK = Path(__file__).parents[1] / "cpu/no_network"
"""A folder whose `sitecustomize` refuses sockets of the network in every Python process that begins with it."""


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


def test_the_processes_of_a_study_need_no_network(tmp_path: Path) -> None:
    space, out = write(tmp_path / "small.json", cache(TIMES)), tmp_path / "r.json"
    words = ["--space", str(space), "--strategies", "random;halving", "--seeds", "3", "--jobs", "2", "--out", str(out)]
    command = [sys.executable, "-c", "import sys; from bench.ablation.run import run; run(sys.argv[1:])", *words]
    guarded = os.environ | {"PYTHONPATH": str(NO_NETWORK)}  # what these processes inherit
    done = subprocess.run(command, env=guarded, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(read_study(out).curves) == 6
    opens = [sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 9), 1)"]
    refused = subprocess.run(opens, env=guarded, capture_output=True, text=True, check=False, timeout=120)
    assert "this process has no network" in refused.stderr


def test_a_caller_that_stops_leaves_no_process_behind(tmp_path: Path) -> None:
    mine = running_below(os.getpid())
    cells = [Cell(space="small", arm="random", seed=seed, budget=8) for seed in range(1000)]
    searches = curves(cells, {"small": small(tmp_path)}, 2)
    next(searches)
    begun = time.monotonic()
    searches.close()
    assert time.monotonic() - begun < 5
    left = running_below(os.getpid()) - mine
    assert not [pid for pid in left if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


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
    text, said = capsys.readouterr()
    assert said.splitlines()[-1] == f"next: open {out.with_suffix('.md')}, the same with its figure"
    assert "small (a device): 8 points, 2 failed, 2 within 5 %, 1 within 2 %, best 1 ms" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["random", "halving", "exhaustive"]
    assert "failed points count as evaluations" in text
    study = read_study(out)
    assert "small.json" in study.command
    assert str(tmp_path) not in out.read_text(), "a result names no folder"
    assert (tmp_path / "r.csv").read_text() == as_csv(study)
    assert (tmp_path / "r.md").read_text() == as_markdown(study, "r.svg")
    drawn = ((tmp_path / "r.png").read_bytes(), (tmp_path / "r.svg").read_text())
    assert draw(study) == drawn, "the same study gives the same bytes"
    assert drawn[0].startswith(b"\x89PNG")
    assert "% of the optimum" in drawn[1]
    assert run(["--show", str(out)]) == 0
    assert capsys.readouterr().out == text
    assert run(["--show", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == encode(study)


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
