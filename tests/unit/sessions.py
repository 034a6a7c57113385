"""Sessions of `refine` without PyTorch: a flow whose every region is the same, and a server that answers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runs import TARGET

from agentcompile.agents.folder import Subject
from agentcompile.cli import refining
from agentcompile.cli.flow import Flow, OpenRegion
from agentcompile.cli.render import Format, Screen
from agentcompile.events import Emit
from agentcompile.ir.attempt import Evaluated, Written, WrittenLanguage
from agentcompile.options import Options
from tests.unit.loopback import Play, Server, completion
from tests.unit.refined import CONTRACT, LAUNCH, Gate

MANIFEST = {
    "layouts": [], "params": [], "workspaces": [], "requires": [], "arch": [], "accumulation": "float32", "rounds": [],
    "launch": [LAUNCH | {"grid": [], "block": [], "shared_bytes": 0, "cooperative": False, "cluster": [], "pdl": False,
                         "early": [], "in_place": [], "pitched": []}],
}  # fmt: skip
SUBJECT = Subject(
    region="rmsnorm@0123",
    kind=CONTRACT.kind,
    language=CONTRACT.language,
    contract=CONTRACT.digest,
    floor_ns=CONTRACT.floor_ns,
    reference_ns=CONTRACT.reference_ns,
    incumbent_ns=CONTRACT.incumbent_ns,
    incumbent="rmsnorm/rows",
    machine={"device": "a machine"},
)


class Admits(Gate):
    """A gate that admits what is faster than the incumbent."""

    def evaluate(self, written: Written) -> Evaluated:
        found = super().evaluate(written)
        told = {**(found.feedback if isinstance(found.feedback, dict) else {}), "admissible": found.ns < 900}
        return Evaluated(verdict=found.verdict, ns=found.ns, feedback=told)


def flow(gate: Gate | None = None, fences: list[bool] | None = None) -> Flow:
    """A compiler whose every region is the same; `fences` says of each that was opened whether it was confined."""

    @contextmanager
    def region(
        options: Options, region: str, language: WrittenLanguage | None, emit: Emit, *, fenced: bool
    ) -> Iterator[OpenRegion]:
        if fences is not None:
            fences.append(fenced)
        yield OpenRegion(subject=SUBJECT, contract=CONTRACT, evaluator=gate or Admits(), target=TARGET)

    made = Flow()
    vars(made).update({"region": region})
    return made


def paper(format: Format = "text") -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(out=out, err=err, format=format), out, err


def asked_of(request: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(request["messages"][1]["content"])
    return data


def draft(kernel: str) -> Play:
    return completion({"notes": "n", "manifest": MANIFEST, "kernel": kernel})


def faster(request: dict[str, Any]) -> Play:
    """Writes a kernel that is faster at each attempt, and one in three that fails."""
    number = asked_of(request)["attempt"]
    return draft(f"broken {number}\n" if number == 2 else f"// {800 - 10 * number}\n")


def begin(server: Server | None, run: Path, gate: Gate | None = None, screen: Screen | None = None, **more: Any) -> int:
    """Begin a session of one agent; `more` are settings of the model and of the session."""
    settings = {
        name: more.pop(name) for name in list(more) if name.startswith("advisor") or name in ("seconds", "seed")
    }
    resume = more.pop("resume", False)
    flags = {"run_dir": str(run), **settings}
    if not resume:
        flags["model"] = "m"
        more = {"region": "rmsnorm", "arm": "sampling", "attempts": 3, **more}
    if server is not None:
        flags["advisor"] = f"openai:loop@{server.url}"
    return refining.refine(flags, more, resume=resume, screen=screen or paper()[0], flow=flow(gate))
