from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from runs import TARGET

from agentcompile.cli import main as cli
from agentcompile.cli.doctor import Cuda, DoctorCheck, cuda_rows, doctor, find_cuda
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import Options, visible_devices
from agentcompile.system.gpus import Driver, Gpu, Process, find_driver

H200 = Gpu(
    index=0,
    name="NVIDIA H200",
    capability=(9, 0),
    memory_bytes=150_000_000_000,
    free_bytes=149_000_000_000,
    clock_mhz=345,
    most_clock_mhz=1980,
    processes=(),
)
DRIVER = Driver(version="580.95.05", cuda=(13, 0), gpus=(H200,))
WHOLE = Cuda(driver=DRIVER, nvrtc=(13, 0), torch_cuda="13.0", torch_sees=True, triton="3.7.0")
COMPILER = replace(TARGET, toolchain="g++ 12")


def flow(target: Callable[[Options], object] = lambda options: COMPILER) -> Flow:
    made = Flow()
    made.target = target  # type: ignore[method-assign, assignment]
    return made


def check(flow: Flow, cuda: Cuda = WHOLE) -> tuple[int, str, dict[str, DoctorCheck]]:
    """Exit code, text, and rows by name."""
    out, listed = io.StringIO(), io.StringIO()
    code = doctor({}, screen=Screen(out=out, err=io.StringIO()), flow=flow, cuda=lambda: cuda)
    doctor({}, screen=Screen(out=listed, err=io.StringIO(), format="json"), flow=flow, cuda=lambda: cuda)
    return code, out.getvalue(), {row["check"]: DoctorCheck(**row) for row in json.loads(listed.getvalue())}


def rows(cuda: Cuda) -> dict[str, DoctorCheck]:
    return {row.check: row for row in cuda_rows(cuda)}


def test_the_doctor_finds_a_missing_compiler() -> None:
    code, text, rows = check(flow(lambda options: TARGET))
    assert code == ExitCode.ENVIRONMENT
    assert "MISSING  compiler" in text
    assert "compiler: install g++ or clang++" in text
    assert rows["compiler"].state == "missing"


def test_a_machine_that_cannot_be_described_is_missing_with_its_remedy() -> None:
    def none(options: Options) -> object:
        raise AgentCompileError("no C++ compiler", exit_code=ExitCode.ENVIRONMENT, hint="install g++")

    code, _, rows = check(flow(none))
    assert code == ExitCode.ENVIRONMENT
    assert rows["machine"] == DoctorCheck(
        check="machine", state="missing", value="no C++ compiler", remedy="install g++"
    )


def test_a_machine_with_a_gpu_is_all_ok() -> None:
    code, text, rows = check(flow())
    assert code == ExitCode.OK
    assert {row.state for row in rows.values()} == {"ok"}
    assert not any(row.remedy for row in rows.values())
    assert rows["nvidia-driver"].value == "580.95.05, CUDA 13.0"
    assert rows["gpu 0"].value == "NVIDIA H200, sm_90, 149 GB of 150 GB free, SM clock 345 of 1980 MHz"
    assert rows["gpu 0 in use by"].value == "nobody else"
    assert "CUDA cannot be used" not in text


def test_without_a_gpu_compiling_for_the_cpu_is_still_ok() -> None:
    code, text, rows = check(flow(), Cuda())
    assert code == ExitCode.OK
    assert "MISSING  nvidia-driver" in text
    assert text.endswith("compiling for the CPU does not need it\n")
    assert {row.target for row in rows.values() if row.state == "missing"} == {"cuda"}


