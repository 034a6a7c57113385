"""What a key does: where the person is afterwards, and what is to be done outside. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentcompile.control.commands import Command
from agentcompile.ir.template import Params

from .asks import candidate_of, choices, command, params_in, params_text, refusal, target_of
from .editing import edited, named
from .frame import narrowed
from .ink import Style
from .keys import ACTS, Act, bound, offers
from .moving import moved, scrolled, stepped
from .scene import BASELINES, MODES, Ask, Page, Palette, Pick, Scene, View
from .tuning import latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a command to the compiler, or write it down where none works."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Something that the app does itself."""

    what: Literal["copy", "source", "diff", "lock-text", "resume", "write", "check", "replay", "leave", "stop", "theme"]
    text: str = ""


Effect = Send | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The view after a key, and what follows from it."""

    view: View
    effects: tuple[Effect, ...] = ()


def press(scene: Scene, view: View, key: str, character: str = "") -> Step:
    """One key: `key` by its name, `character` what it types, if anything."""
    view = replace(view, message="")
    match view.overlay:
        case Ask() as ask:
            return _asked(scene, view, ask, key, character)
        case Palette() as palette:
            return _narrowed(scene, view, palette, key, character)
        case Pick() as pick:
            return _picked(view, pick, named(key, character))
        case Page() as page:
            return _paged(view, page, named(key, character))
        case None:
            act = bound(named(key, character), view.mode)
            return perform(scene, view, act) if act is not None else Step(view=view)


def perform(scene: Scene, view: View, act: Act) -> Step:
    """One action, or the sentence that says why it does nothing."""
    if view.mode not in act.modes:
        names = " or ".join(f"{MODES.index(mode) + 1} {mode.capitalize()}" for mode in act.modes)
        return _said(view, f"{act.keys[0]} ({act.label}) works in {names}.", "warn")
    if why := refusal(act.name, scene, view):
        return _said(view, f"{act.keys[0]}: {why}", "warn")
    if act.name.startswith("mode-"):
        mode = MODES[[f"mode-{mode}" for mode in MODES].index(act.name)]
        return Step(view=replace(view, mode=mode, detail=False, top=0, focus="table"))
    if act.group == "move":
        return _move(scene, view, act.name)
    if act.group == "decide" or act.name in ("cancel", "pause", "rerun"):
        return _decide(scene, view, act.name)
    return _look(scene, view, act.name)


def _said(view: View, text: str, tone: Style = "dim") -> Step:
    return Step(view=replace(view, message=text, tone=tone))


def _move(scene: Scene, view: View, name: str) -> Step:
    match name:
        case "filter":
            ask = Ask(action="filter", title=f"Filter {view.mode}:", text=view.filter.get(view.mode, ""))
            return Step(view=replace(view, overlay=replace(ask, at=len(ask.text))))
        case "open":
            return Step(view=_opened(view))
        case "back":
            return Step(view=_backed(view))
        case _:
            return Step(view=moved(scene, view, name))


def _opened(view: View) -> View:
    if view.mode == "regions" and (view.wide or view.detail):
        return replace(view, mode="tune", detail=False, top=0)
    if view.wide:
        return replace(view, focus="detail", top=0)
    return replace(view, detail=True, focus="detail", top=0)


def _backed(view: View) -> View:
    if view.detail or view.focus == "detail":
        return replace(view, detail=False, focus="table", top=0)
    return replace(view, filter={**view.filter, view.mode: ""})


def _decide(scene: Scene, view: View, name: str) -> Step:
    region = target_of(scene, view)
    row = scene.state.row(region)
    subject = row.name if row else ""
    if name == "override":
        if view.mode == "review":
            options = tuple(choices(scene, view))
            return Step(
                view=replace(view, overlay=Pick(action="override", title=f"{subject} runs instead:", options=options))
            )
        title = f"Why should {subject} run this?"
        return Step(view=replace(view, overlay=Ask(action="override", title=title, subject=candidate_of(scene, view))))
    if name == "reject":
        return Step(
            view=replace(view, overlay=Ask(action="reject", title=f"Why not {subject}? (may be empty)", subject=region))
        )
    if name == "edit":
        candidate = candidate_of(scene, view)
        text = params_text(_params(scene, region, candidate))
        return Step(
            view=replace(
                view, overlay=Ask(action="edit", title="Parameters:", text=text, at=len(text), subject=candidate)
            )
        )
    if name == "pause" and scene.life not in ("live", "paused"):
        return Step(view=view, effects=(Call(what="resume"),))
    return Step(view=view, effects=(Send(command=command(name, scene, view)),))


def _params(scene: Scene, region: str, candidate: str) -> Params:
    one = latest(scene.state, region).get(candidate)
    return one.trial.candidate.params if one else ()


def _look(scene: Scene, view: View, name: str) -> Step:
    match name:
        case "baseline":
            after = BASELINES[(BASELINES.index(view.baseline) + 1) % len(BASELINES)]
            return Step(view=replace(view, baseline=after))
        case "help":
            return Step(view=replace(view, overlay=Page(title="Keys", kind="help", lines=help_lines(scene, view))))
        case "palette":
            return Step(view=replace(view, overlay=Palette()))
        case "source" if view.mode == "lock":
            return Step(view=view, effects=(Call(what="lock-text"),))
        case "source" | "diff":
            return Step(
                view=view, effects=(Call(what="diff" if name == "diff" else "source", text=candidate_of(scene, view)),)
            )
        case "check":
            return Step(view=view, effects=(Call(what="check"),))
        case "replay":
            return Step(view=view, effects=(Call(what="replay"),))
        case "write":
            return Step(view=replace(view, mode="lock"), effects=(Call(what="write"),))
        case "detach":
            return Step(view=view, effects=(Call(what="leave"),))
        case "stop":
            return Step(view=view, effects=(Call(what="stop"),))
        case "theme":
            return Step(view=view, effects=(Call(what="theme"),))
        case "copy":
            return Step(view=view, effects=(Call(what="copy"),))
        case _:
            raise AssertionError(f"{name} has no effect")


def help_lines(scene: Scene, view: View) -> tuple[str, ...]:
    """The table of keys by group, with what keeps each from doing anything now."""
    from .keys import GROUPS

    able = {offer.name: offer for offer in offers(scene, view)}
    lines: list[str] = []
    for group, title in GROUPS.items():
        lines += ["", f"# {title}"]
        for act in ACTS:
            if act.group == group:
                offer, here = able[act.name], view.mode in act.modes
                where = "" if here else f" (in {' '.join(str(MODES.index(mode) + 1) for mode in act.modes)})"
                lines.append(f"{offer.keys:<12} {offer.label:<18} {offer.help}{where}")
                lines += [f"{'':<12} {'':<18} not now: {offer.why}"] if here and offer.why else []
    return tuple(lines[1:])


def _asked(scene: Scene, view: View, ask: Ask, key: str, character: str) -> Step:
    if key == "escape":
        return _said(replace(view, overlay=None), "Nothing was changed.")
    if key != "enter":
        ask = edited(ask, key, character)
        view = replace(view, overlay=ask)
        if ask.action == "filter":
            view = replace(view, filter={**view.filter, view.mode: ask.text})
        return Step(view=view)
    view = replace(view, overlay=None)
    text = ask.text.strip()
    match ask.action:
        case "filter":
            return Step(view=replace(view, filter={**view.filter, view.mode: text}))
        case "override" if not text:
            return Step(view=replace(view, overlay=replace(ask, title="A reason is needed; the lock keeps it:")))
        case "override":
            return Step(
                view=view, effects=(Send(command=command("override", scene, view, reason=text, candidate=ask.subject)),)
            )
        case "reject":
            return Step(view=view, effects=(Send(command=command("reject", scene, view, reason=text)),))
        case "edit":
            params = params_in(text, _params(scene, target_of(scene, view), ask.subject))
            if isinstance(params, str):
                return Step(view=replace(view, overlay=replace(ask, title=f"{params} Parameters:")))
            return Step(
                view=view, effects=(Send(command=command("edit", scene, view, candidate=ask.subject, params=params)),)
            )
        case _:
            raise AssertionError(f"{ask.action} was never asked")


def _narrowed(scene: Scene, view: View, palette: Palette, key: str, character: str) -> Step:
    able = offers(scene, view)
    found = narrowed(able, palette.text)
    match key:
        case "escape":
            return Step(view=replace(view, overlay=None))
        case "down" | "tab":
            return Step(view=replace(view, overlay=replace(palette, cursor=stepped(palette.cursor, 1, len(found)))))
        case "up":
            return Step(view=replace(view, overlay=replace(palette, cursor=stepped(palette.cursor, -1, len(found)))))
        case "enter":
            view = replace(view, overlay=None)
            if not found:
                return Step(view=view)
            act = next(act for act in ACTS if act.name == found[palette.cursor].name)
            return perform(scene, view, act)
        case _:
            typed = edited(Ask(action="palette", title="", text=palette.text, at=len(palette.text)), key, character)
            return Step(view=replace(view, overlay=Palette(text=typed.text)))


def _picked(view: View, pick: Pick, key: str) -> Step:
    match key:
        case "escape":
            return _said(replace(view, overlay=None), "Nothing was changed.")
        case "j" | "down":
            return Step(view=replace(view, overlay=replace(pick, cursor=stepped(pick.cursor, 1, len(pick.options)))))
        case "k" | "up":
            return Step(view=replace(view, overlay=replace(pick, cursor=stepped(pick.cursor, -1, len(pick.options)))))
        case "enter":
            id, label = pick.options[pick.cursor]
            return Step(
                view=replace(
                    view, overlay=Ask(action=pick.action, title=f"Why {label.partition('  ')[0]}?", subject=id)
                )
            )
        case _:
            return Step(view=view)


def _paged(view: View, page: Page, key: str) -> Step:
    if key in ("escape", "q", "enter") or (key == "?" and page.kind == "help"):
        return Step(view=replace(view, overlay=None))
    return Step(view=replace(view, overlay=scrolled(page, key, view.height - 7)))


def closed(effects: Sequence[Effect]) -> bool:
    """Whether the app ends after these."""
    return any(isinstance(effect, Call) and effect.what in ("leave", "stop") for effect in effects)
