"""Every key of a run's screens in one table: bindings, footer, palette, help and refusals are read from it.

Commands carry the name that they have in `agentcompile.control`, whose table says what each is called, what it does and
when it is refused; the rest moves through what is shown and needs no compiler.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.control.actions import action

from .asks import refusal
from .scene import MODES, Mode, Scene, View

_TABLES: tuple[Mode, ...] = ("regions", "tune", "review")
_PLANS: tuple[Mode, ...] = ("tune", "review")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One action: its keys as a person writes them (the first is shown), its label and what it does."""

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    modes: tuple[Mode, ...] = MODES
    foot: tuple[Mode, ...] = ()
    """Modes whose last line names it."""
    group: str = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An action as it stands now: `why` says what keeps it from doing anything."""

    name: str
    keys: str
    label: str
    help: str
    group: str
    why: str

    @property
    def able(self) -> bool:
        """Whether it does something now."""
        return not self.why


_REVIEW: tuple[Mode, ...] = ("review",)


def _command(name: str, modes: tuple[Mode, ...], *foot: Mode, group: str = "decide", more: str = "") -> Act:
    """An action that the compiler knows: its key, label and help are those of the compiler's own table."""
    row = action(name)
    return Act(
        name=name, keys=(row.key,), label=row.label.lower(), help=row.help + more, modes=modes, foot=foot, group=group
    )


def _move(name: str, keys: tuple[str, ...], help: str, *foot: Mode, modes: tuple[Mode, ...] = MODES) -> Act:
    return Act(name=name, keys=keys, label=name.replace("-", " "), help=help, modes=modes, foot=foot)


def _view(
    name: str, keys: tuple[str, ...], help: str, *foot: Mode, modes: tuple[Mode, ...] = MODES, group: str = "look"
) -> Act:
    return Act(name=name, keys=keys, label=name.replace("-", " "), help=help, modes=modes, foot=foot, group=group)


ACTS: tuple[Act, ...] = (
    Act(name="mode-regions", keys=("1",), label="regions", help="what the model was cut into", group="modes"),
    Act(name="mode-tune", keys=("2",), label="tune", help="the candidates of one region", group="modes"),
    Act(name="mode-review", keys=("3",), label="review", help="the plan as a difference, to decide on", group="modes"),
    Act(name="mode-lock", keys=("4",), label="lock", help="what is locked, how it differs here", group="modes"),
    Act(name="mode-log", keys=("5",), label="log", help="events and the compiler's stderr", group="modes"),
    _move("down", ("j", "down"), "the next row, or a line further in a page"),
    _move("up", ("k", "up"), "the row before, or a line back in a page"),
    _move("top", ("g", "home"), "the first row"),
    _move("bottom", ("G", "end"), "the last row; in the log, follow what comes", "log"),
    _move("page-down", ("pagedown",), "a page further"),
    _move("page-up", ("pageup",), "a page back"),
    _move("open", ("enter",), "the row in detail; of a region, then its candidates", *MODES),
    _move("back", ("escape",), "leave what is open, or clear the filter"),
    _move("filter", ("/",), "show only rows that hold these words", "regions", "log"),
    _move("sort-back", ("[",), "sort by the column before"),
    _move("sort", ("]",), "sort by the next column", "regions"),
    _move("focus", ("tab",), "the table or the detail: which of them j and k move"),
    _move("next-undecided", ("J",), "the next region to decide on, or the next region", modes=_TABLES),
    _move("previous-undecided", ("K",), "the same backwards", modes=_TABLES),
    _command("approve", _PLANS, "review"),
    _command("reject", _PLANS, "review"),
    _command("override", _PLANS, "review", "tune"),
    _command("edit", ("tune",), "tune"),
    _command("undo", _PLANS, "review"),
    _command("approve-safe", _REVIEW, "review"),
    _command("reject-rest", _REVIEW),
    _command("pause", MODES, "regions", group="run", more="; then go on, also where it had stopped"),
    _command("cancel", _TABLES, group="run"),
    _command("rerun", ("tune",), "tune", group="run"),
    _view("baseline", ("b",), "take ratios to PyTorch, the best, or the adviser's first", "tune", modes=("tune",)),
    _view(
        "source", ("v",), "the candidate's program; in Lock, the file", "tune", "lock", modes=("tune", "review", "lock")
    ),
    _view("diff", ("D",), "its program beside that of what runs now", modes=_PLANS),
    _view("copy", ("c",), "the command that does the same headlessly, to the clipboard"),
    _view("theme", ("t",), "dark, light, the terminal's own colours, high contrast"),
    _command("write", ("review", "lock"), "review", "lock", group="run"),
    _view("check", ("r",), "compare the lock with this host, field by field", "lock", modes=("lock",), group="run"),
    _command("replay", ("lock",), "lock", group="run"),
    _view("palette", (":", "ctrl+p"), "every action by name", group="app"),
    _view("help", ("?",), "this page", group="app"),
    Act(name="detach", keys=("q",), label="quit", help="leave; the compiler goes on, nothing is lost", group="app"),
    _command("stop", MODES, group="app"),
)


def bound(key: str, mode: Mode) -> Act | None:
    """The action of a key: the one of this mode, where several share it."""
    found = [act for act in ACTS if key in act.keys]
    return next((act for act in found if mode in act.modes), next(iter(found), None))


GROUPS = {
    "modes": "Modes", "move": "Moving", "decide": "Deciding", "run": "The run", "look": "Looking", "app": "The app",
}  # fmt: skip


def offers(scene: Scene, view: View) -> list[Offer]:
    """Every action as it stands now, in the table's order."""
    return [offer(act, scene, view) for act in ACTS]


def offer(act: Act, scene: Scene, view: View) -> Offer:
    """One action as it stands now."""
    if view.mode in act.modes:
        why = refusal(act.name, scene, view)
    else:
        names = " or ".join(f"{MODES.index(mode) + 1} {mode.capitalize()}" for mode in act.modes)
        why = f"only in {names}"
    return Offer(
        name=act.name, keys=" ".join(act.keys[:2]), label=_label(act, scene), help=act.help, group=act.group, why=why
    )


def _label(act: Act, scene: Scene) -> str:
    if act.name == "pause" and scene.life != "live":
        return "go on"
    return act.label


def footer(scene: Scene, view: View) -> list[tuple[str, str, bool]]:
    """The keys that the last line names in this mode: key, label, whether it does something now."""
    here = [(act.keys[0], offer(act, scene, view)) for act in ACTS if view.mode in act.foot]
    return [(key, one.label, one.able) for key, one in here]
