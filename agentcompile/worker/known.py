"""The building of kernels of our own, known to be right: some measure the device, others run around a candidate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentcompile.build import Binary, compile
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.template import Launch, Source
from agentcompile.materialize.cpp import flags
from agentcompile.runtime.driver import Module
from agentcompile.runtime.native import Library
from agentcompile.system.store import Store
from agentcompile.worker.protocol import Setup

_LIMIT_S = 60.0


def known_library(setup: Setup, text: str, what: str, entry: str, arguments: tuple[str, ...]) -> Library:
    """Build and load the C++ `text`, whose `entry` takes `arguments`, for the processor of `setup`."""
    launches = (Launch(entry=entry, arguments=arguments),)
    source = Source(language="cpp", text=text, launches=launches, workspaces=(), flags=flags(setup.target))
    return Library(_built(setup, source, what))


def known_kernels(setup: Setup, text: str, entry: str, arguments: tuple[str, ...]) -> Module:
    """Build and load the CUDA `text`, whose `entry` takes `arguments`, for the device of `setup`."""
    launches, arch = (Launch(entry=entry, arguments=arguments),), (f"--gpu-architecture={setup.target.arch}",)
    source = Source(language="cuda", text=text, launches=launches, workspaces=(), flags=arch)
    return Module(_built(setup, source, f"the known kernel {entry} does not build"))


def prove_builds(setup: Setup) -> None:
    """Build a kernel of our own behind a fence, where a compiler reaches no programs but its own.

    Raises:
        AgentCompileError: the compiler does not work there (environment).
    """
    text = '#include <cstdint>\nextern "C" void fenced(const void*, int, int) {}\n'
    source = Source(language="cpp", text=text, launches=(), workspaces=(), flags=flags(setup.target))
    made = compile(source, Store(Path(setup.store)), toolchain=setup.toolchain, limit_s=_LIMIT_S, fenced=True)
    if not isinstance(made, Binary):
        raise AgentCompileError(
            f"{setup.toolchain.compiler} does not work behind a fence: {made}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="name the compiler itself with AGENTCOMPILE_COMPILER: no script, and no ccache, which start others",
        )


def _built(setup: Setup, source: Source, what: str) -> Path:
    own = replace(setup.toolchain, keeps_state=True)  # what looks at others may count, and ask the system
    made = compile(source, Store(Path(setup.store)), toolchain=own, limit_s=_LIMIT_S)
    if not isinstance(made, Binary):
        raise RuntimeError(f"{what}: {made}")
    return Path(made.path)
