from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from runs import TARGET, WHOLE

from agentcompile.cli import compiling
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.control.steering import Steering
from agentcompile.events import Emit
from agentcompile.ir.trial import Trial
from agentcompile.options import Options


def compiles(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
    """A flow that tells a whole run."""
    for event in WHOLE:
        emit(event)


def test_compile_writes_the_bundle_beside_the_lock_when_it_is_asked_for() -> None:
    asked: list[tuple[Path, Path]] = []

    def bundles(lock: Path, options: Options, out: Path) -> tuple[int, int]:
        asked.append((lock, out))
        return 3, 2048

    flow = Flow()
    vars(flow).update({"compile": compiles, "target": lambda options: TARGET, "bundle": bundles})
    err = io.StringIO()
    screen = Screen(out=io.StringIO(), err=err, format="text")
    flags = {"model": "m", "out": "x.lock.toml"}
    assert compiling.compile(flags, resume=False, screen=screen, flow=flow, bundle=True) == 0
    ((lock, out),) = asked
    assert (lock.name, out.name) == ("x.lock.toml", "x.lock.bundle.tar.xz")
    assert "3 kernels" in err.getvalue()
    compiling.compile(
        flags, resume=False, screen=Screen(out=io.StringIO(), err=io.StringIO(), format="text"), flow=flow
    )
    assert len(asked) == 1
