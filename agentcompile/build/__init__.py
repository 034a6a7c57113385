"""Compiles sources to binaries: one builder a language, stored by content, so that equal ones are compiled once."""

from agentcompile.build.binary import Binary, binary_key
from agentcompile.build.builders import BUILDERS, compile, compile_executor, resources_at, resources_of
from agentcompile.build.nvrtc import nvrtc_toolchain
from agentcompile.build.script import NVRTC_SCRIPT, build_command
from agentcompile.build.toolchain import Toolchain, find_toolchain

__all__ = [
    "BUILDERS", "NVRTC_SCRIPT", "Binary", "Toolchain", "binary_key", "build_command", "compile", "compile_executor",
    "find_toolchain", "nvrtc_toolchain", "resources_at", "resources_of",
]  # fmt: skip