def test_what_cuda_lacks_is_an_error_where_cuda_is_compiled_for() -> None:
    code, _, _ = check(flow(lambda options: replace(COMPILER, kind="cuda")), replace(WHOLE, nvrtc=None))
    assert code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    ("cuda", "name", "state", "words", "remedy"),
    [
        (replace(WHOLE, driver=None), "nvidia-driver", "missing", "libcuda", "--gpus all"),
        (
            replace(WHOLE, driver=Driver(cuda=(13, 0), problem="no NVML")),
            "nvidia-driver",
            "warning",
            "CUDA 13.0; no NVML",
            "NVIDIA_DRIVER_CAPABILITIES",
        ),
        (replace(WHOLE, driver=Driver(cuda=(13, 0), problem="no NVML")), "gpu", "warning", "not listed", "nvidia-smi"),
        (replace(WHOLE, nvrtc=None, nvrtc_problem="no lib"), "nvrtc", "missing", "no lib", "agentcompile[cuda]"),
        (
            replace(WHOLE, driver=replace(DRIVER, cuda=(12, 4))),
            "driver for nvrtc",
            "missing",
            "CUDA 12.4 is older than NVRTC 13.0",
            "CUDA 13.0",
        ),
        (replace(WHOLE, torch_cuda=None, torch_sees=False), "torch cuda build", "missing", "without", "CUDA 13.0"),
        (replace(WHOLE, torch_cuda=None, torch_sees=False), "torch sees a gpu", "missing", "no", "PyTorch with CUDA"),
        (replace(WHOLE, torch_sees=False, torch_said="too old"), "torch sees a gpu", "missing", "too old", "13.0"),
        (replace(WHOLE, torch_sees=False, visible=""), "torch sees a gpu", "missing", "hides", "unset"),
        (replace(WHOLE, visible=""), "CUDA_VISIBLE_DEVICES", "warning", "'' hides every GPU", "unset"),
        (replace(WHOLE, visible="-1"), "CUDA_VISIBLE_DEVICES", "warning", "'-1' hides", "unset"),
        (replace(WHOLE, visible="1"), "CUDA_VISIBLE_DEVICES", "ok", "1", ""),
        (replace(WHOLE, driver=replace(DRIVER, gpus=())), "gpu", "missing", "none", "--gpus all"),
        (replace(WHOLE, triton=""), "triton", "warning", "not installed", "agentcompile[cuda]"),
    ],
)
def test_each_lack_has_its_row_and_its_remedy(cuda: Cuda, name: str, state: str, words: str, remedy: str) -> None:
    row = rows(cuda)[name]
    assert row.state == state
    assert words in row.value
    assert remedy in row.remedy
    assert bool(row.remedy) is (state != "ok")


def test_a_newer_driver_runs_what_an_older_nvrtc_compiles() -> None:
    assert rows(replace(WHOLE, nvrtc=(12, 9)))["driver for nvrtc"].state == "ok"


def of(gpu: Gpu) -> dict[str, DoctorCheck]:
    return rows(replace(WHOLE, driver=replace(DRIVER, gpus=(gpu,))))


def test_others_on_a_gpu_are_named_with_their_memory() -> None:
    busy = replace(H200, processes=(Process(pid=7, memory_bytes=2_000_000_000), Process(pid=8, memory_bytes=None)))
    row = of(busy)["gpu 0 in use by"]
    assert (row.state, row.value) == ("warning", "pid 7 (2 GB), pid 8")
    assert "disturb" in row.remedy
    assert of(replace(H200, processes=None))["gpu 0 in use by"].state == "warning"


def test_a_crowd_on_a_gpu_is_counted() -> None:
    crowd = tuple(Process(pid=pid, memory_bytes=None) for pid in range(1, 41))
    assert of(replace(H200, processes=crowd))["gpu 0 in use by"].value == "pid 1, pid 2, pid 3, pid 4, 36 more"


def test_an_old_gpu_is_a_warning_and_one_that_tells_nothing_is_shown() -> None:
    assert of(replace(H200, capability=(7, 5)))["gpu 0"].state == "warning"
    assert of(Gpu(index=0, name=""))["gpu 0"].value == "unnamed"


def test_an_empty_list_of_devices_is_not_the_same_as_none() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == ""
    assert visible_devices({}) is None


@pytest.mark.skipif(find_driver() is not None, reason="this machine has a driver")
def test_this_machine_without_a_driver_says_so_with_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(find_cuda())
    for name in ("nvidia-driver", "torch sees a gpu", "gpu"):
        assert found[name].state == "missing", name
        assert found[name].remedy, name
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "MISSING  nvidia-driver" in said
    assert "nvidia-driver: install NVIDIA's driver" in said


def test_a_folder_that_cannot_be_written_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / "file"))
    code, _, rows = check(flow())
    assert code == ExitCode.ENVIRONMENT
    assert rows["runs"].value.startswith(str(tmp_path / "file/runs"))
    assert "AGENTCOMPILE_HOME" in rows["runs"].remedy


def test_states_and_names_stand_side_by_side_where_a_folder_s_path_is_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / ("long-" * 20)))
    _, text, _ = check(flow(), Cuda())
    assert "MISSING  nvidia-driver" in text
    assert f"ok       cache\n  {tmp_path}" in text


def test_a_quarantined_template_is_told_with_its_remedy_and_the_machine_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path))
    folder = tmp_path / "templates/linear/broken"
    folder.mkdir(parents=True)
    (folder / "template.toml").write_text('langauge = "cpp"\n')
    code, text, rows = check(flow())
    assert code == ExitCode.OK
    assert rows["template"].state == "warning"
    assert "langauge: unknown key" in rows["template"].value
    assert "template: did you mean `language`?" in text
