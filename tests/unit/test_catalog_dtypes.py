"""A manifest of several dtypes: what regions of each see, which kernel files there are, and names of before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.catalog import discover
from agentcompile.catalog.aliases import ALIASES
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.space import Space
from tests.templates.suite import CATALOG
from tests.unit.fakes import linear_region, rows_template, target
from tests.unit.test_catalog import KERNEL, LIBRARY, MANIFEST, catalog, swap, write

BOTH = swap('["bf16"]', '["bf16", "fp16", "fp32"]').replace('rounds = [["n", "bf16"]]\n', "")
OWN = """
[dtype.fp32]
kernel = "kernel_fp32.cpp"
arch = ["avx2"]
accumulation = "float64"
requires = ["ROWS <= 8"]
rounds = [["n", "fp32"]]
layouts.norm = "rows16-k2"
params.ROWS.domain = [4, 8]
params.ROWS.default = 8
"""


def test_a_dtype_with_a_table_of_its_own_is_a_template_of_its_own(tmp_path: Path) -> None:
    root = write(tmp_path, manifest=BOTH + OWN)
    (root / "rmsnorm-linear/rows/kernel_fp32.cpp").write_text("void main_rows();\n")
    common, own = catalog(root).templates
    assert (common.dtypes, own.dtypes) == (("bf16", "fp16"), ("fp32",))
    assert (own.source, own.source_name, own.includes) == ("void main_rows();\n", "kernel_fp32.cpp", ())
    assert (own.arch, own.accumulation, own.requires) == (("avx2",), "float64", ("ROWS <= 8",))
    assert own.rounds == (("n", "fp32"),)
    assert own.layouts == (("norm", "rows16-k2"), ("w", "rows16-k2"))
    (rows,) = own.params
    assert (rows.domain, rows.default, rows.about) == ((4, 8), 8, common.params[0].about)
    alone = catalog(write(tmp_path / "alone", manifest=BOTH)).templates[0]
    assert common == replace(alone, dtypes=common.dtypes)
    assert (own.launches, own.workspaces, own.about) == (common.launches, common.workspaces, common.about)


def test_what_regions_of_a_dtype_see_is_what_a_manifest_of_that_dtype_alone_says(tmp_path: Path) -> None:
    told = '\n[dtype.bf16]\nrounds = [["n", "bf16"]]\n'
    both = catalog(write(tmp_path / "both", manifest=BOTH + told)).get("rmsnorm-linear/rows", "bf16")
    (alone,) = catalog(write(tmp_path / "alone")).templates
    assert both == alone
    assert both.digest == alone.digest


def test_a_template_is_found_by_its_dtype_and_served_to_regions_of_it(tmp_path: Path) -> None:
    found = catalog(write(tmp_path, manifest=BOTH + '\n[dtype.fp32]\nlayouts.w = "row-major"\n'))
    id = "rmsnorm-linear/rows"
    assert found.ids == [id]
    assert found.get(id, "fp32").layout("w") == "row-major"
    assert found.get(id, "fp16").layout("w") == "rows16-k2"
    assert [one.dtypes for one in found.serving("rmsnorm-linear", "fp32")] == [("fp32",)]
    assert [one.dtypes for one in found.serving("rmsnorm-linear", "fp64")] == [("bf16", "fp16"), ("fp32",)]
    assert found.find(id, "fp32") == found.get(id, "fp32")
    assert found.find(id, "fp64") == found.get(id, "bf16")
    assert found.find("rmsnorm-linear/none", "fp32") is None
    for dtype, said in (("", "differs by dtype"), ("fp64", "does not serve fp64")):
        with pytest.raises(AgentCompileError, match=said) as caught:
            found.get(id, dtype)
        assert "bf16, fp16, fp32" in caught.value.hint


def test_a_space_takes_the_template_of_its_regions_dtype() -> None:
    bf16, fp32 = rows_template(), rows_template(dtypes=("fp32",), about="of fp32")
    assert Space(linear_region(), [bf16, fp32], target()).templates == (bf16,)
    assert not Space(linear_region(), [fp32], target()).templates
    assert Space(linear_region(), [fp32], target()).default(fp32.id) is None


def test_a_kernel_of_another_template_is_taken_as_if_it_lay_there(tmp_path: Path) -> None:
    shared = swap('dtypes = ["bf16"]', 'dtypes = ["bf16"]\nkernel = "rmsnorm-linear/rows/kernel.cpp"')
    write(tmp_path / "copied", id="rmsnorm-linear/more")
    write(tmp_path / "shared")
    write(tmp_path / "shared", id="rmsnorm-linear/more", manifest=shared, kernel_cpp="")
    write(tmp_path / "far", id="rmsnorm-linear/more", manifest=shared, kernel_cpp="")
    copied = catalog(tmp_path / "copied").get("rmsnorm-linear/more")
    assert catalog(tmp_path / "shared").get("rmsnorm-linear/more") == copied
    write(tmp_path / "near")
    assert catalog(tmp_path / "far", tmp_path / "near").get("rmsnorm-linear/more") == copied
    assert copied.source == KERNEL


def kernel(name: str) -> str:
    return swap('dtypes = ["bf16"]', f'dtypes = ["bf16"]\nkernel = "{name}"')


BROKEN = [
    (MANIFEST + "\n[dtype.fp32]\nrounds = []\n", "dtype.fp32: it is none of its dtypes", "bf16"),
    (MANIFEST + "\n[dtype.bf16]\nround = []\n", "dtype.bf16.round: unknown key", "did you mean `rounds`?"),
    (MANIFEST + "\n[dtype.bf16]\nparams.COLS.default = 1\n", "dtype.bf16.params.COLS: there is no such", "ROWS"),
    (MANIFEST + "\n[dtype.bf16]\nparams.ROWS.default = 3\n", "params.ROWS.default: 3 is not in the domain", "1, 2, 4"),
    (
        BOTH + "\n[dtype.fp16]\nparams.ROWS.domain = [1]\n",
        "for fp16: params.ROWS.default: 2 is not in the domain",
        "allowed: 1",
    ),
    (BOTH + '\n[dtype.fp32]\nlayouts.v = "row-major"\n', "for fp32: layouts.v: rmsnorm-linear has no port", "w"),
    (
        swap('["bf16"]', '["bf16", "bf16"]') + "\n[dtype.bf16]\nrounds = []\n",
        'dtypes: "bf16" appears 2 times',
        "each once",
    ),
    (kernel("kernel_b.cpp"), 'language: "cpp" with kernel.cpp beside it', "it takes kernel_b.cpp and no other"),
    (kernel("../rows/kernel.cpp"), 'kernel: "../rows/kernel.cpp" is no kernel file', "linear/rows/kernel.cpp"),
    (kernel("kernel.cu"), 'kernel: "kernel.cu" is no kernel file of a cpp template', "kernel.cpp"),
    (kernel("/etc/kernel.cpp"), 'kernel: "/etc/kernel.cpp" is no kernel file', "beside it"),
    (
        MANIFEST + '\n[dtype.bf16]\nkernel = "notes.txt"\n',
        'dtype.bf16.kernel: "notes.txt" is no kernel file',
        "beside it",
    ),
]


@pytest.mark.parametrize(("manifest", "message", "hint"), BROKEN)
def test_a_broken_manifest_is_refused_by_file_key_and_value(
    tmp_path: Path, manifest: str, message: str, hint: str
) -> None:
    with pytest.raises(AgentCompileError) as caught:
        catalog(write(tmp_path / "mine", manifest=manifest))
    assert caught.value.message.startswith(f"mine/rmsnorm-linear/rows/template.toml: {message}")
    assert hint in caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_kernel_of_another_template_that_is_not_there_is_refused(tmp_path: Path) -> None:
    other = kernel("rmsnorm-linear/row/kernel.cpp")
    root = write(write(tmp_path), id="rmsnorm-linear/more", manifest=other, kernel_cpp="")
    with pytest.raises(AgentCompileError, match=r'"rmsnorm-linear/row/kernel\.cpp": there is no such file') as caught:
        catalog(root)
    assert "did you mean `rmsnorm-linear/rows/kernel.cpp`?" in caught.value.hint


def test_a_library_call_names_no_kernel(tmp_path: Path) -> None:
    manifest = LIBRARY + 'kernel = "linear/rows/kernel.cpp"\n'
    with pytest.raises(AgentCompileError, match="is no kernel file of a library template"):
        catalog(write(tmp_path, id="linear/library", manifest=manifest, kernel_cpp=""))


def test_a_template_of_before_is_found_under_its_name_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, so that the digests that a lock pins are those that are found."""
    then = swap('["bf16"]', '["fp32"]').replace('rounds = [["n", "bf16"]]\n', "")
    (was,) = catalog(write(tmp_path / "then", id="rmsnorm-linear/rows-fp32", manifest=then)).templates
    told = '\n[dtype.fp32]\nkernel = "kernel_fp32.cpp"\n'
    root = write(tmp_path / "now", manifest=BOTH + told)
    (root / "rmsnorm-linear/rows/kernel_fp32.cpp").write_text(KERNEL)
    now = catalog(root)
    assert now.find("rmsnorm-linear/rows-fp32", "fp32") == was
    assert now.get("rmsnorm-linear/rows", "fp32").digest != was.digest
    monkeypatch.setattr(discover, "ALIASES", {})
    assert now.find("rmsnorm-linear/rows-fp32", "fp32") is None


def test_a_folder_of_ones_own_comes_before_a_name_of_before(tmp_path: Path) -> None:
    (own,) = catalog(write(tmp_path, id="rmsnorm-linear/rows-fp32")).templates
    assert catalog(tmp_path).find("rmsnorm-linear/rows-fp32", "fp32") == own


@pytest.mark.parametrize("old", ALIASES)
def test_what_an_old_name_means_is_there_and_serves_its_dtype_alone(old: str) -> None:
    id, dtype = ALIASES[old]
    found = CATALOG.find(old, dtype)
    assert found is not None
    assert (found.id, found.dtypes) == (old, (dtype,))
    assert replace(found, id=id, source_name="") == replace(CATALOG.get(id, dtype), source_name="")
    assert old not in CATALOG.ids


def test_no_old_name_is_forgotten() -> None:
    variants = Counter(old.partition("/")[2] for old in ALIASES)
    assert variants == {"packed-fp32": 9, "rows-fp32": 3, "thin-rows-fp16": 3, "heads-fp32": 2, "split-fp32": 2}
