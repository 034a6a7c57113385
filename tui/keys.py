"""Every key of the app's screens: bindings, the last line, the palette, help and refusals are read from one list.

Commands carry the name that they have in `agentcompile.control`, whose table says what each is called, what it does and
when it is refused; the rest moves through what is shown and needs no compiler.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace

from .asks import PAUSE, STOP
from .moving import MOVES
from .scene import Call, Overlay, Page, Palette, Scene, Step, View
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
        Act("report", ("O",), "write the run's HTML report and open it in a browser", _reported, _unreported),
        Act("theme", ("t",), "dark, light, the terminal's own colours, high contrast", called("theme")),
        Act("palette", (":", "ctrl+p"), "every action by name", _over(lambda scene, view: Palette()), group="app"),
        Act(
            "help",
            ("?",),
            "the keys of a screen",
            _over(lambda scene, view: help_page(scene, view, screens)),
            group="app",
        ),
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


def _reported(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    return Step(view=replace(view, message="Writing the report …", tone="dim"), effects=(Call(what="report"),))


def _unreported(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if scene.refined is not None:
        return "A session of `refine` has no HTML report."
    return "" if scene.path else "A lock has no HTML report: its run has."


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


def help_page(scene: Scene, view: View, screens: Screens, by: int = 0) -> Page:
    """Return the help of a screen as a page: its own keys, then those of every screen.

    It is of the screen that is shown, or of the one whose help is open, `by` places further.
    """
    about = view.overlay.screen if isinstance(view.overlay, Page) and view.overlay.screen else view.mode
    names = [screen.name for screen in screens]
    at = (names.index(about) + by) % len(screens)
    screen = screens[at]
    there = replace(view, mode=screen.name)
    own = [(act, why) for act, why in offers(scene, there, screens) if here(act, screen, screens) is not None]
    mine = {act.name for act in screen.keys}
    lines = [f"# {at + 1} {screen.title}: {screen.about}"]
    lines += [text for act, why in own if act.name in mine for text in _helped(act, why, view.width)]
    for group, title in GROUPS.items():
        rest = [(act, why) for act, why in own if act.group == group and act.name not in mine]
        lines += (
            ["", f"# {title}", *(text for act, why in rest for text in _helped(act, why, view.width))] if rest else []
        )
    lines += ["", "# The mouse", *(text for key, does in _MOUSE for text in _wrapped(key, "", does, view.width))]
    return Page(title=f"Keys of {screen.title}", kind="help", lines=tuple(lines), screen=screen.name)


_MOUSE = (
    ("click", "chooses a row, and opens the chosen one; a head sorts; names of screens and keys do what they say"),
    ("wheel", "moves through what is under the pointer"),
    ("shift", "held down, most terminals select text as they do without the app"),
)
_KEYS, _LABELS = 12, 18
"""Cells of the keys and of the labels of a help page."""


def _helped(act: Act, why: str, width: int) -> list[str]:
    lines = _wrapped(" ".join(act.keys[:2]), act.label, act.help, width)
    return [*lines, *_wrapped("", "", f"not now: {why}", width)] if why else lines


def _wrapped(keys: str, label: str, text: str, width: int) -> list[str]:
    pieces = textwrap.wrap(text, max(width - _KEYS - _LABELS - 5, 16))
    heads = [f"{keys:<{_KEYS}} {label:<{_LABELS}}", *[" " * (_KEYS + 1 + _LABELS)] * (len(pieces) - 1)]
    return [f"{head} {piece}" for head, piece in zip(heads, pieces, strict=True)]
