"""The verb `export`: what it writes, what it leaves out and says so, and how it refuses."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.catalog import Catalog
from agentcompile.cli import exporting
from agentcompile.cli.exporting import Kernels
from agentcompile.cli.main import main
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Event, GraphCaptured, RegionFound, RunStarted, TrialFinished
from agentcompile.ir.codec import encode
from agentcompile.ir.region import Region
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Measured, Trial
from agentcompile.options import Options
from agentcompile.runs.progress import State
from agentcompile.runs.session import Journal, RunDirectory
from tests.unit import fakes, outcomes, published
from tests.unit.outcomes import REGION, TARGET, TEMPLATE

MEASURED = Measured(report=outcomes.RIGHT, measurement=outcomes.measurement())
OTHER = fakes.linear_region(hidden=64, rows=16)


def found(region: Region = REGION) -> RegionFound:
    return RegionFound(
        region=region.id,
        name=region.name,
        region_kind=region.kind,
        regime=region.regime.name,
        sites=2,
        flops=1,
        bytes=1,
        floor_ns=1.0,
        share=0.5,
    )


def finished(*, region: Region = REGION, rows: int = 4, **more: object) -> TrialFinished:
    return TrialFinished(trial=outcomes.tried(MEASURED, region=region, rows=rows, **more).trial)


STARTED = RunStarted(model="there/tiny", target=TARGET, options="o", version="0.1.0")
WHOLE: tuple[Event, ...] = (STARTED, found(), finished(), finished(fidelity="confirm"), finished(rows=8))
Make = Callable[..., Path]


@pytest.fixture
def make() -> Make:
    """A run of these events among the runs of the test's own home."""

    def made(*events: Event, name: str = "20260101-120000-tiny") -> Path:
        options = Options(home=os.environ["AGENTCOMPILE_HOME"], model="there/tiny")
        run = RunDirectory.create(options.runs / name, encode(options))
        with Journal(run, clock=lambda: 1_790_000_000.0) as journal:
            for event in events:
                journal.append(event)
        return run.path

    return made


def find(*regions: Region, templates: tuple[Template, ...] = (TEMPLATE,)) -> exporting.Find:
    kept = Catalog(templates=templates)
    return lambda options, state: Kernels(regions={region.id: region for region in regions}, templates=kept)


BOTH = find(REGION, OTHER)


def export(name: str, format: str, out: Path, *, find: exporting.Find = BOTH) -> tuple[str, str]:
    """What it says on stdout and on stderr, without the command that follows."""
    said, warned = io.StringIO(), io.StringIO()
    assert exporting.export({}, name, format, out, screen=Screen(out=said, err=warned), find=find) == 0
    told, follows, _ = warned.getvalue().rpartition("next: agentcompile report ")
    assert follows
    return said.getvalue(), told


def refused(name: str, format: str, out: Path, *, find: exporting.Find = BOTH) -> AgentCompileError:
    with pytest.raises(AgentCompileError) as caught:
        export(name, format, out, find=find)
    assert caught.value.hint
    return caught.value


def test_t4_is_a_document_a_region_and_one_of_the_machine(make: Make, tmp_path: Path) -> None:
    run = make(*WHOLE, found(OTHER), finished(region=OTHER))
    said, warned = export(run.name, "t4", tmp_path / "out")
    names = {f"{region.name.replace('@', '-')}.json" for region in (REGION, OTHER)}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names, "metadata.json"}
    counts = []
    for name in sorted(names, key=lambda name: name != f"{REGION.name.replace('@', '-')}.json"):
        document = json.loads((tmp_path / "out" / name).read_text())
        published.valid(document, published.T4_RESULTS)
        counts.append(len(document["results"]))
    assert counts == [3, 1]
    published.valid(json.loads((tmp_path / "out/metadata.json").read_text()), published.T4_METADATA)
    assert (said, warned) == (f"{tmp_path / 'out'}: 4 trials of 2 regions, 3 files\n", "")


def test_one_region_fits_in_one_file(make: Make, tmp_path: Path) -> None:
    export(str(make(*WHOLE)), "t4", tmp_path / "new/linear.json")
    document = json.loads((tmp_path / "new/linear.json").read_text())
    assert [result["configuration"]["ROWS"] for result in document["results"]] == [4, 4, 8]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["linear.json"], "nothing half-made is left"


def test_several_regions_do_not_fit_in_one_file(make: Make, tmp_path: Path) -> None:
    make(*WHOLE, finished(region=OTHER))
    assert "2 regions" in refused("", "t4", tmp_path / "x.json").message
    assert "folder" in refused("", "flashinfer", tmp_path / "x.json").message
    assert not list(tmp_path.iterdir())


