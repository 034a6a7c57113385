"""Source → Binary: one builder a language, content-addressed, so that equal sources are compiled once a machine."""

from agentcompile.build.binary import Binary, binary_key
from agentcompile.build.builders import BUILDERS, compile, compile_executor
from agentcompile.build.nvrtc import nvrtc_toolchain
from agentcompile.build.toolchain import Toolchain, find_toolchain

__all__ = [
    "BUILDERS",
    "Binary",
    "Toolchain",
    "binary_key",
    "compile",
    "compile_executor",
    "find_toolchain",
    "nvrtc_toolchain",
]
