"""The rate of AMX tiles is part of a CPU's roofline where the processor has them and Linux gives their data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentcompile.worker import ceiling


@pytest.mark.parametrize(("march", "tiles"), [("sapphirerapids", True), ("icelake-server", False)])
def test_the_probe_multiplies_tiles_where_the_processor_has_them(march: str, tiles: bool, tmp_path: Path) -> None:
    text, made = tmp_path / "probe.cpp", tmp_path / "probe.o"
    text.write_text(ceiling._TEXT, encoding="utf-8")
    command = [
        "g++",
        "-std=c++20",
        "-O2",
        "-Wall",
        "-Werror",
        f"-march={march}",
        "-fPIC",
        "-c",
        str(text),
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True, capture_output=True)
    listed = subprocess.run(["nm", str(made)], check=True, capture_output=True, text=True).stdout
    code = subprocess.run(["objdump", "-d", str(made)], check=True, capture_output=True, text=True).stdout
    assert (" T dot_tiles" in listed) is tiles
    assert code.count("tdpbf16ps") == 4 * tiles


def test_tiles_are_not_probed_where_their_data_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refused them would end the probe with an illegal instruction."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if "amx_bf16" not in flags:
        assert not ceiling._tiles_given()
    monkeypatch.setattr(ceiling.ctypes, "CDLL", lambda _: type("Libc", (), {"syscall": staticmethod(lambda *_: -1)}))
    assert not ceiling._tiles_given()
