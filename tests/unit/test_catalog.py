"""The catalog: folders become templates, and every mistake in a manifest is named by file, key, value and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentcompile.catalog import Catalog, load
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.kind import KindFacts, PortFacts
from tests.unit.fakes import linear_facts

RMSNORM_LINEAR = KindFacts(
    name="rmsnorm-linear",
    ports=(
        PortFacts(family="x", role="activation", access="read"),
        PortFacts(family="norm", role="weight", access="read"),
        PortFacts(family="w", role="weight", access="read", many=True),
        PortFacts(family="b", role="weight", access="read", many=True, optional=True),
        PortFacts(family="y", role="output", access="write", many=True),
    ),
    dims=("hidden", "rows", "tokens"),
    constants=("eps", "offset"),
    interior=("n",),
)
KINDS = {kind.name: kind for kind in (linear_facts(), linear_facts(merged=True), RMSNORM_LINEAR)}
LAYOUTS = ("row-major", "rows16-k2")
MANIFEST = """\
region = "rmsnorm-linear"
language = "cpp"
about = "blocks of rows of all matrices, the norm computed by every thread"
dtypes = ["bf16"]
arch = ["avx512f", "avx512_bf16"]
requires = ["hidden % 32 == 0", "ROWS * 2 <= 32"]
rounds = [["n", "bf16"]]

[layouts]
w = "rows16-k2"

[params.ROWS]
domain = [1, 2, 4]
default = 2
about = "blocks of 16 rows at once"

[[workspaces]]
name = "partial"
dtype = "fp32"
count = "hidden * threads"

