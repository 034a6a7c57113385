"""What stands around every screen: the title, the stages, the screens' names, the last line of keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agentcompile.events import FlowStage
from agentcompile.ir.trial import CONTENDED
from agentcompile.runs.progress import TIMED, StageRow, State
from agentcompile.runs.status import Status, status_of
from agentcompile.runs.tables import duration, stage_name

from .ink import Ink, Line, Span, Style, line
from .scene import WORKS, Scene
from .screen import Screens, ScreenSpec

FLOW: tuple[FlowStage, ...] = (
    "capture", "probe", "partition", "space", "advise", "search", "choose", "cover", "admit", "verify", "lock",
)  # fmt: skip
_SHORT = {"partition": "cut", "advise": "advice", "admit": "step"}
"""Stages whose name is shortened where all of them stand in one line."""
_LOOKS: dict[Status, tuple[str, Style]] = {
    "running": ("●", "accent"),
    "paused": ("‖", "warn"),
    "waiting for review": ("?", "warn"),
    "stopped": ("‖", "warn"),
    "interrupted": ("‖", "warn"),
    "failed": ("✗", "bad"),
    "done": ("✓", "good"),
}
"""The glyph and the style of each status; its word is the one that every front end shows."""


def status(scene: Scene) -> Status:
    """Return how the run or session stands."""
    return status_of(scene.state, alive=scene.life in WORKS)


def life_of(scene: Scene) -> Span:
    """Return the condition of the run or session as glyph and word; of one that is still being read, that it is."""
    if scene.speed:
        return f"▸ again at {scene.speed:g}×", "accent"
    if scene.lock_path and not scene.path:
        return "● a lock", "accent"
    if scene.reading and scene.life not in WORKS:
        return "◌ reading", "dim"
    word = status(scene)
    glyph, style = _LOOKS[word]
    return f"{glyph} {word}", style


def title(scene: Scene, width: int, ink: Ink) -> Line:
    """Return the first line: the product, what is known of the run as far as it fits, and the run's condition."""
    return headline(facts_of(scene), life_of(scene), width, ink)


def left_over(scene: Scene, width: int, ink: Ink) -> str:
    """Return what the first line had no room for."""
    facts = facts_of(scene)
    return _joined(facts[len(_kept(facts, _room(life_of(scene), width, ink), ink)) :])


