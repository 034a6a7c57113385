"""A CUDA template on the host, under the suite that a device's kernels pass: its own text, compiled for C++.

What only a device has stands in headers beside this (`emulated*.h`): threads are coroutines, and instructions are
functions. So what is proved is the text's arithmetic of indices, its tails, its barriers and its copies; not what an
assembler makes of it, nor how fast it is.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from agentcompile.ir.digest import digest
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Launch, Params, Source, Template
from agentcompile.materialize import specialise
from tests.kernels.kept import kept
from tests.templates.suite import failed, problems

HERE = Path(__file__).parent
TARGET = Target(kind="cuda", device="none", arch="sm_90a", isa=(), threads=2, cache_bytes=(228 << 10, 50 << 20))
"""Two multiprocessors, so that blocks have several tiles."""
INSTRUCTIONS = (
    ("griddepcontrol.launch_dependents", "nothing"),
    ("griddepcontrol.wait", "inputs_there"),
    ("atom.acq_rel.gpu.global.add.u32", "add"),
    ("cvt.f32.f16", "from_half"),
    ("cvt.rn.f16.f32", "to_half"),
    ("cvt.rn.bf16.f32", "to_bf16"),
    ("cvt.rn.f16x2.f32", "to_two_halves"),
    ("cvt.rn.bf16x2.f32", "to_two_bf16"),
    ("ex2.approx.ftz.f32", "power_of_two"),
    ("@p ld.global.L1::no_allocate.v4.u32", "load16_if"),
    ("ld.global.L1::no_allocate.v4.u32", "load16"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "multiply_halves"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "multiply_bf16"),
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "four_matrices"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "four_turned"),
    ("cp.async.cg.shared.global", "copy16"),
    ("cp.async.commit_group", "end_group"),
    ("cp.async.wait_group", "await_groups"),
    ("mbarrier.init.shared::cta.b64", "make_gate"),
    ("mbarrier.arrive.expect_tx.shared::cta.b64", "expect"),
    ("mbarrier.try_wait.parity.shared::cta.b64", "await_gate"),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint", "copy_bulk"),
    ("fence.mbarrier_init.release.cluster", "nothing"),
    ("fence.proxy.async", "nothing"),
    ("createpolicy.fractional.L2::evict_", "policy"),
    ("prefetch.tensormap", "announce"),
    ("global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint", "copy_box_to_cluster"),
    ("global.tile.mbarrier::complete_tx::bytes.L2::cache_hint", "copy_box"),
    ("mbarrier.arrive.shared::cta.b64", "arrive_at_gate"),
    ("mbarrier.arrive.shared::cluster.b64", "arrive_in_block"),
    ("wgmma.fence.sync.aligned", "nothing"),
    ("p, 1, 1, 1;", "multiply_held"),  # the left operand in registers, the right one turned
    ("wgmma.mma_async.sync.aligned.m64n", "multiply_tile"),
    ("wgmma.commit_group.sync.aligned", "end_products"),
    ("wgmma.wait_group.sync.aligned", "await_products"),
    ("setmaxnreg.", "nothing"),
    ("bar.sync", "meet_some"),
    ("barrier.cluster.arrive.relaxed.aligned;\\n\\tbarrier.cluster.wait.aligned", "meet_cluster"),
    ("barrier.cluster.arrive.release.aligned;\\n\\tbarrier.cluster.wait.acquire.aligned", "meet_cluster"),
    ("barrier.cluster.arrive.release.aligned", "arrive_in_cluster"),
    ("barrier.cluster.wait.acquire.aligned", "await_cluster"),
    ("ld.shared::cluster.v4.f32", "read_four_of_block"),
    ("mapa.shared::cluster.u32", "read_of_block"),
)
"""The functions of the headers; of an instruction that two of these are in, the first is taken."""
STRING = r'"(?:[^"\\]|\\.)*"'
FLAGS = ["-std=c++20", "-O1", "-march=native", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-fno-gnu-unique"]
"""Unique symbols would give one library's shared memory to the next that is loaded."""
LAUNCH = """
static kernel::{entry}_args {entry}_given;
extern "C" const char* launch_{entry}(
    void** pointers, const unsigned* grid, unsigned threads, unsigned shared, int backwards,
    const host::Input* inputs, unsigned count) {{
    memcpy(&{entry}_given, pointers, sizeof({entry}_given));
    return host::run({{
        [] {{ kernel::{entry}({entry}_given); }},
        grid, threads, shared, kernel::blocks_of_cluster, backwards, inputs, count}});
}}
"""


class Input(ctypes.Structure):
    """Memory that a launch may read when it has waited for it; as in `emulated.h`."""

    _fields_ = (("at", ctypes.c_void_p), ("nbytes", ctypes.c_long))


