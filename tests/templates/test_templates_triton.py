"""Every Triton template over the glob, without a GPU: it compiles for every architecture, within its limits, and what
its text says is right, by Triton's interpreter."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from agentcompile.build import Binary, compile
from agentcompile.build.toolchain import Toolchain
from agentcompile.build.triton import compile_images
from agentcompile.errors import ExitCode
from agentcompile.ir.region import Region
from agentcompile.ir.target import most_shared_bytes
from agentcompile.ir.template import Launch, Params, Source, Template
from agentcompile.ir.trial import BuildFailed
from agentcompile.materialize import specialise
from agentcompile.system.cubins import Image, unpack
from agentcompile.system.store import Store
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, legal, problems
from tests.templates.test_templates_cuda import REGISTERS, gpu, shape

TRITON = [template for template in CATALOG.templates if template.language == "triton"]
IDS = [template.id for template in TRITON]
ARCHS = ("sm_80", "sm_90", "sm_100")
CASES = [
    (t.id, arch, dtype) for t in TRITON for arch in ARCHS for dtype in t.dtypes if arch == "sm_90" or dtype == "bf16"
]
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
FLAGS = ("--gpu-architecture=sm_90",)
HEAD = "import triton\nimport triton.language as tl\n"
DOUBLE = HEAD + 'double_args = {"x": "*fp32", "y": "*fp32"}\n@triton.jit\ndef double(x, y):\n    %s\n'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def built(template: Template, made: Region, params: Params, arch: str, store: Store) -> tuple[Source, Image]:
    assert problems(made, template, params, gpu(arch)) == ()
    source = specialise(template, made, params, gpu(arch))
    assert source.text == specialise(template, made, params, gpu(arch)).text
    images = compile_images(source, store)
    assert isinstance(images, tuple), images
    return source, images[0]


def within_limits(source: Source, image: Image, arch: str, folder: Path) -> None:
    """By what the assembler wrote into the code: registers a thread, and bytes of local memory, where spills go."""
    path = folder / "kernel.cubin"
    path.write_bytes(image.code)
    done = subprocess.run([CUOBJDUMP, "-res-usage", path], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(rf"Function {image.entry}:\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", done.stdout)
    assert found is not None, done.stdout
    registers, stack, local = (int(text) for text in found.groups())
    (launch,) = source.launches
    assert registers * int(launch.block[0]) <= REGISTERS
    assert (stack, local) == (0, 0)
    assert image.shared_bytes <= most_shared_bytes(arch)


@pytest.mark.parametrize(("id", "arch", "dtype"), CASES)
def test_the_default_compiles_for_every_architecture(id: str, arch: str, dtype: str, store: Store) -> None:
    template = CATALOG.get(id, dtype)
    source, image = built(template, shape(template, dtype), template.defaults, arch, store)  # type: ignore[arg-type]
    assert image.code[:4] == b"\x7fELF"
    assert image.entry == source.launches[0].entry
    within_limits(source, image, arch, store.root)


@pytest.mark.parametrize("id", IDS)
def test_the_code_takes_a_pointer_for_each_argument_and_two_of_triton_s_own(id: str, store: Store) -> None:
    template = CATALOG.get(id)
    source, image = built(template, shape(template, "bf16"), template.defaults, "sm_90", store)
    path = store.root / "kernel.cubin"
    path.write_bytes(image.code)
    done = subprocess.run([CUOBJDUMP, "-elf", path], capture_output=True, text=True, timeout=60, check=True)
    found = re.findall(r"Ordinal : 0x(\w+)\s+Offset\s+: 0x(\w+)\s+Size\s+: 0x(\w+)", done.stdout)
    count = len(source.launches[0].arguments) + 2
    assert sorted(tuple(int(text, 16) for text in one) for one in found) == [(i, 8 * i, 8) for i in range(count)]


@pytest.mark.parametrize("id", IDS)
def test_points_drawn_from_the_space_compile_and_fit(id: str, store: Store) -> None:
    template = CATALOG.get(id)
    made = shape(template, "bf16")
    points = legal(made, template, gpu("sm_90"))
    for point in random.Random(zlib.crc32(id.encode())).sample(points, min(3, len(points))):
        source, image = built(template, made, point.params, "sm_90", store)
        within_limits(source, image, "sm_90", store.root)


PROCESSES = 3
"""That interpret texts: each imports PyTorch and Triton."""


@pytest.mark.parametrize("part", range(PROCESSES))
def test_the_texts_are_right_where_nothing_divides(part: int, repository: Path) -> None:
    ids = IDS[part::PROCESSES]
    command = [sys.executable, "-m", "tests.templates.interpreted", *ids]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {id: [] for id in ids}


def test_machine_code_is_the_same_bytes_in_two_stores(tmp_path: Path) -> None:
    template = TRITON[0]
    source = specialise(template, shape(template, "bf16"), template.defaults, gpu("sm_90"))
    toolchain = Toolchain(compiler="", name="none")
    made = [compile(source, Store(tmp_path / name), toolchain=toolchain, limit_s=60) for name in "ab"]
    assert len({one.digest for one in made if isinstance(one, Binary)}) == 1
    assert isinstance(made[0], Binary)
    assert str(tmp_path).encode() not in Path(made[0].path).read_bytes()


def test_a_source_is_compiled_once_and_found_again(store: Store) -> None:
    source = double("tl.store(y, 2 * tl.load(x))")
    toolchain = Toolchain(compiler="", name="none")
    first = compile(source, store, toolchain=toolchain, limit_s=60)
    assert isinstance(first, Binary)
    before = Path(first.path).stat().st_mtime_ns
    assert compile(source, store, toolchain=toolchain, limit_s=60) == first
    assert Path(first.path).stat().st_mtime_ns == before
    assert [image.entry for image in unpack(Path(first.path).read_bytes())] == ["double"]
    assert [path for path in store.root.rglob("*") if path.is_file()] == [Path(first.path)]


def double(body: str, **changed: object) -> Source:
    launch = Launch(entry="double", arguments=("x", "y"), grid=("1",), block=("32",))
    source = Source(language="triton", text=DOUBLE % body, launches=(launch,), workspaces=(), flags=FLAGS)
    return replace(source, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (double("tl.store(y, nothing)"), "nothing is not defined"),
        (double("tl.store(y, x +)"), "SyntaxError"),
        (double("pass", text=DOUBLE % "pass" + "raise ValueError('no')\n"), "ValueError: no"),
        (
            double("pass", text=DOUBLE.replace("def double(x, y)", "def double(y, x)") % "pass"),
            "double takes ['y', 'x']",
        ),
        (
            double("pass", launches=(Launch(entry="double", arguments=("x", "y"), grid=("1",), block=("48",)),)),
            "48 threads",
        ),
    ],
)
def test_what_does_not_compile_is_a_value_with_a_log(source: Source, words: str, store: Store) -> None:
    made = compile_images(source, store)
    assert isinstance(made, BuildFailed)
    assert words in made.log
    assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_a_kernel_that_takes_more_shared_memory_than_there_is_is_refused(store: Store) -> None:
    template = CATALOG.get("linear-residual/triton-rows")
    made_at = region("linear-residual", Extents(hidden=32768, rows=(64,)))
    params = (("BLOCK_ROWS", 16), ("BLOCK_K", 1024), ("NUM_WARPS", 8), ("NUM_STAGES", 9))
    made = compile_images(specialise(template, made_at, params, gpu("sm_90")), store)
    assert isinstance(made, BuildFailed)
    assert "bytes of shared memory, sm_90 has 232448" in made.log


def test_without_triton_the_error_says_what_to_install(repository: Path) -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from agentcompile.build.triton import triton_version\n"
        "from agentcompile.errors import AgentCompileError\n"
        "try:\n    triton_version()\n"
        "except AgentCompileError as error:\n    print(int(error.exit_code), error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"{int(ExitCode.ENVIRONMENT)} install the CUDA extra")
