"""Tensor maps of a launch: from the manifest to the words behind the pointers of its argument struct."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from agentcompile import check
from agentcompile.catalog import load
from agentcompile.errors import AgentCompileError
from agentcompile.ir.template import Launch, Template, TensorMap
from agentcompile.materialize import specialise
from agentcompile.regions.kinds import facts
from agentcompile.runtime import driver
from agentcompile.runtime.driver import Call, Entry
from tests.unit.fakes import linear_region, rows_template, target

GPU = target(kind="cuda", arch="sm_90a", isa=())
PARAMS = (("ROWS", 4), ("MODE", "fast"))
MAPS = (TensorMap(of="x", box="8"), TensorMap(of="w", box="16 * ROWS"))
LAUNCH = Launch(
    entry="gemv", arguments=("x", "w", "b", "y", "partial"), grid=("rows",), block=("32 * ROWS",), maps=MAPS
)


def template(**changed: Any) -> Template:
    return rows_template(language="cuda", arch=(), launches=(LAUNCH,), **changed)


def findings(mapped: Template, **region: Any) -> list[str]:
    """What the rules say of the maps."""
    found = check.check(linear_region(**region), mapped, PARAMS, GPU, layout_fits=lambda *_: True)
    return [one.text for one in found if one.rule == "boxes"]


def test_a_resolved_map_has_the_extents_of_its_port_and_the_rows_of_a_box() -> None:
    (launch,) = specialise(template(), linear_region(hidden=64, rows=24), PARAMS, GPU).launches
    x, w = launch.maps
    assert x.columns == 64
    assert (w.of, w.box, w.rows, w.columns) == ("w", "64", 24, 64)


def test_a_map_of_a_chunk_that_serves_every_length_is_refused_in_words() -> None:
    region = linear_region(hidden=64, rows=24)
    open_ended = replace(region, ports=tuple(replace(port, shape=("T", *port.shape[1:])) for port in region.ports))
    with pytest.raises(AgentCompileError, match="gemv: a tensor map of x with the extents T, 1, 64") as caught:
        specialise(template(), open_ended, PARAMS, GPU)
    assert caught.value.hint


def test_a_kernel_gets_its_maps_behind_its_pointers_and_knows_the_rows_of_a_box() -> None:
    text = specialise(template(), linear_region(hidden=64, rows=24), PARAMS, GPU).text
    assert "struct alignas(64) TensorMap" in text
    assert "constexpr long w_box = 64;" in text
    assert text.index("partial;") < text.index("TensorMap x_map;") < text.index("TensorMap w_map;")


def test_a_family_of_matrices_has_a_map_of_each_in_an_array() -> None:
    source = specialise(template(), linear_region(hidden=64, rows=24, count=3), PARAMS, GPU)
    (launch,) = source.launches
    assert [(one.of, one.rows, one.columns) for one in launch.maps[1:]] == [(f"w.{i}", 24, 64) for i in range(3)]
    assert {one.of for one in launch.maps} <= {*launch.arguments}
    assert "TensorMap w_map[3];" in source.text
    assert "TensorMap x_map;" in source.text
    assert source.text.count("w_box") == 1


def test_every_matrix_of_a_family_is_looked_at() -> None:
    found = findings(template(), hidden=60, rows=24, count=2)
    assert [text.partition(":")[0] for text in found] == ["x", "w.0", "w.1"]


def test_a_kernel_without_maps_has_nothing_of_them() -> None:
    plain = replace(template(), launches=(replace(LAUNCH, maps=()),))
    assert "TensorMap" not in specialise(plain, linear_region(), PARAMS, GPU).text


def test_boxes_are_of_matrices_of_short_elements_in_whole_words() -> None:
    assert findings(template(), hidden=64, rows=24) == []
    wide = findings(template(), hidden=64, rows=24, dtype="fp32")
    assert wide[0] == "x: a tensor map is of a matrix of 16-bit elements, not of fp32"
    assert findings(template(), hidden=60, rows=24)[0] == "x: rows of 60 elements, not of whole words of 16 bytes"


@pytest.mark.parametrize(
    ("box", "fault"), [("257", "a box of 257 rows"), ("ROWS - 4", "a box of 0 rows"), ("1 // 0", "")]
)
def test_a_box_that_cannot_be_copied_is_found(box: str, fault: str) -> None:
    mapped = replace(template(), launches=(replace(LAUNCH, maps=(TensorMap(of="w", box=box),)),))
    (found,) = findings(mapped, hidden=64, rows=24)
    assert fault in found


MANIFEST = """
region = "{region}"
language = "{language}"
about = "A test."
dtypes = ["bf16"]
{more}
[[launch]]
entry = "apply"
arguments = {arguments}
grid = [1]
block = [32]
[[launch.maps]]
of = {of}
box = "{box}"
"""


PRODUCT = '["x", "w", "b", "y"]'
ARGUMENTS = {"silu-mul": '["g", "u", "y"]', "linear": PRODUCT, "linear-merged": PRODUCT}


def loaded(tmp_path: Path, region: str = "silu-mul", **changed: str) -> Template:
    told = {"of": '["g", "u"]', "box": "8", "language": "cuda", "more": "", **changed}
    folder = tmp_path / region / "mine"
    folder.mkdir(parents=True)
    manifest = MANIFEST.format(region=region, arguments=ARGUMENTS[region], **told)
    (folder / "template.toml").write_text(manifest)
    kernel = "kernel.cu" if told["language"] == "cuda" else "kernel.py"
    (folder / kernel).write_text('extern "C" __global__ void apply(const __grid_constant__ apply_args a) {}\n')
    (found,) = load([tmp_path], kinds=facts(), layouts=("rows-of-8",)).templates
    return found


def test_one_table_may_map_several_ports(tmp_path: Path) -> None:
    (launch,) = loaded(tmp_path).launches
    assert launch.maps == (TensorMap(of="g", box="8"), TensorMap(of="u", box="8"))


def test_a_family_may_be_mapped(tmp_path: Path) -> None:
    (launch,) = loaded(tmp_path, region="linear-merged", of='["w"]').launches
    assert launch.maps == (TensorMap(of="w", box="8"),)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"of": '["z"]'}, '"z" is no port that the launch passes'),
        ({"of": '["g", "g"]'}, "g"),
        ({"box": "lines"}, "lines"),
        ({"language": "triton"}, "a triton launch has no tensor maps"),
        ({"of": '["w"]', "region": "linear", "more": 'layouts.w = "rows-of-8"'}, '"w" is in rows-of-8'),
        ({"of": '["b"]', "region": "linear"}, 'a region may lack "b"'),
    ],
)
def test_what_cannot_be_mapped_is_refused(tmp_path: Path, changed: dict[str, str], fault: str) -> None:
    with pytest.raises(AgentCompileError, match=fault):
        loaded(tmp_path, **changed)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a driver without a device is asked to encode; the words of map n are 100 n, 100 n + 1, and so on."""
    asked: list[tuple[Any, ...]] = []

    def encode(*words: Any) -> tuple[Any, Any]:
        asked.append(words)
        return bindings.CUresult.CUDA_SUCCESS, SimpleNamespace(opaque=[100 * len(asked) + at for at in range(16)])

    names = {name: getattr(bindings, name) for name in dir(bindings) if not name.startswith("__")}
    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(**(names | {"cuTensorMapEncodeTiled": encode})))
    return asked


