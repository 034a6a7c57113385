"""The host's C++ compiler: its path, its version, and the flags that every kernel is compiled with."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from agentcompile.errors import AgentCompileError, ExitCode

COMPILERS = ("g++", "clang++", "c++")
"""Compilers that are tried in this order when none is named."""

COMPILE_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-Wall",
    "-Wno-unused",
    "-Wno-maybe-uninitialized",  # g++ 12 warns of its own intrinsics, which would hide errors
)
LINK_FLAGS = (
    "-shared",
    "-pthread",
    "-Wl,-z,defs",  # an undefined symbol is a failed build, not a crash at load
    "-Wl,--build-id=none",
)
KERNEL_LINK_FLAGS = (
    *LINK_FLAGS,
    "-nostartfiles",  # the toolchain's own start files have data, and run when a library is loaded
    "-Wl,-z,relro,-z,now",  # tables of addresses are read-only once the library is loaded
)
"""For kernels, which keep nothing between launches: no page of their libraries can be written (`build.stateless`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A compiler that was found and reported its version."""

    compiler: str
    """Absolute path."""
    name: str
    """Name and version for people and for `Target.toolchain`: ``g++ 12.2.0``."""
    keeps_state: bool = False
    """Whether kernels may keep data between launches (`build.stateless`): for tests of what finds them later."""


def find_toolchain(cxx: str = "") -> Toolchain:
    """Find the compiler: `cxx` (a name or a path) when given, else the first of `COMPILERS` that is installed.

    Raises:
        AgentCompileError: there is none, or it does not report a version within 20 s (environment).
    """
    hint = "install g++ (apt install g++, dnf install gcc-c++) or clang++, or name one with AGENTCOMPILE_COMPILER"
    for name in (cxx,) if cxx else COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return Toolchain(compiler=path, name=f"{name.rpartition('/')[2]} {_version(path, hint)}")
    what = f"{cxx}: no such compiler" if cxx else f"no C++ compiler: none of {', '.join(COMPILERS)} is on the path"
    raise AgentCompileError(what, exit_code=ExitCode.ENVIRONMENT, hint=hint)


def _version(path: str, hint: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        text = f"{path}: the compiler does not run: {error}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    # A distribution may put its own version in parentheses before the compiler's.
    line = re.sub(r"\(.*?\)", "", done.stdout.partition("\n")[0])
    found = re.search(r"\d+(\.\d+)+", line)
    if done.returncode != 0 or found is None:
        said = (done.stdout + done.stderr).strip()[:200]
        text = f"{path}: --version said {said!r}, no version number"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
    return found.group()
