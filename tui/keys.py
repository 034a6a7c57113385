"""Every key of the app's screens: bindings, the last line, the palette, help and refusals are read from one list.

Commands carry the name that they have in `agentcompile.control`, whose table says what each is called, what it does and
when it is refused; the rest moves through what is shown and needs no compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .asks import PAUSE, STOP
from .moving import MOVES
from .scene import Page, Palette, Scene, Step, View
from .screen import Act, Group, Screens, ScreenSpec, called, shown

GROUPS: dict[Group, str] = {
    "modes": "Modes", "move": "Moving", "decide": "Deciding", "run": "The run", "look": "Looking", "app": "The app",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An action as it stands now: `why` says what keeps it from doing anything."""

    name: str
    keys: str
    label: str
    help: str
    why: str

    @property
    def able(self) -> bool:
        """Whether it does something now."""
        return not self.why


@functools.lru_cache(maxsize=4)
def acts(screens: Screens) -> tuple[Act, ...]:
    """Return every action once, by group: those that lead to a screen, the screens' own, and those of all screens."""
    modes = [_leads(number, screen) for number, screen in enumerate(screens, 1)]
    own = [act for screen in screens for act in screen.keys]
    app = (
        Act(
            name="copy", keys=("c",), label="copy", does=called("copy"),
            help="the command that does the same headlessly, to the clipboard",
        ),
        Act(
            name="theme", keys=("t",), label="theme", does=called("theme"),
            help="dark, light, the terminal's own colours, high contrast",
        ),
        Act(
            name="palette", keys=(":", "ctrl+p"), label="palette", help="every action by name", group="app",
            does=lambda scene, view, screen: Step(view=replace(view, overlay=Palette())),
        ),
        Act(
            name="help", keys=("?",), label="help", help="this page", group="app",
            does=lambda scene, view, screen: Step(
                view=replace(view, overlay=Page(title="Keys", kind="help", lines=help_lines(scene, view, screens)))
            ),
        ),
        Act(
            name="detach", keys=("q",), label="quit", help="leave; the compiler goes on, nothing is lost", group="app",
            does=called("leave"),
        ),
    )  # fmt: skip
    found: dict[str, Act] = {}
    for act in (*modes, *MOVES, PAUSE, *own, *app, STOP):
        found.setdefault(act.name, act)
    return tuple(sorted(found.values(), key=lambda act: list(GROUPS).index(act.group)))


def _leads(number: int, screen: ScreenSpec) -> Act:
    return Act(
        name=f"mode-{screen.name}", keys=(str(number),), label=screen.title.lower(), help=screen.about, group="modes",
        does=lambda scene, view, _: Step(
            view=replace(view, mode=screen.name, detail=False, top=0, focus="table")
        ),
    )  # fmt: skip


def here(act: Act, screen: ScreenSpec, screens: Screens) -> Act | None:
    """Return an action as a screen has it; None when it belongs to other screens alone."""
    own = next((one for one in screen.keys if one.name == act.name), None)
    return own or (None if any(act in other.keys for other in screens) else act)


def _places(act: Act, screens: Screens) -> dict[int, ScreenSpec]:
    """Return the screens that have an action, by their number keys."""
    return {number: one for number, one in enumerate(screens, 1) if here(act, one, screens) is not None}


def elsewhere(act: Act, screens: Screens) -> str:
    """Return the screens that have an action, as a person calls them."""
    return " or ".join(f"{number} {screen.title}" for number, screen in _places(act, screens).items())


def bound(key: str, screen: ScreenSpec, screens: Screens) -> Act | None:
    """Return the action of a key: the one of this screen, where several share the key."""
    found = [act for act in acts(screens) if key in act.keys]
    return next((act for act in found if here(act, screen, screens) is not None), next(iter(found), None))


def offers(scene: Scene, view: View, screens: Screens) -> list[Offer]:
    """Return every action as it stands now, in the order of the list."""
    return [_offer(act, scene, view, screens) for act in acts(screens)]


def _offer(act: Act, scene: Scene, view: View, screens: Screens) -> Offer:
    screen = shown(screens, view)
    own = here(act, screen, screens)
    why = own.why_not(scene, view, screen) if own is not None else f"only in {elsewhere(act, screens)}"
    label = "go on" if act.name == "pause" and scene.life != "live" else act.label
    return Offer(name=act.name, keys=" ".join(act.keys[:2]), label=label, help=act.help, why=why)


def footer(scene: Scene, view: View, screens: Screens) -> list[tuple[str, str, bool]]:
    """Return the keys that the last line names on this screen: key, label, whether it does something now."""
    known = {act.name: act for act in acts(screens)}
    found = [known[name] for name in shown(screens, view).foot]
    named = [(act.keys[0], _offer(act, scene, view, screens)) for act in found]
    return [(key, offer.label, offer.able) for key, offer in named]


def narrowed(able: Sequence[Offer], text: str) -> list[Offer]:
    """Return the actions whose name, label or help holds every word of `text`."""
    words = text.lower().split()
    return [
        offer for offer in able if all(word in f"{offer.name} {offer.label} {offer.help}".lower() for word in words)
    ]


def help_lines(scene: Scene, view: View, screens: Screens) -> tuple[str, ...]:
    """Return the keys by group, with what keeps each from doing anything now."""
    lines: list[str] = []
    group = ""
    for act, offer in zip(acts(screens), offers(scene, view, screens), strict=True):
        if act.group != group:
            group = act.group
            lines += ["", f"# {GROUPS[act.group]}"]
        own = here(act, shown(screens, view), screens) is not None
        where = "" if own else f" (in {' '.join(map(str, _places(act, screens)))})"
        lines.append(f"{offer.keys:<12} {offer.label:<18} {offer.help}{where}")
        lines += [f"{'':<12} {'':<18} not now: {offer.why}"] if own and offer.why else []
    return tuple(lines[1:])