def test_the_newest_run_is_meant_when_none_is_named(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    make(*WHOLE[:3], name="20260102-120000-tiny")
    assert ": 1 trials of 1 regions" in export("", "t4", tmp_path / "out")[0]


def test_a_trace_set_holds_definition_workload_solutions_and_traces(make: Make, tmp_path: Path) -> None:
    _, warned = export(make(*WHOLE).name, "flashinfer", tmp_path / "out")
    (definition,) = (tmp_path / "out/definitions").rglob("*.json")
    (traces,) = (tmp_path / "out/traces").rglob("*.jsonl")
    solutions = [json.loads(path.read_text()) for path in (tmp_path / "out/solutions").rglob("*.json")]
    published.definition(json.loads(definition.read_text()))
    for line in traces.read_text().splitlines():
        published.trace(json.loads(line), json.loads(definition.read_text()))
        assert json.loads(line)["solution"] in {solution["name"] for solution in solutions}
    assert (len(traces.read_text().splitlines()), len(solutions), warned) == (3, 2, "")
    assert json.loads(definition.read_text())["tags"] == ["stage:decode", "model:tiny"]


def test_what_cannot_be_said_is_left_out_counted_and_explained(make: Make, tmp_path: Path) -> None:
    library = replace(TEMPLATE, id="linear/library", language="library", source="", source_name="")

    def other(trial: Trial, **changes: object) -> TrialFinished:
        point = replace(trial.candidate, **changes)  # type: ignore[arg-type]
        return TrialFinished(trial=replace(trial, candidate=point))

    trial = finished().trial
    make(
        *WHOLE,
        found(OTHER),
        finished(region=OTHER),
        other(trial, template="linear/gone"),
        other(trial, template_digest="other"),
        other(trial, template=library.id, template_digest=library.digest),
        other(trial, target="other"),
        TrialFinished(trial=replace(trial, source="other")),
    )
    said, warned = export("", "flashinfer", tmp_path / "out", find=find(REGION, templates=(TEMPLATE, library)))
    assert ": 3 trials of 2 regions" in said
    assert warned.splitlines() == [
        "warning: trials left out: 1: they were made on another machine, before the run went on here",
        "warning: trials left out: 1: there is no template linear/gone here",
        "warning: trials left out: 1: the template linear/rows has changed since",
        "warning: trials left out: 1: a library call has no program text",
        "warning: trials left out: 1: linear/rows gives other program text under this version",
        f"warning: trials left out: 1: {OTHER.name} is no region of the model under this version",
    ]


def test_nothing_is_written_when_nothing_is_left(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    error = refused("", "flashinfer", tmp_path / "out", find=find(OTHER))
    assert (error.exit_code, "is no region of the model" in error.message) == (ExitCode.DRIFT, True)
    assert not list(tmp_path.iterdir())


def test_a_run_that_nobody_knows_is_refused_with_the_nearest(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    error = refused("20260101-120000-tny", "t4", tmp_path / "out")
    assert (error.exit_code, "'20260101-120000-tny'" in error.message) == (ExitCode.USAGE, True)
    assert "did you mean 20260101-120000-tiny?" in error.hint
    assert "did you mean" not in refused("x", "t4", tmp_path / "out").hint


def test_the_newest_run_is_named_latest_as_in_other_verbs(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    assert export("latest", "t4", tmp_path / "out")[0] == f"{tmp_path / 'out'}: 3 trials of 1 regions, 2 files\n"


def test_there_may_be_no_runs_at_all(tmp_path: Path) -> None:
    assert "no runs" in refused("", "t4", tmp_path / "out").message


@pytest.mark.parametrize("events", [(), (STARTED, found())])
def test_a_run_without_trials_says_how_to_go_on(make: Make, tmp_path: Path, events: tuple[Event, ...]) -> None:
    run = make(*events)
    error = refused("", "t4", tmp_path / "out")
    assert (error.exit_code, f"{run}: no trials" in error.message) == (ExitCode.USAGE, True)
    assert f"--run-dir {run}" in error.hint


def test_a_place_that_is_taken_is_left_as_it_is(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    (tmp_path / "x.json").write_text("mine")
    for out in (tmp_path / "full", tmp_path / "full/file", tmp_path / "x.json"):
        error = refused("", "t4", out)
        assert (error.exit_code, f"{out}: exists already" in error.message) == (ExitCode.USAGE, True)
    assert (tmp_path / "full/file").read_text() == (tmp_path / "x.json").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    export("", "t4", tmp_path / "empty")


@pytest.mark.parametrize("name", ["file/out", "file/out.json", f"{'x' * 300}"])
def test_a_place_that_cannot_be_written_is_an_environment_error(make: Make, tmp_path: Path, name: str) -> None:
    make(*WHOLE)
    (tmp_path / "file").write_text("")
    error = refused("", "t4", tmp_path / name)
    assert (error.exit_code, str(tmp_path / name) in error.message) == (ExitCode.ENVIRONMENT, True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_unknown_format_names_those_there_are(tmp_path: Path) -> None:
    error = refused("", "csv", tmp_path / "out")
    assert ("'csv'" in error.message, error.hint) == (True, "allowed: t4, flashinfer")


def test_a_checkpoint_that_is_gone_is_named_with_the_flag_that_says_where_it_is(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    error = refused("", "flashinfer", tmp_path / "out", find=exporting.recaptured)
    assert (error.exit_code, "there/tiny" in error.message, "--model" in error.hint) == (ExitCode.USAGE, True, True)


def test_the_model_may_lie_elsewhere_now(make: Make, tmp_path: Path) -> None:
    make(*WHOLE)
    asked: list[str] = []

    def finds(options: Options, state: State) -> Kernels:
        asked.append(options.model)
        return find(REGION)(options, state)

    screen = Screen(out=io.StringIO(), err=io.StringIO())
    for at, flags in enumerate(({}, {"model": str(tmp_path)})):
        exporting.export(flags, "", "flashinfer", tmp_path / str(at), screen=screen, find=finds)
    assert asked == ["there/tiny", str(tmp_path)]


def test_the_command_line_gives_json(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(GraphCaptured(phase="decode", operators=1, digest="d"), *WHOLE)
    assert main(["export", run.name, "--format", "t4", "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["trials"], told["left_out"]) == (str(run), 3, [])
    assert main(["export", run.name, "--format", "t4", "--out", str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
