"""The screen of the lock: what it holds or will hold, how it differs from this host, and a replay of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from agentcompile.control.actions import action
from agentcompile.events import DriftFound
from agentcompile.ir.trial import Kernel
from agentcompile.lockfile.schema import Lock, LockTarget
from agentcompile.runs.progress import State
from agentcompile.runs.tables import plan_line, prompt_lines, stage_name

from .asks import SOURCE, WRITE, commanded
from .decided import changes
from .grid import Column, Entry, pairs
from .ink import Ink, Line, Span, Style, line
from .scene import Replay, Scene, View
from .screen import Act, ScreenSpec, called
from .trials import short

COLUMNS = (
    Column(head="state", width=12),
    Column(head="field", width=16, grow=1, middle=True),
    Column(head="locked", width=12, grow=2),
    Column(head="here", width=12, grow=2),
    Column(head="remedy", width=18, grow=2, drop=1),
)
PLAIN = COLUMNS[:3]
"""The columns before anything was compared with this host."""
_GRADES: dict[str, Span] = {
    "warn": ("○ warning", "warn"),
    "rebuild": ("◐ rebuild", "warn"),
    "remeasure": ("◐ remeasure", "warn"),
    "refuse": ("✗ refused", "bad"),
}
_BY = {"overridden": "user", "rejected": "user", "approved": "measurement, approved by user"}
_AHEAD: Span = ("○ to write", "dim")
_DONE: Span = ("✓ locked", "good")


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return the fields that differ from this host, then what the lock holds."""
    drift = _drifts(scene)
    differ = {one.field for one in drift}
    told = [fact for fact in scene.lock_facts or facts(scene.state) if fact[0] not in differ]
    return [_drift(one) for one in drift] + [_fact(name, value, scene) for name, value in told]


def _drift(one: DriftFound) -> Entry:
    cells: tuple[Span, ...] = (
        _GRADES[one.grade],
        (one.field, ""),
        (one.locked, ""),
        (one.here, "warn"),
        (one.remedy, "dim"),
    )
    return Entry(key=f"drift:{one.field}", cells=cells, order=tuple(text for text, _ in cells))


def _fact(name: str, value: str, scene: Scene) -> Entry:
    written = scene.state.lock is not None or bool(scene.lock_path and not scene.path)
    same: Span = ("same", "good") if _compared(scene.replay) else ("-", "dim")
    cells: tuple[Span, ...] = (_DONE if written else _AHEAD, (name, ""), (value, ""), same, ("", ""))
    return Entry(key=name, cells=cells, order=tuple(text for text, _ in cells))


def columns(scene: Scene, view: View) -> tuple[Column, ...]:
    """Return the columns that have something in them."""
    return COLUMNS if _compared(scene.replay) or _drifts(scene) else PLAIN


def _drifts(scene: Scene) -> tuple[DriftFound, ...]:
    return scene.replay.state.drift if scene.replay else scene.state.drift


def _compared(replay: Replay | None) -> bool:
    return replay is not None and replay.exit_code in (0, 3)


def _target(t: LockTarget) -> list[tuple[str, str]]:
    rows = [("target.device", t.device), ("target.arch", t.arch), ("target.threads", str(t.threads))]
    rows += [("target.toolchain", t.toolchain)]
    return rows + [(f"target.libraries.{name}", version) for name, version in t.libraries.items()]


def facts(state: State) -> list[tuple[str, str]]:
    """Return what is locked: target, model, and for every region of the plan what runs it and who decided so."""
    rows = _target(LockTarget.of(state.target)) if state.target is not None else []
    rows += [("model", state.model)] if state.model else []
    rows += [(f"model.graphs.{graph.phase}", graph.digest[:12]) for graph in state.graphs]
    rows += [(f"plan {plan.regime.name}", plan_line(plan).partition(": ")[2]) for plan in state.final]
    for change in changes(state):
        by = _BY.get(change.decided.word, "measurement")
        what = short(change.choice.candidate.label) if isinstance(change.choice, Kernel) else "PyTorch"
        rows.append((change.row.name, f"{what}, decided by {by}"))
    return rows


def lock_facts(lock: Lock) -> tuple[tuple[str, str], ...]:
    """Return what a lock holds, for a lock that is looked at without its run."""
    rows = _target(lock.target)
    rows += [("model", f"{lock.model.name}, {lock.model.architecture}, {lock.model.dtype}")]
    rows += [("model.weights", lock.model.weights[:12])]
    rows += [(f"model.graphs.{phase}", graph[:12]) for phase, graph in lock.model.graphs.items()]
    for plan in lock.plan:
        name = f"{plan.phase} b{plan.batch} c{plan.context[0]}-{plan.context[1]}"
        kernels = sum(choice.use == "kernel" for choice in plan.choices)
        counts = f"{len(plan.choices)} regions, {kernels} with kernels"
        rows.append((f"plan {name}", "; ".join((counts, *prompt_lines(plan.chunk, plan.steps_up_to)))))
        for choice in plan.choices:
            inner = ", ".join(f"{key}={value}" for key, value in choice.params.items())
            what = f"{choice.template.partition('/')[2]}({inner})" if choice.use == "kernel" else "PyTorch"
            by = {"measured": "measurement", "human": "user", "fallback": "measurement"}[choice.decided_by]
            rows.append((choice.name, f"{what}, decided by {by}"))
    return tuple(rows)


