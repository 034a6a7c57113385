"""A CUDA template on the host, under the suite that judges it on a device: its own text, compiled by the C++ compiler.

What only a device has stands in headers beside this (`emulated*.h`): threads are coroutines, tensor cores a loop. So
what is proved is the text's arithmetic of indices, its tails and its barriers; not what an assembler makes of it.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from agentcompile.ir.digest import digest
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Template
from agentcompile.materialize import specialise
from tests.templates.suite import failed, problems

HERE = Path(__file__).parent
STANDS_FOR = {"device.cuh": "emulated_device.h", "thin_device.cuh": "emulated_thin_device.h"}
TARGET = Target(kind="cuda", device="none", arch="sm_90", isa=(), threads=2, cache_bytes=(228 << 10, 50 << 20))
"""Two multiprocessors, so that blocks have several tiles."""
LAUNCH = """
static kernel::{entry}_args args;
extern "C" void launch(void** pointers, unsigned grid, unsigned block, int backwards) {{
    std::memcpy(&args, pointers, sizeof(args));
    host::run([] {{ kernel::{entry}(args), host::end(); }}, grid, block, backwards);
}}
"""


def faults(template: Template, made: Region, params: Params, folder: Path) -> list[str]:
    """Failed checks of the suite, as text; threads run in turn, and in turn from the last one on."""
    assert problems(made, template, params, TARGET) == ()
    includes = tuple(
        (name, (HERE / STANDS_FOR[name]).read_text() if name in STANDS_FOR else text)
        for name, text in template.includes
    )
    source = specialise(replace(template, includes=includes), made, params, TARGET)
    (launch,) = source.launches
    library = compiled(source.text, launch.entry, folder)
    grid, block = int(launch.grid[0]), int(launch.block[0])

    def runner(backwards: bool) -> Callable[[Mapping[str, torch.Tensor]], None]:
        def run(buffers: Mapping[str, torch.Tensor]) -> None:
            flat = [buffers[name].data_ptr() if name else None for name in launch.arguments]
            library.launch((ctypes.c_void_p * len(flat))(*flat), grid, block, backwards)

        return run

    return [text for backwards in (False, True) for text in failed(template, made, source, runner(backwards))]


def compiled(text: str, entry: str, folder: Path) -> ctypes.CDLL:
    """The kernel as a library with a `launch` of pointers, blocks and threads."""
    text = re.sub(r"extern __shared__ __align__\(\d+\) ([\w ]+) room\[\];", r"\1* room = (\1*)host::shared;", text)
    text = text.replace("__shared__", "static")
    whole = f'#include "{HERE}/emulated.h"\nnamespace kernel {{\n{text}}}\n{LAUNCH.format(entry=entry)}'
    path = folder / f"{digest('emulated/1', whole)}.cpp"
    library = path.with_suffix(".so")
    if not library.exists():  # writing over one that is loaded would change what runs
        path.write_text(whole)
        # Unique symbols would give one library's shared memory to the next that is loaded.
        flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique"]
        command = ["g++", *flags, "-o", str(library), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))
