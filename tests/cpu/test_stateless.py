"""Kernels that keep something between launches are refused for what the compiler made of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.build import Binary, compile, find_toolchain
from agentcompile.build.nvrtc import Cubin, compile_cubin
from agentcompile.build.stateless import state_of_cubin, state_of_library, state_of_object
from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import BuildFailed
from agentcompile.runtime.device_sampling import sampler_source
from agentcompile.runtime.device_step import advance_source
from agentcompile.runtime.native import Library
from agentcompile.system.store import Store
from tests.cpu import jobs

RIGHT = jobs.RIGHT
COUNTED = 'asm volatile("incq {0}(%%rip); movq {0}(%%rip), %0" : "=r"(n));'
ASSEMBLY = f"{RIGHT} long n; {COUNTED} if (n > 9) a.y[0] = 1;"
KEEPS = {
    "a counter in the function": (f"{RIGHT} static long n; if (++n > 60000) a.y[0] = 1;", "", "keeps `n`"),
    "a counter of the file": (f"{RIGHT} if (++launched > 60000) a.y[0] = 1;", "long launched;", "keeps `launched`"),
    "a counter that starts at one": (f"{RIGHT} if (++many > 60000) a.y[0] = 1;", "static long many = 1;", "`many`"),
    "one byte": (f"{RIGHT} if (++byte == 0) a.y[0] = 1;", "static unsigned char byte;", "keeps `byte`"),
    "one of each thread": (f"{RIGHT} static thread_local long mine; if (++mine > 9) a.y[0] = 1;", "", "`mine`"),
    "a member": (
        f"{RIGHT} if (++Box<3>::held > 9) a.y[0] = 1;",
        "template <int> struct Box { static inline long held; };",
        "`held`",
    ),
    "a section of its own": (
        f"{RIGHT} if (++own > 9) a.y[0] = 1;",
        '__attribute__((section("own_part"))) long own = 1;',
        "`own`",
    ),
    "a section named like tables of addresses": (
        f"{RIGHT} if (++own > 60000) a.y[0] = 1;",
        '__attribute__((section(".data.rel.ro_x"))) long own = 1;',
        "keeps `own`",
    ),
    "a section named like tables of calls": (
        f"{RIGHT} if (++own > 60000) a.y[0] = 1;",
        '__attribute__((section(".eh_frame_x"))) long own = 1;',
        "keeps `own`",
    ),
    "what the loader calls": (RIGHT, 'extern "C" void _init() { asm volatile("nop"); }', "runs when it is loaded"),
    "a function that the loader asks for": (
        f"{RIGHT} if (rank > 9) asked();",
        "static void one() {} extern \"C\" void (*choose())() { return one; }"
        'static void asked() __attribute__((ifunc("choose")));',
        "`asked`",
    ),
    "data in assembly": (
        ASSEMBLY.format("hidden_word"),
        'asm(".pushsection .data\\nhidden_word: .quad 0\\n.popsection");',
        "`hidden_word`",
    ),
    "common data": (
        ASSEMBLY.format("both_know"),
        'asm(".local both_know\\n.comm both_know,8,8");',
        "`both_know`",
    ),
    "a table made at the first call": (
        f"{RIGHT} static const float table = a.x[0]; if (table > 9) a.y[0] = 1;", "", "`table`"
    ),
    "what runs when it is loaded": (
        RIGHT,
        '__attribute__((constructor)) static void early() { asm volatile("nop"); }',
        "`.init_array`",
    ),
    "code that can be written": (RIGHT, 'asm(".section patched,\\"awx\\"\\n.quad 0\\n.previous");', "`patched`"),
    "the library's random numbers": (f"{RIGHT} if (rand() == 3) a.y[0] = 1;", "", "calls `rand`"),
    "the environment": (f'{RIGHT} if (rank == 0) setenv("N", "1", 1);', "", "calls `setenv`"),
    "errno": (f"{RIGHT} if (++errno > 9) a.y[0] = 1;", "#include <cerrno>\n", "__errno_location"),
    "memory from the heap": (f"{RIGHT} if (rank == 0) a.y[0] += *(float*)malloc(4);", "", "calls `malloc`"),
}  # fmt: skip
PURE = {
    "constants": (f"static constexpr float t[3] = {{1, 2, 3}}; {RIGHT} if (rank > 9) a.y[0] = t[rank % 3];", ""),
    "tables of addresses": (
        f"{RIGHT} if (rank > 9) a.y[0] = ways[rank % 2](a.x[0]);",
        "static float one(float x) { return x; } static float two(float x) { return 2 * x; }"
        "static float (*const ways[])(float) = {one, two};",
    ),
    "mathematics": (
        f"{RIGHT} if (rank > 9) a.y[0] = std::exp(a.x[0]) + std::tanh(a.x[1]) + std::pow(a.x[2], std::erf(a.x[4]));",
        "#include <cmath>\n",
    ),
    "copies": (f"{RIGHT} if (rank > 9) {{ memcpy(a.y, a.x, 32 * rank); memset(a.y, 0, rank); }}", ""),
}


def built(folder: Path, body: str, before: str) -> Binary | BuildFailed:
    made = compile(jobs.source(body, before=before), Store(folder), toolchain=find_toolchain(), limit_s=60)
    assert isinstance(made, Binary | BuildFailed)
    return made


@pytest.mark.parametrize("name", KEEPS)
def test_what_outlives_a_launch_is_named(tmp_path: Path, name: str) -> None:
    body, before, said = KEEPS[name]
    made = built(tmp_path, body, before)
    assert isinstance(made, BuildFailed)
    assert said in made.log
    assert "constants are `constexpr`, memory is a workspace" in made.log


@pytest.mark.parametrize("name", PURE)
def test_what_only_computes_is_built(tmp_path: Path, name: str) -> None:
    assert isinstance(built(tmp_path, *PURE[name]), Binary)


def test_no_page_of_a_built_kernel_can_be_written_once_it_is_loaded(tmp_path: Path) -> None:
    made = built(tmp_path, *PURE["tables of addresses"])
    assert isinstance(made, Binary)
    assert state_of_library(Path(made.path).read_bytes()) == ()
    Library(Path(made.path))
    maps = Path("/proc/self/maps").read_text().splitlines()
    rights = [line.split()[1] for line in maps if line.endswith(made.path)]
    assert rights
    assert not any("w" in right for right in rights)


def test_a_table_of_addresses_that_is_written_ends_the_process(tmp_path: Path) -> None:
    table = 'asm(".pushsection .data.rel.ro,\\"aw\\"\\nhidden_word: .quad 0\\n.popsection");'
    made = built(tmp_path, ASSEMBLY.format("hidden_word"), table)
    assert isinstance(made, Binary)
    call = "entry(ctypes.byref((ctypes.c_void_p * 3)(*[ctypes.addressof(room)] * 3)), 0, 1)"
    script = f"import ctypes; room = (ctypes.c_char * 20000)(); entry = ctypes.CDLL({made.path!r}).kernel; {call}"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGSEGV


def test_a_library_that_was_linked_with_start_files_can_be_written(tmp_path: Path) -> None:
    source = jobs.source(RIGHT)
    made = compile(source, Store(tmp_path), toolchain=jobs.toolchain(), limit_s=60)
    assert isinstance(made, Binary)
    written, starts = state_of_library(Path(made.path).read_bytes())
    assert written.endswith("bytes that can be written")
    assert starts == "runs when it is loaded"


def test_copies_that_a_distribution_fortifies_are_built(tmp_path: Path) -> None:
    body = f"{RIGHT} char held[64]; if (rank > 9) {{ memcpy(held, a.x, rank); memcpy(a.y, held, rank); }}"
    source = replace(jobs.source(body), flags=("-D_FORTIFY_SOURCE=2", "-fstack-protector-all"))
    assert isinstance(compile(source, Store(tmp_path), toolchain=find_toolchain(), limit_s=60), Binary)


@pytest.mark.parametrize(
    "source", [advance_source("sm_90a"), sampler_source(300, "bf16", "sm_90a")], ids=["advance", "sample"]
)
def test_kernels_of_the_runtime_keep_nothing(source: Source) -> None:
    made = compile_cubin(source.text, source.flags)
    assert isinstance(made, Cubin)
    assert state_of_cubin(made.image, source.text) == ()


def test_a_binary_of_a_test_is_not_found_by_a_build(tmp_path: Path) -> None:
    body, before, _ = KEEPS["a counter of the file"]
    source = jobs.source(body, before=before)
    assert isinstance(compile(source, Store(tmp_path), toolchain=jobs.toolchain(), limit_s=60), Binary)
    assert isinstance(compile(source, Store(tmp_path), toolchain=find_toolchain(), limit_s=60), BuildFailed)


GPU = 'extern "C" __global__ void k(float* a) {{ {} a[0] += scale[1]; }}'
CONSTANT = "constexpr float scale[2] = {1, 2};\n"
ON_DEVICE = {
    "a counter": ("__device__ int launched;\n", "if (atomicAdd(&launched, 1) > 9) a[0] = 1;", "keeps `launched`"),
    "one in the function": ("", "static int times = 3; if (++times > 9) a[0] = 1;", "keeps `times`"),
    "one in a namespace": ("namespace far { int away = 3; }\n", "if (++far::away > 9) a[0] = 1;", "keeps `away`"),
    "one that shares a constant's name": (
        "template <int N> int of() { static int scale = N; return ++scale; }\n",
        "a[1] = of<3>();",
        "keeps `scale`",
    ),
    "the device's heap": ("", "if (a[3] > 0) a[0] = *(float*)malloc(4);", "calls `malloc`"),
    "text that is printed": ("", 'if (a[3] > 0) printf("%d", 3);', "calls `vprintf`"),
    "nothing": ("", "__shared__ float held[8]; held[threadIdx.x & 7] = a[1]; a[2] = held[3];", ""),
}


@pytest.mark.parametrize("name", ON_DEVICE)
def test_what_outlives_a_launch_on_a_gpu_is_named(name: str) -> None:
    before, body, said = ON_DEVICE[name]
    text = CONSTANT + before + GPU.format(body)
    made = compile_cubin(text, ("--gpu-architecture=sm_90a",))
    assert isinstance(made, Cubin)
    found = "; ".join(state_of_cubin(made.image, text))
    assert said in found
    assert bool(said) == bool(found)


def test_a_build_for_a_gpu_is_refused_for_it(tmp_path: Path) -> None:
    before, body, said = ON_DEVICE["a counter"]
    source = Source(
        language="cuda",
        text=CONSTANT + before + GPU.format(body),
        launches=(Launch(entry="k", arguments=("a",)),),
        workspaces=(),
        flags=("--gpu-architecture=sm_90a",),
    )
    made = compile(source, Store(tmp_path), toolchain=find_toolchain(), limit_s=60)
    assert isinstance(made, BuildFailed)
    assert said in made.log
    kept = compile(source, Store(tmp_path), toolchain=replace(find_toolchain(), keeps_state=True), limit_s=60)
    assert isinstance(kept, Binary)


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(58), b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_damaged_file_is_no_kernel(image: bytes) -> None:
    for read in (state_of_object, state_of_library, lambda image: state_of_cubin(image, "")):
        with pytest.raises(ValueError, match=r"ELF|(section|program) headers"):
            read(image)
