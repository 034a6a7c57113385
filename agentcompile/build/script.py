"""The commands that build a source without agentcompile, for the script that is shipped with a lockfile."""

from __future__ import annotations

import shlex

from agentcompile.build.nvrtc import NVRTC_FLAGS
from agentcompile.build.toolchain import COMPILE_FLAGS, KERNEL_LINK_FLAGS
from agentcompile.ir.template import Source

NVRTC_SCRIPT = b'''"""nvrtc.py TEXT CUBIN FLAG... compiles CUDA C++; NVRTC names the library, else libnvrtc.so."""
import ctypes, os, sys

text, out, *flags = sys.argv[1:]
nvrtc, program, size = ctypes.CDLL(os.environ.get("NVRTC", "libnvrtc.so")), ctypes.c_void_p(), ctypes.c_size_t()
with open(text, "rb") as file:
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), file.read(), b"kernel.cu", 0, None, None)
options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
failed = nvrtc.nvrtcCompileProgram(program, len(flags), options)
what = ("ProgramLog" if failed else "CUBIN")
assert not getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
made = ctypes.create_string_buffer(size.value)
assert not getattr(nvrtc, f"nvrtcGet{what}")(program, made)
if failed:
    sys.exit(made.raw.decode(errors="replace"))
with open(out, "wb") as file:
    file.write(made.raw)
'''
"""Script that compiles CUDA C++ through NVRTC: the kernels include no header, which nvcc does not allow."""


def build_command(source: Source, digest: str) -> str:
    """Return the shell lines that build `sources/DIGEST` into `build/`; a comment where no compiler is needed."""
    if source.language == "cuda":
        flags = shlex.join((*NVRTC_FLAGS, *source.flags))
        return f'"${{PYTHON:-python3}}" nvrtc.py sources/{digest}.cu build/{digest}.cubin {flags}'
    if source.language == "cpp":
        flags = shlex.join((*COMPILE_FLAGS, *source.flags, "-pipe"))
        compiler = '"${CXX:-g++}"'
        # The binary contains the text's name, so the name is kept: with the same compiler, the binary equals that of
        # replay, except for symbols named by the random seed.
        return (
            f"cp sources/{digest}.cpp build/kernel.cpp\n"
            f"(cd build && {compiler} {flags} -c kernel.cpp -o kernel.o)\n"
            f"(cd build && {compiler} kernel.o {shlex.join(KERNEL_LINK_FLAGS)} -o {digest}.so)"
        )
    return f"# {source.language}: agentcompile replay makes it from sources/{digest}.json"