def facts_of(scene: Scene) -> list[str]:
    """Return what is known of a run, the most important first.

    These are the model, the target, trials of the budget, the best step, the time left, whether other processes disturb
    the machine, and what the adviser cost.
    """
    state, pace = scene.state, scene.state.pace
    facts = [state.model.rstrip("/").rpartition("/")[2] or scene.run or "no run"]
    if state.target is not None:
        facts.append(f"{state.target.kind} {state.target.arch}")
    searching = state.status == "running" and state.stage in TIMED
    if done := state.counts.total:
        tried = pace.candidates if pace is not None else done
        budget = searching and state.budget_trials
        facts.append(f"{tried}/{state.budget_trials} candidates" if budget else f"{done} trials")
    if pace is not None and pace.step_ns and state.status in ("running", "review"):
        facts.append(f"step {'' if pace.measured else '~'}{duration(pace.step_ns)}")
    if pace is not None and searching:
        facts.append(f"ETA {_left(pace.eta_s)}" if pace.budget_s else _clock(pace.elapsed_s))
        facts.append(f"busy {pace.disturbed:.0%}" if pace.disturbed > CONTENDED else "quiet")
    elif scene.elapsed_s:
        facts.append(_clock(scene.elapsed_s))
    if state.spent.calls:
        money = f" {state.spent.microdollars / 1e4:.1f}¢" if state.spent.microdollars else ""
        facts.append(f"{_count(state.spent.tokens)} tok{money}")
    return facts


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _left(seconds: float) -> str:
    """Return the time until something as clocks count down: ``1:30``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _count(count: int) -> str:
    return f"{count / 1000:.1f}k" if count >= 1000 else str(count)


_PRODUCT = " agentcompile  "


def _room(life: Span, width: int, ink: Ink) -> int:
    return max(width - ink.width(_PRODUCT) - ink.width(f"{life[0]} ") - 1, 0)


def _kept(facts: Sequence[str], room: int, ink: Ink) -> list[str]:
    """Return the first of the facts, as many as fit; the very first always."""
    kept = [*facts]
    while len(kept) > 1 and ink.width(_joined(kept)) > room:
        kept.pop()
    return kept


def headline(facts: Sequence[str], life: Span, width: int, ink: Ink) -> Line:
    """Return the product, as many facts as fit, and at the right the condition of what is shown."""
    room = _room(life, width, ink)
    return line(
        (_PRODUCT, "accent"), (ink.fit(_joined(_kept(facts, room, ink)), room), "title"), " ", (f"{life[0]} ", life[1])
    )


def _joined(facts: Sequence[str]) -> str:
    return " · ".join(facts)


def stages(state: State, width: int, ink: Ink, flow: Sequence[str] = FLOW) -> Line:
    """Return the stages, done, under way and ahead; where they do not fit without their seconds, then without names."""
    spans: list[Span] = []
    for rich in (3, 2, 1, 0):
        spans = _stage_spans(state, rich, flow)
        if 1 + sum(ink.width(text) for text, _ in spans) <= width:
            break
    return line(" ", *spans)


def _stage_spans(state: State, rich: int, flow: Sequence[str]) -> list[Span]:
    known: dict[str, StageRow] = {row.stage: row for row in state.stages}
    flow = flow if any(stage in known for stage in flow) or not known else tuple(known)
    spans: list[Span] = []
    style: Style
    reached = max((at for at, stage in enumerate(flow) if stage in known), default=-1)
    for at, stage in enumerate(flow):
        row = known.get(stage)
        name = _SHORT.get(stage, stage_name(stage))
        if row is None and at < reached:  # a resumed run keeps what an earlier process did
            glyph, style = "✓", "dim"
        elif row is None:
            glyph, style = "○", "dim"
        else:
            glyph, style = ("◐", "accent") if row.seconds is None else ("✓", "")
        seconds = f" {row.seconds:.0f} s" if rich == 3 and row and row.seconds and row.seconds >= 1 else ""
        shapes = (f"{glyph} ", f"{glyph}{name} ", f"{glyph} {name}  ", f"{glyph} {name}{seconds}  ")
        spans.append((shapes[rich] if row is None or row.seconds is not None else shapes[max(rich, 1)], style))
    return spans


def tabs(screens: Screens, shown: ScreenSpec, note: str, width: int, ink: Ink) -> Line:
    """Return the screens, the one that is shown marked, and a note at the right: what is filtered or sorted."""
    spans: list[Span] = [(" ", "")]
    for number, screen in enumerate(screens, 1):
        spans.append((f" {number} {screen.title} ", "bar" if screen is shown else "dim"))
    used = sum(ink.width(text) for text, _ in spans)
    return line(*spans, (ink.fit(note, max(width - used - 1, 0), right=True), "dim"), " ")


def tab_at(screens: Screens, x: int, ink: Ink) -> int:
    """Return the number of the screen whose name is drawn at cell `x`; 0 where there is none."""
    left = 1
    for number, screen in enumerate(screens, 1):
        left += ink.width(f" {number} {screen.title} ")
        if 1 <= x < left:
            return number
    return 0


def rule(width: int, ink: Ink) -> Line:
    """Return a line across."""
    return line((ink.text("─") * width, "rule"))


_LAST = (("?", "help", True), ("q", "quit", True))
"""The keys that the last line always ends with."""


def keys(shown: Sequence[tuple[str, str, bool]], width: int, ink: Ink) -> Line:
    """Return the last line: keys with their labels, dimmed where they do nothing now; it ends with `? help  q quit`."""
    (fitting, room), end = _fitting(shown, width, ink), _caps(_LAST, ink)
    end[-1] = (f"{end[-1][0].rstrip()} ", "")
    return line((" ", ""), *_caps(fitting, ink), (" " * max(room, 0), ""), *end)


def key_at(shown: Sequence[tuple[str, str, bool]], width: int, x: int, ink: Ink) -> str:
    """Return the key that the last line draws at cell `x`; empty where it draws none."""
    fitting, room = _fitting(shown, width, ink)
    left = 1
    for one in fitting:
        left += _cells([one], ink)
        if 1 <= x < left:
            return one[0]
    left += room
    for one in _LAST:
        if left <= x < left + _cells([one], ink):
            return one[0]
        left += _cells([one], ink)
    return ""


def _fitting(shown: Sequence[tuple[str, str, bool]], width: int, ink: Ink) -> tuple[list[tuple[str, str, bool]], int]:
    """Return the keys that a line has room for beside the last ones, and the cells that are left between both."""
    room = width - _cells(_LAST, ink)
    kept = []
    for one in shown:
        if (cells := _cells([one], ink)) <= room:
            kept.append(one)
            room -= cells
    return kept, room


def _cells(shown: Sequence[tuple[str, str, bool]], ink: Ink) -> int:
    return sum(ink.width(text) for text, _ in _caps(shown, ink))


def _caps(shown: Sequence[tuple[str, str, bool]], ink: Ink) -> list[Span]:
    """Return keys with their labels, each key set apart from its label by its look and a blank."""
    spans: list[Span] = []
    for key, label, able in shown:
        spans.append((ink.text(key), "key" if able else "dim"))
        spans.append((f" {ink.text(label)}  ", "" if able else "dim"))
    return spans