def heading(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """Return two lines over the fields: where the lock is or will be, and how far a check or replay of it is."""
    if scene.state.lock is not None:
        first = line(("Lock ", "title"), (scene.state.lock.path, ""), (f"  {scene.state.lock.digest[:19]}", "dim"))
    elif scene.lock_path and not scene.path:
        first = line(("Lock ", "title"), (scene.lock_path, ""))
    else:
        first = line(("Not written yet  ", "title"), (scene.lock_path, "dim"))
    return [
        first,
        _replay_line(scene, ink) if scene.replay is not None else _writing(scene) or _replay_line(scene, ink),
    ]


def _writing(scene: Scene) -> Line | None:
    """Return what a compiler does now that will write the lock; the stages that it is through with stand above."""
    state = scene.state
    if scene.life not in ("live", "paused") or state.lock is not None or not state.settled:
        return None
    now = f"◐ {stage_name(state.stage or 'starting')}{f': {state.working}' if state.working else ''}"
    return line(("Writing it: ", "title"), (now, "accent"))


def _replay_line(scene: Scene, ink: Ink) -> Line:
    replay = scene.replay
    if replay is None:
        there = scene.state.lock is not None or not scene.path
        return line(
            ("r compares it with this host, R rebuilds and validates it here" if there else "W writes it", "dim")
        )
    name = "Check" if replay.what == "check" else "Replay"
    if replay.exit_code is None:
        stage = stage_name(replay.state.stage or "starting")
        return line((f"{name}: ", "title"), (f"◐ {stage}", "accent"), _stages(replay))
    said = next((text for text in reversed(replay.said) if text), "")
    word: Span = ("✓ holds", "good")
    if replay.exit_code != 0:
        word = (f"✗ exit {replay.exit_code}", "bad")
    elif replay.state.drift:
        word = (f"◐ holds, {len(replay.state.drift)} drifted", "warn")
        said = "the first rows name what differs, and the remedy"
    return line((f"{name}: ", "title"), word, (f"  {said}" if said else "", "dim"))


def _stages(replay: Replay) -> Span:
    done = [f"{stage_name(row.stage)} {row.seconds:.1f} s" for row in replay.state.stages if row.seconds is not None]
    return ("  " + "  ".join(done)) if done else "", "dim"


def detail(scene: Scene, view: View, field: str, width: int, ink: Ink) -> list[Line]:
    """Return one field in full, what the replay said, and the text of the lock."""
    entry = next((entry for entry in entries(scene, view) if entry.key == field), None)
    lines: list[Line] = []
    if entry is not None:
        names = ("state", "field", "locked", "here", "remedy")
        rows: list[tuple[str, str | Span]] = [
            (name, span) for name, span in zip(names, entry.cells, strict=True) if span[0] not in ("", "-")
        ]
        lines += pairs(rows, ink, width)
    if (replay := scene.replay) is not None:
        lines += [line(), line(("Replay" if replay.what == "replay" else "Check", "head"))]
        for row in replay.state.stages:
            mark: Span = ("✓ ", "good") if row.seconds is not None else ("◐ ", "accent")
            lines.append(line(mark, f"{stage_name(row.stage):<10}", (f" {row.detail}", "dim")))
        style: Style = "dim"
        for text in replay.said:
            lines += [line((piece, style)) for piece in ink.wrap(text, width)]
    if scene.lock_text:
        lines += [line(), line(("The file", "head")), *(line((text, "dim")) for text in scene.lock_text)]
    return lines


def _not_replayed(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if scene.replay is not None and scene.replay.exit_code is None:
        return f"A {scene.replay.what} is running."
    return "" if scene.lock_path and scene.lock_text else "No lock was written yet."


def _unwritten(scene: Scene, view: View, screen: ScreenSpec) -> str:
    return "" if scene.lock_text else "No lock was written yet."


_HELP = "compare the lock with this host, field by field"
SCREEN = ScreenSpec(
    name="lock",
    title="Lock",
    about="what is locked, how it differs here",
    columns=columns,
    entries=entries,
    detail=detail,
    heading=heading,
    keys=(
        WRITE, Act("check", ("r",), _HELP, called("check"), _not_replayed, "run"),
        replace(commanded("replay", called("replay"), "run"), why_not=_not_replayed),
        replace(SOURCE, does=called("lock-text"), why_not=_unwritten),
    ),
    foot=("open", "source", "write", "check", "replay"),
    empty="Nothing to lock yet.",
    side=42,
    headless=action("replay").headless,
)  # fmt: skip