[[launch]]
entry = "main_rows"
arguments = ["x", "norm", "w", "b", "y", "partial"]
"""
KERNEL = '#include "vec.h"\nextern "C" void main_rows(const main_rows_args& a, int rank, int size) {}\n'


def write(root: Path, *, manifest: str = MANIFEST, id: str = "rmsnorm-linear/rows", **files: str) -> Path:
    """A folder of templates with one in it and two shared texts."""
    folder = root / id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "template.toml").write_text(manifest)
    for name, text in ({"kernel_cpp": KERNEL} | files).items():
        if text:
            (folder / name.replace("_", ".", 1)).write_text(text)
    shared = root / "_include"
    shared.mkdir(exist_ok=True)
    (shared / "vec.h").write_text('#pragma once\n#include "bits.h"\n#include <cmath>\n')
    (shared / "bits.h").write_text('#pragma once\n#include "vec.h"\n')
    return root


def catalog(*roots: Path) -> Catalog:
    return load(roots, kinds=KINDS, layouts=LAYOUTS)


def test_a_folder_becomes_a_template_whose_id_is_its_path(tmp_path: Path) -> None:
    (template,) = catalog(write(tmp_path)).templates
    assert template.id == "rmsnorm-linear/rows"
    assert template.source == KERNEL
    assert template.source_name == "kernel.cpp"
    assert template.layouts == (("w", "rows16-k2"),)
    assert [param.name for param in template.params] == ["ROWS"]
    assert template.workspaces[0].count == "hidden * threads"
    assert [name for name, _ in template.includes] == ["vec.h", "bits.h"]


def test_a_change_of_a_shared_text_changes_the_digest_and_nothing_else_does(tmp_path: Path) -> None:
    root = write(tmp_path)
    before = catalog(root).templates[0].digest
    assert catalog(root).templates[0].digest == before
    (root / "_include" / "other.h").write_text("int other;\n")
    assert catalog(root).templates[0].digest == before
    (root / "_include" / "bits.h").write_text("int changed;\n")
    assert catalog(root).templates[0].digest != before


def test_templates_are_ordered_by_id_and_found_by_id_and_kind(tmp_path: Path) -> None:
    write(tmp_path, id="rmsnorm-linear/zeta")
    write(tmp_path, id="rmsnorm-linear/alpha")
    write(tmp_path, id="linear/library", manifest=LIBRARY, kernel_cpp="")
    found = catalog(tmp_path)
    assert [template.id for template in found.templates] == [
        "linear/library",
        "rmsnorm-linear/alpha",
        "rmsnorm-linear/zeta",
    ]
    assert [template.id for template in found.serving("linear", "bf16")] == ["linear/library"]
    assert found.get("rmsnorm-linear/zeta").id == "rmsnorm-linear/zeta"
    with pytest.raises(AgentCompileError) as caught:
        found.get("rmsnorm-linear/zeto")
    assert "did you mean `rmsnorm-linear/zeta`?" in caught.value.hint


LIBRARY = """\
region = "linear"
language = "library"
about = "PyTorch's own"
dtypes = ["bf16", "fp32"]
call = "torch.linear"
"""


def test_a_second_root_adds_templates_and_sees_the_shared_texts_of_the_first(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b", id="rmsnorm-linear/mine")
    for path in (second / "_include").iterdir():
        path.unlink()
    found = catalog(first, second)
    assert [template.id for template in found.templates] == ["rmsnorm-linear/mine", "rmsnorm-linear/rows"]


def test_one_id_in_two_roots_is_refused_with_both_files(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError) as caught:
        catalog(write(tmp_path / "a"), write(tmp_path / "b"))
    assert caught.value.message == "b/rmsnorm-linear/rows/template.toml: rmsnorm-linear/rows was found already"
    assert "a/rmsnorm-linear/rows/template.toml" in caught.value.hint


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="no such folder of templates"):
        catalog(tmp_path / "none")


def test_files_that_are_no_template_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "rmsnorm-linear" / "notes.txt").write_text("x")
    assert len(catalog(tmp_path).templates) == 1


def swap(old: str, new: str) -> str:
    assert old in MANIFEST
    return MANIFEST.replace(old, new, 1)


# Each: the manifest, the start of the message after the file's name, and what the hint must offer.
BROKEN = [
    ("region = ", "not TOML: Invalid value", "correct the syntax"),
    (swap("language =", "langauge ="), "langauge: unknown key", "did you mean `language`?"),
    (swap('"cpp"', '"c++"'), 'language: "c++" is not one of cuda, triton, cpp, library', "cuda, triton, cpp, library"),
    (swap('"cpp"', '"cuda"'), 'language: "cuda" with kernel.cpp beside it', "it takes kernel.cu and no other"),
    (swap('"cpp"', '"library"'), 'language: "library" with kernel.cpp beside it', "it takes no kernel file"),
    (swap('region = "rmsnorm-linear"', ""), "region: missing", "it takes a text"),
    (
        swap('"rmsnorm-linear"', '"rmsnorm-linaer"'),
        'region: "rmsnorm-linaer" is not a region kind',
        "did you mean `rmsnorm-linear`?",
    ),
    (
        swap('"rmsnorm-linear"', '"linear"'),
        'region: "linear" differs from the folder rmsnorm-linear/',
        "<kind>/<variant>/",
    ),
    (
        swap('"blocks of rows of all matrices, the norm computed by every thread"', '" "'),
        "about: empty",
        "one sentence",
    ),
    (swap('["bf16"]', '["bf17"]'), 'dtypes[0]: "bf17" is not one of bf16, fp16, fp32', "bf16, fp16, fp32"),
    (swap('["bf16"]', "[]"), "dtypes: empty", "at least one"),
    (swap('["bf16"]', '["bf16", "bf16"]'), 'dtypes: "bf16" appears 2 times', "each once"),
    (
        swap('"avx512f"', '"avx512x"'),
        'arch[0]: "avx512x" is not a known instruction-set extension',
        "did you mean `avx512f`?",
    ),
    (
        swap('language = "cpp"', 'language = "cpp"\nphases = ["train"]'),
        'phases[0]: "train" is not one of decode, prefill',
        "decode, prefill",
    ),
    (swap('language = "cpp"', 'language = "cpp"\nphases = []'), "phases: empty", "at least one"),
    (swap("params.ROWS", "params.rows"), "params.rows: parameter names are upper case", "ROWS"),
    (swap("params.ROWS", "params.ISA_X"), "params.ISA_X: parameter names are upper case", "ROWS"),
    (swap("[1, 2, 4]", "[]"), "params.ROWS.domain: empty", "every value"),
    (swap("[1, 2, 4]", "[1, 2, 2]"), "params.ROWS.domain: 2 appears 2 times", "each value once"),
    (swap("[1, 2, 4]", '[1, 2, "4"]'), 'params.ROWS.domain: "4" is not a whole number', "integers"),
    (swap("[1, 2, 4]", "[1, 2, true]"), "params.ROWS.domain[2]: true is not a whole number or a text", "whole number"),
    (swap("default = 2", "default = 3"), "params.ROWS.default: 3 is not in the domain", "allowed: 1, 2, 4"),
    (swap("default = 2", ""), "params.ROWS.default: missing", "a whole number or a text"),
    (swap('about = "blocks of 16 rows at once"', 'about = ""'), "params.ROWS.about: empty", "one line"),
    (swap("[1, 2, 4]", str(list(range(70000)))), "params: the domains span 70000 points, more than 65536", "shorten"),
    (
        swap("hidden % 32 == 0", "hidden % 32 = 0"),
        "requires[0]: unexpected '=' at column 13 of",
        "whole numbers, names",
    ),
    (
        swap("hidden % 32 == 0", "hiden % 32 == 0"),
        "requires[0]: `hiden % 32 == 0` names hiden, which is unknown",
        "did you mean `hidden`?",
    ),
    (swap("ROWS * 2 <= 32", "COLS * 2 <= 32"), "requires[1]: `COLS * 2 <= 32` names COLS, which is unknown", "ROWS"),
    (swap("ROWS * 2 <= 32", "eps > 0"), "requires[1]: `eps > 0` names eps", "allowed: ROWS"),
    (swap("ROWS * 2 <= 32", "open(1, 2)"), "requires[1]: no function 'open'", "min max ceil_div round_up"),
    (swap('[["n", "bf16"]]', '[["x", "bf16"]]'), 'rounds[0]: "x" is not a value inside rmsnorm-linear', "allowed: n"),
    (swap('[["n", "bf16"]]', '[["n", "int4"]]'), 'rounds[0][1]: "int4" is not one of bf16, fp16, fp32', "bf16"),
    (swap('[["n", "bf16"]]', '[["n"]]'), "rounds[0][1]: missing", "one of bf16"),
    (
        swap('w = "rows16-k2"', 'v = "rows16-k2"'),
        "layouts.v: rmsnorm-linear has no port of that name",
        "x, norm, w, b, y",
    ),
    (swap('w = "rows16-k2"', 'x = "rows16-k2"'), "layouts.x: an activation is always row-major", "norm, w, b"),
    (swap('w = "rows16-k2"', 'w = "rows16"'), 'layouts.w: "rows16" is not a layout', "did you mean `rows16-k2`?"),
    (swap('name = "partial"', 'name = "Partial"'), 'workspaces[0].name: "Partial" is no lower-case name', "partial"),
    (swap('name = "partial"', 'name = "float"'), 'workspaces[0].name: "float" is no lower-case name', "partial"),
    (swap('name = "partial"', 'name = "x"'), 'workspaces[0].name: "x" is taken', "choose another"),
    (swap('"y", "partial"]', '"y"]'), 'workspaces[0].name: "partial" is an argument of no launch', "remove it"),
    (
        swap('"hidden * threads"', '"hidden * thread"'),
        "workspaces[0].count: `hidden * thread` names thread",
        "did you mean `threads`?",
    ),
    (swap('"hidden * threads"', "1.5"), "workspaces[0].count: 1.5 is not a whole number or a text", "whole number"),
    (
        swap('dtype = "fp32"', 'dtype = "fp8"'),
        'workspaces[0].dtype: "fp8" is not one of fp32, int64, int32, bf16',
        "fp32",
    ),
    (
        swap('"main_rows"', '"main_row"'),
        'launch[0].entry: "main_row" does not occur in kernel.cpp',
        "function of the kernel",
    ),
    (swap('"main_rows"', '"main rows"'), 'launch[0].entry: "main rows" cannot name a function', "otherwise"),
    (swap('"main_rows"', '"hidden"'), 'launch[0].entry: "hidden" cannot name a function', "otherwise"),
    (
        swap('"y", "partial"]', '"z", "partial"]'),
        'launch[0].arguments: "z" is neither a port nor a workspace',
        "x, norm, w, b, y, partial",
    ),
    (swap('"y", "partial"]', '"y", "ROWS", "partial"]'), 'launch[0].arguments: "ROWS" is neither', "allowed: x"),
    (swap('"y", "partial"]', '"y", "y", "partial"]'), 'launch[0].arguments: "y" appears 2 times', "once"),
    (swap("[[launch]]", "[[launches]]"), "launches: unknown key", "did you mean `launch`?"),
    (MANIFEST + 'grid = ["hidden"]\n', "launch[0]: a C++ launch has no geometry", "remove grid"),
    (MANIFEST.partition("[[workspaces]]")[0], "launch: missing", "[[launch]]"),
    (
        swap('language = "cpp"', 'language = "cpp"\ncall = "torch.linear"'),
        'call: "torch.linear" in a cpp template',
        "remove it",
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


def test_a_library_template_without_a_call_or_with_launches_is_refused(tmp_path: Path) -> None:
    def refused(manifest: str) -> str:
        with pytest.raises(AgentCompileError) as caught:
            catalog(write(tmp_path, id="linear/library", manifest=manifest, kernel_cpp=""))
        return caught.value.message

    assert "call: missing" in refused(LIBRARY.replace('call = "torch.linear"', ""))
    assert "launch: a library call has no launches" in refused(LIBRARY + '[[launch]]\nentry = "f"\narguments = []\n')
    assert "arch: a library call runs anywhere" in refused(LIBRARY + 'arch = ["avx2"]')


def test_a_library_template_may_name_the_cuda_architectures_that_it_runs_on(tmp_path: Path) -> None:
    write(tmp_path, id="linear/library", manifest=LIBRARY + 'arch = ["sm_90a"]', kernel_cpp="")
    assert catalog(tmp_path).get("linear/library").arch == ("sm_90a",)


def test_a_kernel_file_that_is_missing_or_doubled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=re.escape('language: "cpp" with no kernel file beside it')):
        catalog(write(tmp_path / "a", kernel_cpp=""))
    with pytest.raises(AgentCompileError, match=re.escape('language: "cpp" with kernel.cpp, kernel.cu beside it')):
        catalog(write(tmp_path / "b", kernel_cu="x"))


@pytest.mark.parametrize("name", ["none.h", "../vec.h", "", "sub/vec.h"])
def test_an_include_that_is_no_shared_text_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    kernel = KERNEL + f'#  include "{name}"  // why\n'
    with pytest.raises(AgentCompileError) as caught:
        catalog(write(tmp_path / "t", kernel_cpp=kernel))
    where = "t/rmsnorm-linear/rows/kernel.cpp:3"
    assert caught.value.message == f'{where}: #include "{name}": no such file in _include/'
    assert "bits.h, vec.h" in caught.value.hint


def test_a_kernel_of_a_megabyte_and_one_that_is_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="more than 1048576"):
        catalog(write(tmp_path / "a", kernel_cpp=KERNEL + " " * (1 << 20)))
    root = write(tmp_path / "b")
    (root / "rmsnorm-linear/rows/kernel.cpp").write_bytes(b"\xff")
    with pytest.raises(AgentCompileError, match=r"b/rmsnorm-linear/rows/kernel\.cpp:1: byte 0xff is not UTF-8"):
        catalog(root)


@pytest.mark.parametrize("variant", ["Rows", "two words", 'quo"te', "new\nline", "-flag", "dot.ted", "ünï"])
def test_a_folder_whose_name_could_be_read_as_anything_else_is_refused(tmp_path: Path, variant: str) -> None:
    with pytest.raises(AgentCompileError) as caught:
        catalog(write(tmp_path, id=f"rmsnorm-linear/{variant}"))
    assert f"{variant!r} cannot name a variant" in caught.value.message


def test_a_manifest_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "linear" / "odd" / "template.toml").mkdir(parents=True)
    with pytest.raises(AgentCompileError, match=r"template\.toml: cannot be read: Is a directory"):
        catalog(tmp_path)
