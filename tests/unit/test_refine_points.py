"""Whatever a model writes is read as data: it becomes a template or a finding, and never an exception."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.catalog.manifest import Manifest
from agentcompile.evaluation.evaluator import EvaluationJob
from agentcompile.ir.attempt import Evaluated, Written, WrittenLanguage
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import canonical
from agentcompile.ir.template import Template
from agentcompile.ir.trial import BuildFailed, Rejected, Verdict
from agentcompile.refine import feedback
from agentcompile.refine.contract import contract_of
from agentcompile.refine.evaluating import RegionEvaluator
from agentcompile.refine.incumbent import Bar
from agentcompile.refine.points import MAX_MANIFEST_CHARACTERS, MOST_POINTS, legal_points, read
from agentcompile.tuning.tasks import TuneTask
from tests.cpu.written import CEILING, KERNEL, MANIFEST, SLOW, task
from tests.unit.fakes import linear_region, target

REGION = linear_region(dtype="fp32", hidden=64, rows=32)
ASKED = task(REGION, target=target())


class NothingBuilds:
    """An evaluator for which every text is a failed build; it times nothing."""

    def prepare(self, jobs: Iterable[EvaluationJob], *, depth: str = "search") -> Iterator[tuple[EvaluationJob, Any]]:
        return ((job, BuildFailed(log=f"{job.source.text[-200:]}")) for job in jobs)


def evaluated(made: Written, asked: TuneTask = ASKED, language: WrittenLanguage = "cpp") -> Evaluated:
    contract = contract_of(asked, language, CEILING, SLOW)
    return RegionEvaluator(asked, contract, NothingBuilds(), Bar(times=SLOW)).evaluate(made)  # type: ignore[arg-type]


def template(manifest: str, kernel: str = KERNEL) -> Template:
    found = read(Written(manifest=manifest, kernel=kernel), "linear", "cpp", "fp32")
    assert isinstance(found, Template), found
    return found


def fails_well(made: Written, asked: TuneTask = ASKED, language: WrittenLanguage = "cpp") -> Verdict:
    """The verdict, which is a refusal or a failed build, with feedback that JSON can hold."""
    found = evaluated(made, asked, language)
    assert isinstance(found.verdict, (Rejected, BuildFailed)), found
    assert found.ns == math.inf
    assert len(canonical(found.feedback)) < 50_000
    canonical(encode(found.verdict))
    return found.verdict


SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**40, -(10**40), 10**4200]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["", "x", "matvec", "hidden * hidden * hidden * hidden * hidden", "1 // 0", "9" * 400, "kernel.cpp"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
KEYS = st.sampled_from([*(field.name for field in dataclasses.fields(Manifest)), "other"])
FIELDS = {
    "params": st.dictionaries(
        st.sampled_from(["A", "ROWS", "a", "x"]),
        st.fixed_dictionaries(
            {"domain": st.lists(SCALARS, max_size=4), "default": SCALARS, "about": st.just("what it trades")}
        ),
        max_size=3,
    ),
    "workspaces": st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["part", "x", "float"]),
                "dtype": st.sampled_from(["fp32", "fp8"]),
                "count": SCALARS,
            }
        ),
        max_size=2,
    ),
    "launch": st.lists(
        st.fixed_dictionaries(
            {
                "entry": st.sampled_from(["matvec", "row", "main", "hidden", "x y"]),
                "arguments": st.lists(st.sampled_from(["x", "w", "b", "y", "part", "A", "z"]), max_size=5),
            },
            optional={"grid": st.lists(SCALARS, max_size=2), "in_place": VALUES, "early": VALUES, "pitched": VALUES},
        ),
        max_size=3,
    ),
    "requires": st.lists(SCALARS, max_size=3),
}
RIGHT: dict[str, Any] = {
    "region": "linear",
    "language": "cpp",
    "about": "rows",
    "dtypes": ["fp32"],
    "launch": [{"entry": "matvec", "arguments": ["x", "w", "y"]}],
}


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sets(KEYS, max_size=2))
def test_no_manifest_raises(changes: dict[str, Any], without: set[str]) -> None:
    made = {name: value for name, value in {**RIGHT, **changes}.items() if name not in without}
    fails_well(Written(manifest=tomli_w.dumps(made), kernel=KERNEL))


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_no_manifest_with_the_right_tables_and_wrong_values_raises(changes: dict[str, Any]) -> None:
    fails_well(Written(manifest=tomli_w.dumps({**RIGHT, **changes}), kernel=KERNEL))


@given(st.text(st.characters(), max_size=300), st.text(st.characters(), max_size=300))
def test_no_text_raises(manifest: str, kernel: str) -> None:
    fails_well(Written(manifest=manifest, kernel=kernel))
    fails_well(Written(manifest=MANIFEST, kernel=f"void matvec() {{}}\n{kernel}"))
    fails_well(Written(manifest=f"{MANIFEST}\n{manifest}", kernel=KERNEL))


@pytest.mark.parametrize(
    "manifest",
    [
        "[" * 100_000,
        "a = " + "[" * 20_000,
        MANIFEST + "x = " + "9" * 10_000,
        MANIFEST + "x = 0x" + "f" * 10_000,
        MANIFEST.replace('"fp32"', '"fp32", "bf16"') + "[dtype.bf16]\nkernel = '../../../etc/passwd'\n",
        MANIFEST + 'pitched = [["x", "x"]]\n',
        "kernel = 'linear/rows/kernel.cpp'\n" + MANIFEST,
        MANIFEST.replace("region", "\ufeffregion", 1),
        MANIFEST + "tokens = [1, 99999999999999999999]\n",
        "#" * (MAX_MANIFEST_CHARACTERS + 1),
        "requires = ['" + "(" * 5000 + "']\n" + MANIFEST,
        'accumulation = "library"\n' + MANIFEST,
    ],
    ids=[
        "deep",
        "deep-array",
        "digits",
        "hex",
        "outside",
        "pitched",
        "foreign",
        "mark",
        "tokens",
        "long",
        "brackets",
        "library",
    ],
)
def test_a_hostile_manifest_is_refused(manifest: str) -> None:
    assert isinstance(fails_well(Written(manifest=manifest, kernel=KERNEL)), Rejected)


@pytest.mark.parametrize("kernel", ["\ud800", KERNEL + "\0", "x" * 10_000_000, '#include "gemv.h"\n' + KERNEL, ""])
def test_a_hostile_kernel_is_refused(kernel: str) -> None:
    assert isinstance(fails_well(Written(manifest=MANIFEST, kernel=kernel)), Rejected)


GPU = target(kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, toolchain="nvrtc 13.0")
ON_GPU = task(REGION, target=GPU)
TRITON = MANIFEST.replace('"cpp"', '"triton"') + 'grid = ["rows"]\nblock = ["128"]\n'
CUDA = TRITON.replace('"triton"', '"cuda"')
HEAD = "@triton.jit\ndef matvec(x, w, y):\n    "


@pytest.mark.parametrize("count", [100, 400, 1000, 5000, 100_000])
@pytest.mark.parametrize(
    "text",
    [
        lambda n: HEAD + "x" + ".b" * n + "()",
        lambda n: HEAD + "x" + "()" * n,
        lambda n: HEAD + "x = " + "-" * n + "1",
        lambda n: HEAD + "x = 1" + " + 1" * n,
        lambda n: HEAD + "pass\nx = 1" + "\nx = 1" * n,
        lambda n: HEAD + "x = " + "[" * n,
        lambda n: HEAD + "pass\nX = tl.constexpr(" + "9" * n + ")",
    ],
    ids=["attributes", "calls", "minus", "sum", "statements", "brackets", "digits"],
)
def test_no_nested_text_of_triton_raises(text: Callable[[int], str], count: int) -> None:
    fails_well(Written(manifest=TRITON, kernel=text(count)), ON_GPU, "triton")


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('block = ["128"]', 'block = ["4096"]', "geometry"),
        ('block = ["128"]', "", "geometry"),
        ('grid = ["rows"]', 'grid = ["0"]', "geometry"),
        ('grid = ["rows"]', 'grid = ["rows // (rows - rows)"]', "geometry"),
        ('grid = ["rows"]', 'grid = ["rows"]\nshared_bytes = 1000000', "geometry"),
        ('grid = ["rows"]', 'grid = ["rows"]\ncluster = ["1 // 0"]', "geometry"),
        ('grid = ["rows"]', 'grid = ["rows", "rows", "rows", "rows"]', "geometry"),
    ],
)
def test_a_launch_that_cannot_be_started_is_refused_before_a_compiler_runs(old: str, new: str, rule: str) -> None:
    kernel = 'extern "C" __global__ void matvec(const __grid_constant__ matvec_args a) {}\n'
    assert isinstance(fails_well(Written(manifest=CUDA, kernel=kernel), ON_GPU, "cuda"), BuildFailed)
    assert old in CUDA
    found = fails_well(Written(manifest=CUDA.replace(old, new), kernel=kernel), ON_GPU, "cuda")
    assert isinstance(found, Rejected)
    assert {one.rule for one in found.findings if one.severity == "error"} == {rule}


def test_a_finding_names_key_and_remedy_and_no_path_of_the_machine() -> None:
    (found,) = fails_well(Written(manifest=MANIFEST.replace("about", "abuot"), kernel=KERNEL)).findings  # type: ignore[union-attr]
    assert "template.toml: abuot: unknown key" in found.text
    assert "did you mean `about`?" in found.text
    assert "/tmp" not in found.text
    assert found.text.startswith("linear/written-")


def test_the_default_comes_first_and_few_others_follow() -> None:
    params = "".join(
        f'\n[params.{name}]\ndomain = [1, 2, 4, 8, 16]\ndefault = 4\nabout = "unrolling"\n' for name in ("A", "B", "C")
    )
    found, _ = legal_points(template(MANIFEST + params), REGION, target())
    assert found[0] == (("A", 4), ("B", 4), ("C", 4))
    assert len(found) == 1 + MOST_POINTS
    assert len(set(found)) == len(found)


def test_a_template_whose_default_is_not_legal_is_tried_at_legal_points() -> None:
    params = '\n[params.A]\ndomain = [1, 3]\ndefault = 3\nabout = "unrolling"\n'
    found, told = legal_points(template(f'requires = ["A < 3"]\n{MANIFEST}{params}'), REGION, target())
    assert found == ((("A", 1),),)
    assert [one.rule for one in told if one.severity == "error"] == ["constraints"]


def test_a_long_log_keeps_its_head_and_its_end() -> None:
    log = feedback.shortened("error: first\n" + "noise\n" * 10_000 + "last")
    assert len(log) < feedback.LOG + 100
    assert log.startswith("error: first")