def test_maps_follow_the_pointers_at_a_multiple_of_their_alignment(encoded: list[tuple[Any, ...]]) -> None:
    maps = (TensorMap(of="x", box="8", rows=5, columns=64), TensorMap(of="w", box="16", rows=24, columns=64))
    launch = Launch(entry="f", arguments=("x", "w", "y"), grid=("8",), block=("32",), maps=maps)
    # A struct that is aligned to 64 bytes begins 48 bytes behind the place of parameters, as on an H200.
    entry = Entry(function=7, shared_bytes=0, parameters=((48, 64 + 2 * 128),))
    module: Any = SimpleNamespace(path=Path("a.cubin"), entry=lambda *_: entry)
    words, places = Call.of(module, launch, (0x1000, 0x2000, 0x3000), dependent=False).keep
    assert places[0] == ctypes.addressof(words)
    found = [word or 0 for word in words]
    assert found == [0x1000, 0x2000, 0x3000, *[0] * 5, *range(100, 116), *range(200, 216)]
    assert [(int(ask[2]), [int(extent) for extent in ask[3]]) for ask in encoded] == [
        (0x1000, [64, 5]),
        (0x2000, [64, 24]),
    ]
    assert [[int(extent) for extent in ask[5]] for ask in encoded] == [[64, 8], [64, 16]]
