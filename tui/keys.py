"""Every key of the app's screens: bindings, the last line, the palette, help and refusals are read from one list.

Commands carry the name that they have in `agentcompile.control`, whose table says what each is called, what it does and
when it is refused; the rest moves through what is shown and needs no compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from .asks import PAUSE, STOP
from .moving import MOVES
from .scene import Overlay, Page, Palette, Scene, Step, View
from .screen import Act, Does, Group, Screens, ScreenSpec, called, shown

GROUPS: dict[Group, str] = {
    "modes": "Modes", "move": "Moving", "decide": "Deciding", "run": "The run", "look": "Looking", "app": "The app",
}  # fmt: skip
Offer = tuple[Act, str]
"""An action as it stands now, and the sentence that says why it does nothing; empty when it does something."""


@functools.lru_cache(maxsize=4)
def acts(screens: Screens) -> tuple[Act, ...]:
    """Return every action once, by group: those that lead to a screen, the screens' own, and those of all screens."""
    modes = [_leads(number, screen) for number, screen in enumerate(screens, 1)]
    own = [act for screen in screens for act in screen.keys]
    instead = {act.name: act for act in own}
    app = (
        Act("copy", ("c",), "the command that does the same headlessly, to the clipboard", called("copy")),
        Act("theme", ("t",), "dark, light, the terminal's own colours, high contrast", called("theme")),
        Act("palette", (":", "ctrl+p"), "every action by name", _over(lambda scene, view: Palette()), group="app"),
        Act("help", ("?",), "this page", _over(lambda scene, view: _help(scene, view, screens)), group="app"),
        Act(
            "detach",
            ("q",),
            "leave; the compiler keeps running, nothing is lost",
            called("leave"),
            group="app",
            word="quit",
        ),
    )
    found: dict[str, Act] = {}
    for act in (*modes, *MOVES, PAUSE, *own, *app, STOP):
        found.setdefault(act.name, instead.get(act.name, act))
    return tuple(sorted(found.values(), key=lambda act: list(GROUPS).index(act.group)))


def _leads(number: int, screen: ScreenSpec) -> Act:
    def does(scene: Scene, view: View, _: ScreenSpec) -> Step:
        return Step(view=replace(view, mode=screen.name, detail=False, top=0, focus="table"))

    return Act(f"mode-{screen.name}", (str(number),), screen.about, does, group="modes", word=screen.title.lower())


def _over(makes: Callable[[Scene, View], Overlay]) -> Does:
    return lambda scene, view, screen: Step(view=replace(view, overlay=makes(scene, view)))


def here(act: Act, screen: ScreenSpec, screens: Screens) -> Act | None:
    """Return an action as a screen has it; None when it belongs to other screens alone."""
    own = next((one for one in screen.keys if one.name == act.name), None)
    return own or (None if any(act in other.keys for other in screens) else act)


def _places(act: Act, screens: Screens) -> dict[int, ScreenSpec]:
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
    return (replace(act, word="resume") if act.name == "pause" and scene.held else act), why


def footer(scene: Scene, view: View, screens: Screens) -> list[tuple[str, str, bool]]:
    """Return the keys that the last line names on this screen: key, label, whether it does something now."""
    known = {act.name: act for act in acts(screens)}
    found = [_offer(known[name], scene, view, screens) for name in shown(screens, view).foot]
    return [(act.keys[0], act.label, not why) for act, why in found]


def narrowed(able: Sequence[Offer], text: str) -> list[Offer]:
    """Return the actions whose name, label or help holds every word of `text`."""
    words = text.lower().split()
    return [(act, why) for act, why in able if all(w in f"{act.name} {act.label} {act.help}".lower() for w in words)]


def _help(scene: Scene, view: View, screens: Screens) -> Page:
    lines: list[str] = []
    group = ""
    for act, why in offers(scene, view, screens):
        if act.group != group:
            group = act.group
            lines += ["", f"# {GROUPS[act.group]}"]
        own = here(act, shown(screens, view), screens) is not None
        where = "" if own else f" (in {' '.join(map(str, _places(act, screens)))})"
        lines.append(f"{' '.join(act.keys[:2]):<12} {act.label:<18} {act.help}{where}")
        lines += [f"{'':<12} {'':<18} not now: {why}"] if own and why else []
    return Page(title="Keys", kind="help", lines=tuple(lines[1:]))
