"""Confines processes that build or run code that nobody has read: what they may reach is a `Fence`, held by the kernel.

It uses Landlock, seccomp, namespaces and resource limits of Linux through the standard library alone.
"""

from agentcompile.sandbox.confine import (
    Method,
    Run,
    WallTimeExceeded,
    apart,
    confine,
    methods,
    only_compute,
    require,
    run,
    settle,
)
from agentcompile.sandbox.fence import Fence, device_nodes, for_build, for_worker

__all__ = [
    "Fence", "Method", "Run", "WallTimeExceeded", "apart", "confine", "device_nodes", "for_build", "for_worker",
    "methods", "only_compute", "require", "run", "settle",
]  # fmt: skip