@dataclass
class Kernel:
    """A source, compiled; what its launches did that no device allows is in `wrong`."""

    source: Source
    library: ctypes.CDLL
    wrong: list[str] = field(default_factory=list)

    def run(self, buffers: Mapping[str, torch.Tensor], late: tuple[str, ...] = (), *, backwards: bool = False) -> None:
        """All launches in turn. Buffers named in `late` are not there before a kernel waits for them.

        Threads, warps and blocks take their turns from the first one on and copies arrive as late as they may; or
        `backwards`, from the last one on, and copies arrive at once.
        """
        for launch in self.source.launches:
            self._launch(launch, buffers, tuple(name for name in late if name not in launch.early), backwards)

    def _launch(
        self, launch: Launch, buffers: Mapping[str, torch.Tensor], late: tuple[str, ...], backwards: bool
    ) -> None:
        flat = [buffers[name].data_ptr() if name else None for name in launch.arguments]
        flat += [None] * (-len(flat) % 8 if launch.maps else 0)
        for one in launch.maps:
            flat += [buffers[one.of].data_ptr(), one.rows, one.columns, int(one.box), *[None] * 12]
        tensors = [buffers[name] for name in late]
        inputs = (Input * len(late))(*[Input(one.data_ptr(), one.nbytes) for one in tensors])
        grid = [int(extent) for extent in (*launch.grid, "1", "1")[:3]]
        assert len(launch.block) == 1
        assert int(launch.block[0]) % 32 == 0
        run = getattr(self.library, f"launch_{launch.entry}")
        run.restype = ctypes.c_char_p
        said = run(
            (ctypes.c_void_p * len(flat))(*flat),
            (ctypes.c_uint * 3)(*grid),
            int(launch.block[0]),
            int(launch.shared_bytes),
            backwards,
            inputs,
            len(late),
        )
        if said and said.decode() not in self.wrong:
            self.wrong.append(said.decode())


def planted(template: Template, file: str, right: str, wrong: str) -> Template:
    """The template with a fault, in its kernel or in a header of it."""
    texts = {template.source_name: template.source, **dict(template.includes)}
    assert texts[file].count(right) == 1, right
    texts[file] = texts[file].replace(right, wrong)
    includes = tuple((name, texts[name]) for name, _ in template.includes)
    return replace(template, source=texts[template.source_name], includes=includes)


def faults(template: Template, made: Region, params: Params, folder: Path, threads: int = TARGET.threads) -> list[str]:
    """Failed checks of the suite on a device of so many multiprocessors, as text, and what no device allows.

    Every other launch takes its turns from the end. The suite launches each case twice or more, and wants the same
    bits: so every case runs both ways, and none of the ways gives what the other does not.
    """
    target = replace(TARGET, threads=threads)
    assert problems(made, template, params, target) == ()
    source = specialise(template, made, params, target)
    kernel = compiled(source, folder)
    late = tuple(port.name for port in made.ports if port.role in ("activation", "state"))
    turns = itertools.cycle((False, True))

    def run(buffers: Mapping[str, torch.Tensor]) -> None:
        kernel.run(buffers, late, backwards=next(turns))

    return kernel.wrong + failed(template, made, source, run)


def compiled(source: Source, folder: Path) -> Kernel:
    """The kernels as a library with a function for each launch, of pointers, blocks and threads."""
    launches = "".join(LAUNCH.format(entry=launch.entry) for launch in source.launches)
    whole = (
        f'#include "{HERE}/emulated.h"\n#include "{HERE}/emulated_device.h"\n#include "{HERE}/emulated_tensor.h"\n'
        f"namespace kernel {{\n{on_host(source.text)}}}\n{launches}"
    )
    headers = "".join(path.read_text() for path in sorted(HERE.glob("emulated*.h")))
    name = digest("emulated/3", whole + headers, FLAGS, os.environ.get("CXX_KNOWN", ""), _processor())
    text, library = folder / f"{name}.cpp", folder / f"{name}.so"

    def built() -> bytes:
        if not library.exists():  # writing over one that is loaded would change what runs
            text.write_text(whole)
            command = ["g++", *FLAGS, "-o", str(library), str(text)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr[:4000]
        return library.read_bytes()

    made = kept(name, built)
    return Kernel(source, ctypes.CDLL(str(made if isinstance(made, Path) else library)))


@functools.cache
def _processor() -> str:
    """What `-march=native` is here."""
    return next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")


def on_host(text: str) -> str:
    """The text with shared memory, instructions and the size of its clusters as the headers have them."""
    if "wgmma" in text:  # its registers are listed by macros
        command = ["g++", "-E", "-P", "-D__CUDA_ARCH__=900", "-xc++", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True).stdout
    places = iter(range(text.count("__shared__")))
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];", r"\1* \2 = (\1*)host::dynamic();", text
    )
    text = re.sub(
        r"__shared__ ([\w ]+?) (\w+)((?:\[\w+\])*);",
        lambda m: f"auto& {m[2]} = host::fixed<{m[1]}{m[3]}, {next(places)}>();",
        text,
    )
    text = re.sub(rf"\basm(?: volatile)?\(((?:\s*{STRING})+)((?:{STRING}|[^\"])*?)\);", _called, text)
    assert not re.search(r"\basm\b|__shared__", text), "what the emulator does not know"
    blocks = re.search(r"__cluster_dims__\((\w+), 1, 1\)", text)
    return text + f"constexpr unsigned blocks_of_cluster = {blocks[1] if blocks else 1};\n"


def _called(statement: re.Match[str]) -> str:
    """A call for an instruction with its operands, outputs before inputs."""
    instruction = "".join(text[1:-1] for text in re.findall(STRING, statement[1]))
    if not instruction:  # it orders what the compiler does, and nothing else
        return ";"
    name = next((name for known, name in INSTRUCTIONS if known in instruction), None)
    assert name, f"the emulator does not know {instruction}"
    return f"ptx::{name}({', '.join(_expressions(statement[2]))});"


def _expressions(operands: str) -> list[str]:
    """What stands in parentheses behind the constraints: `: "=r"(a) : "l"(f(b))` has `a` and `f(b)`."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(operands):
        if letter == "(":
            depth += 1
            begin = at + 1 if depth == 1 else begin
        elif letter == ")":
            depth -= 1
            if depth == 0:
                found.append(operands[begin:at])
    return found
