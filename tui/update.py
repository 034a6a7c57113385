"""What a key does: where the person is afterwards, and the effects that follow. Pure."""

from __future__ import annotations

from dataclasses import replace

from . import charts
from .asks import answered
from .editing import edited, named
from .forms import pressed
from .ink import Style
from .keys import acts, bound, elsewhere, help_page, here, narrowed, offers
from .moving import followed, scrolled, stepped
from .scene import Ask, Chart, Dialog, Form, Page, Palette, Pick, Scene, Steer, Step, View
from .screen import Act, Screens, shown
from .screens import SCREENS


def press(scene: Scene, view: View, key: str, character: str = "", screens: Screens = SCREENS) -> Step:
    """Return what one key does: `key` is its name, `character` what it types, if anything."""
    view = replace(view, message="")
    match view.overlay:
        case Ask() as ask:
            return _asked(scene, view, ask, key, character, screens)
        case Palette() as palette:
            return _narrowed(scene, view, palette, key, character, screens)
        case Pick() as pick:
            return _picked(view, pick, named(key, character))
        case Page() as page:
            return _paged(scene, view, page, named(key, character), screens)
        case Dialog() as dialog:
            return _confirmed(view, dialog, key, character)
        case Chart() as chart:
            return charts.pressed(scene, view, chart, named(key, character))
        case Form() as form:
            return pressed(scene, view, form, named(key, character))
        case None:
            act = bound(named(key, character), shown(screens, view), screens)
            return _perform(scene, view, act, screens) if act is not None else Step(view=view)


def _perform(scene: Scene, view: View, act: Act, screens: Screens) -> Step:
    screen = shown(screens, view)
    own = here(act, screen, screens)
    if own is None:
        return _said(view, f"{act.keys[0]} ({act.label}) works in {elsewhere(act, screens)}.", "warn")
    if why := own.why_not(scene, view, screen):
        return _said(view, f"{act.keys[0]}: {why}", "warn")
    return own.does(scene, view, screen)


def _said(view: View, text: str, tone: Style = "dim") -> Step:
    return Step(view=replace(view, message=text, tone=tone))


def _asked(scene: Scene, view: View, ask: Ask, key: str, character: str, screens: Screens) -> Step:
    if key == "escape":
        return _said(replace(view, overlay=None), "Nothing was changed.")
    typed = key != "enter"
    ask = edited(ask, key, character) if typed else ask
    view = replace(view, overlay=ask if typed else None)
    if ask.action == "filter":
        view = replace(view, filter={**view.filter, view.mode: ask.text if typed else ask.text.strip()})
        return Step(view=followed(scene, view, shown(screens, view)))
    return Step(view=view) if typed else answered(scene, view, shown(screens, view), ask)


def _narrowed(scene: Scene, view: View, palette: Palette, key: str, character: str, screens: Screens) -> Step:
    found = narrowed(offers(scene, view, screens), palette.text)
    match key:
        case "escape":
            return Step(view=replace(view, overlay=None))
        case "down" | "tab" | "up":
            at = stepped(palette.cursor, -1 if key == "up" else 1, len(found))
            return Step(view=replace(view, overlay=replace(palette, cursor=at)))
        case "enter":
            view = replace(view, overlay=None)
            if not found:
                return Step(view=view)
            act = next(act for act in acts(screens) if act.name == found[palette.cursor][0].name)
            return _perform(scene, view, act, screens)
        case _:
            typed = edited(Ask(action="palette", title="", text=palette.text, at=len(palette.text)), key, character)
            return Step(view=replace(view, overlay=Palette(text=typed.text)))


def _picked(view: View, pick: Pick, key: str) -> Step:
    match key:
        case "escape":
            return _said(replace(view, overlay=None), "Nothing was changed.")
        case "j" | "down" | "k" | "up":
            by = 1 if key in ("j", "down") else -1
            return Step(view=replace(view, overlay=replace(pick, cursor=stepped(pick.cursor, by, len(pick.options)))))
        case "enter":
            id, label = pick.options[pick.cursor]
            ask = Ask(action=pick.action, title=f"Why {label.partition('  ')[0]}?", subject=id)
            return Step(view=replace(view, overlay=ask))
        case _:
            return Step(view=view)


def _confirmed(view: View, dialog: Dialog, key: str, character: str) -> Step:
    match key:
        case "escape":
            return _said(replace(view, overlay=None), "Nothing was changed.")
        case "enter":
            effect = dialog.effect
            if dialog.name is not None and isinstance(effect, Steer):
                effect = replace(effect, name=dialog.name.text.strip())
            return replace(_said(replace(view, overlay=None), f"{dialog.title} …"), effects=(effect,))
        case _ if dialog.name is not None:
            return Step(view=replace(view, overlay=replace(dialog, name=edited(dialog.name, key, character))))
        case _:
            return Step(view=view)


def _paged(scene: Scene, view: View, page: Page, key: str, screens: Screens) -> Step:
    if key in ("escape", "q", "enter") or (key == "?" and page.kind == "help"):
        return Step(view=replace(view, overlay=None))
    if page.kind == "help" and (by := _TURNS.get(key, 0)):
        return Step(view=replace(view, overlay=help_page(scene, view, screens, by)))
    return Step(view=replace(view, overlay=scrolled(page, key, view.height - 7)))


_TURNS = {"tab": 1, "l": 1, "right": 1, "h": -1, "left": -1, "shift+tab": -1}
"""The keys that lead from the help of a screen to that of the next one."""
