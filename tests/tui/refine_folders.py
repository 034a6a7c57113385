"""Folders of sessions of `refine`, built in memory: trees of attempts, events, hostile texts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentcompile.tui.compiler import RunVerb, run_verb
from agentcompile.tui.frame import frame
from agentcompile.tui.ink import Ink
from agentcompile.tui.refine_session import RefineSession

from agentcompile.agents.folder import JOURNAL, Asked, SessionFolder, Subject
from agentcompile.agents.journal import Entry, Opened, Refused, SessionJournal
from agentcompile.agents.tree import Node, RoleStep
from agentcompile.events import Event, RunFailed, RunFinished, RunStarted
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Role, Written
from agentcompile.ir.codec import encode
from agentcompile.ir.trial import BuildFailed
from agentcompile.options import Options
from agentcompile.runs import session
from tests.unit.refined import CONTRACT, RAN
from tests.unit.runs import TARGET

OPENED = Opened(
    contract=CONTRACT.digest, arm="stark", strategy="epsilon-greedy", seed=0,
    floor_ns=100.0, reference_ns=1000.0, incumbent_ns=900.0,
)  # fmt: skip
SUBJECT = Subject(
    region="rmsnorm@0123", kind="rmsnorm", language="cpp", contract=CONTRACT.digest, floor_ns=100.0,
    reference_ns=1000.0, incumbent_ns=900.0, incumbent="rmsnorm/rows(ROWS=4)", machine={"device": "a machine"},
)  # fmt: skip
STARTED = RunStarted(model="models/sample", target=TARGET, options="o", version="0.1.0")
HOSTILE = "[/x][bold]markup\x1b]52;c;ZXZpbA==\x07\x1b[2Jgone\u202eback\r\x00 表表表 e\u0301\u0301\u0301 \x9b31m"
"""Markup, sequences that set a clipboard and clear a screen, an override of direction, wide and stacked characters."""


def step(role: Role, instruction: str = "", notes: str = "", model: str = "") -> RoleStep:
    """One answer."""
    usage = Usage(calls=1, prompt_tokens=900, completion_tokens=100)
    return RoleStep(
        role=role, model=model or f"m-{role}", exchange="e" * 64, instruction=instruction, notes=notes, usage=usage
    )


def made(
    id: int, parent: int, ns: float = math.inf, kernel: str = "", log: Sequence[RoleStep] = (), **told: object
) -> Node:
    """A node: with a time, or one that does not build."""
    text = kernel or f"void f() {{\n    // {id}\n    rest();\n}}\n"
    failed = BuildFailed(log=f"kernel.cpp:3:1: error: no such register {id}")
    return Node(
        id=id, parent=parent, written=Written(manifest=f'about = "{id}"\n', kernel=text),
        verdict=RAN if ns < math.inf else failed, ns=ns, feedback=json.dumps(told) if told else "null",
        log=tuple(log) or (step("plan", f"idea {id}"), step("code", notes="as planned")),
    )  # fmt: skip


def admitted(id: int, parent: int, ns: float) -> Node:
    """A node that is surely faster than the incumbent."""
    return made(id, parent, ns, admissible=True, over_floor=ns / 100, passed_checks=["redzone", "poison"])


TREE: tuple[Entry, ...] = (
    OPENED, made(1, 0), admitted(2, 1, 600.0),
    Refused(node=2, reason="code: line 1, outside every span", log=(step("plan", "go on"), step("code"))),
    made(3, 2, 950.0, admissible=False), admitted(4, 2, 450.0), replace(made(5, 3, 950.0), repeats=3), made(6, 4),
)  # fmt: skip
"""A tree with a failure, a refused answer, a kernel that is too slow, a repeat, and two that are admissible."""


def folder(
    path: Path,
    entries: Sequence[Entry] = TREE,
    events: Sequence[Event] = (STARTED,),
    *,
    subject: Subject = SUBJECT,
    **asked: object,
) -> SessionFolder:
    """A session on disk whose process is gone; without entries its region was not opened yet."""
    settings: dict[str, object] = {"region": "rmsnorm", "attempts": 12, **asked}
    made = SessionFolder.create(
        path, encode(Options(model="models/sample", advisor="openai:loop@http://127.0.0.1:1/v1")),
        Asked(**settings),  # type: ignore[arg-type]
    )  # fmt: skip
    with session.Journal(made.run, clock=lambda: 1e9) as journal:
        for event in events:
            journal.append(event)
    if entries:
        made.introduce(subject, CONTRACT)
        append(made, *entries)
    return made


def append(made: SessionFolder, *entries: Entry) -> None:
    """Let a tree grow."""
    with SessionJournal(made.path / JOURNAL) as journal:
        for entry in entries:
            journal.append(entry)


def opened(made: SessionFolder, run: RunVerb = run_verb, width: int = 80, height: int = 24) -> RefineSession:
    """The session on a screen, once all of it was read."""
    found = RefineSession(made.path, written=Path("TEMPLATES"), store=made.path / "store", run=run)
    found.view = replace(found.view, width=width, height=height)
    read(found)
    return found


def read(found: RefineSession) -> None:
    """Read what is new."""
    while found.poll(1.0) or not (found.feed is not None and found.feed.caught_up):
        pass


def text(found: RefineSession, *, ascii: bool = False) -> str:
    """The screen as text, without the blanks at the ends of lines and without the folder's place."""
    lines = frame(found.scene, found.view, Ink(ascii=ascii), found.screens)
    return "\n".join(line.plain.rstrip() for line in lines) + "\n"


def pressed(found: RefineSession, *keys: str) -> str:
    """Press keys, bring about what they ask for, and return the screen."""
    for key in keys:
        for effect in found.key(key, key if len(key) == 1 else ""):
            outcome = found.act(effect)
            found.view = replace(found.view, message=outcome.text)
        read(found)
    return text(found)


FINISHED = (STARTED, RunFinished(detail="12 of 12 attempts are made", seconds=61.0))
STOPPED = (STARTED, RunFailed(exit_code=143, message="stopped by a signal", hint="go on"))
FAILED = (RunFailed(exit_code=2, message="no region is called that", hint="regions: mul, add"),)
