"""The building of kernels of our own, known to be right: some measure the device, others run before a candidate."""

from __future__ import annotations

from pathlib import Path

from agentcompile.build import compile
from agentcompile.build.binary import Binary
from agentcompile.ir.template import Launch, Source
from agentcompile.runtime.driver import Module
from agentcompile.system.store import Store
from agentcompile.worker.protocol import Setup

_LIMIT_S = 60.0


def known_kernels(setup: Setup, text: str, entry: str, arguments: tuple[str, ...]) -> Module:
    """Build and load `text`, whose `entry` takes `arguments`, for the device of `setup`; built once per store.

    Raises:
        RuntimeError: it does not build.
    """
    launches, flags = (Launch(entry=entry, arguments=arguments),), (f"--gpu-architecture={setup.target.arch}",)
    source = Source(language="cuda", text=text, launches=launches, workspaces=(), flags=flags)
    made = compile(source, Store(Path(setup.store)), toolchain=setup.toolchain, limit_s=_LIMIT_S)
    if not isinstance(made, Binary):
        raise RuntimeError(f"the known kernel {entry} does not build: {made}")
    return Module(Path(made.path))
