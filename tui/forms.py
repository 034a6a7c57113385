"""The form that changes a candidate's parameters: each with its domain, and only legal points are taken. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentcompile.control import commands
from agentcompile.events import Offer
from agentcompile.ir.evaluate import EvaluationError, evaluate, explain
from agentcompile.ir.expr import ExprError, free_names, parse
from agentcompile.ir.template import Param, Params
from agentcompile.ir.trial import Trial
from agentcompile.runs.tables import duration

from .ink import BLANK, Ink, Line, Span, Style, line
from .scene import Form, Scene, Send, Step, View
from .trials import latest, measured, short, times

UNKNOWN = "The run does not record which values its template allows; agentcompile decide RUN --edit takes them."
_HEAD = 4
"""Lines above the parameters."""
_NAME = 14
BREAKS = "⊘"
"""Behind a value that breaks a constraint beside the others."""


def offer_of(scene: Scene, trial: Trial | None) -> Offer | None:
    """Return the template of a candidate with its domains; None where the run does not record them."""
    row = scene.state.row(trial.candidate.region) if trial is not None else None
    if trial is None or row is None:
        return None
    return next((one for one in row.offers if one.template == trial.candidate.template and one.params), None)


def opened(scene: Scene, view: View, region: str, candidate: str) -> Step:
    """Return the step that opens the form of a candidate; it is refused where its domains are not known."""
    trial = latest(scene.state, region).get(candidate)
    offer, row = offer_of(scene, trial), scene.state.row(region)
    assert trial is not None, "it is refused otherwise"
    assert offer is not None, "it is refused otherwise"
    assert row is not None, "it is refused otherwise"
    form = Form(
        candidate=trial.candidate, params=offer.params, values=trial.candidate.params, requires=offer.requires,
        dims=row.dims,
    )  # fmt: skip
    return Step(view=replace(view, overlay=form))


def values_of(form: Form) -> dict[str, int]:
    """Return the names that constraints read; one that the region does not state is 0."""
    return dict(form.dims) | {name: value for name, value in form.values if isinstance(value, int)}


def refusal(form: Form) -> str:
    """Return why the values are no legal point of the template, with figures; empty where they are."""
    own = values_of(form)
    for text in form.requires:
        if why := _broken(text, own):
            return why
    return ""


def _broken(text: str, own: Mapping[str, int]) -> str:
    try:
        tree = parse(text)
        names = {name: own.get(name, 0) for name in free_names(tree)}
        return "" if evaluate(tree, names) else explain(tree, names)
    except (ExprError, EvaluationError) as error:
        return f"{text}: {error}"


def changed(form: Form, by: int) -> Form:
    """Return the form with another value of the parameter under the cursor, `by` places further in its domain."""
    param = form.params[form.cursor]
    at = _place(form, param)
    return valued(form, form.cursor, (at + by) % len(param.domain))


def valued(form: Form, cursor: int, place: int) -> Form:
    """Return the form with the cursor on a parameter that has the value at `place` of its domain."""
    param = form.params[cursor]
    values: Params = tuple((name, param.domain[place] if name == param.name else old) for name, old in form.values)
    return replace(form, cursor=cursor, values=values)


def _place(form: Form, param: Param) -> int:
    value = dict(form.values).get(param.name)
    return next((at for at, one in enumerate(param.domain) if one == value), 0)


def pressed(scene: Scene, view: View, form: Form, key: str) -> Step:
    """Return what a key does in the form."""
    count = len(form.params)
    match key:
        case "escape" | "q":
            return Step(view=replace(view, overlay=None, message="Nothing was changed."))
        case "j" | "down" | "tab":
            form = replace(form, cursor=(form.cursor + 1) % count)
        case "k" | "up":
            form = replace(form, cursor=(form.cursor - 1) % count)
        case "h" | "left":
            form = changed(form, -1)
        case "l" | "right" | "space":
            form = changed(form, 1)
        case "enter":
            return _sent(view, form)
        case _:
            pass
    return Step(view=replace(view, overlay=form))


def _sent(view: View, form: Form) -> Step:
    if form.values == form.candidate.params:
        return Step(view=replace(view, overlay=None, message="Nothing was changed: these are its parameters already."))
    if refusal(form):
        return Step(view=replace(view, overlay=form))  # the form itself says why
    command = commands.Edit(candidate=form.candidate.id, params=form.values)
    return Step(view=replace(view, overlay=None), effects=(Send(command=command),))


def form_lines(form: Form, scene: Scene, width: int, ink: Ink) -> list[Line]:
    """Return the form: a line for each parameter, what the one under the cursor is, and whether the point is legal."""
    lines = [
        BLANK,
        line((f"  Parameters of {short(form.candidate.label)}", "title")),
        line((f"  j k choose one, h l change it; {BREAKS} breaks a constraint", "dim")),
        BLANK,
    ]
    for at, param in enumerate(form.params):
        chosen = at == form.cursor
        head: list[Span] = [
            ("▌ " if chosen else "  ", "accent"),
            (ink.fit(param.name, _NAME), "title" if chosen else ""),
        ]
        lines.append(line(*head, *_domain(form, at, width - _NAME - 2)))
    about = form.params[form.cursor].about
    lines += [BLANK, *(line((f"  {piece}", "dim")) for piece in ink.wrap(about, width - 4)), BLANK]
    why = refusal(form)
    verdict: Span = (f"✗ not legal: {why}", "bad") if why else _known(scene, form)
    lines += [line((f"  {piece}", verdict[1])) for piece in ink.wrap(verdict[0], width - 4)]
    able: Style = "dim" if why else "key"
    return [*lines, BLANK, line("  ", ("enter", able), " evaluates this point   ", ("escape", "key"), " leaves it")]


def _known(scene: Scene, form: Form) -> Span:
    """Return what is known of the point: its time, where it was evaluated already."""
    for trial in latest(scene.state, form.candidate.region).values():
        if trial.candidate.template == form.candidate.template and trial.candidate.params == form.values:
            m = measured(trial)
            if form.values == form.candidate.params:
                return "✓ the candidate as it is", "good"
            said = f"{duration(m.median_ns)}, {times(m.speedup)}" if m is not None else trial.verdict.kind
            return f"✓ legal, and evaluated before: {said}", "good"
    return "✓ legal; it waits its turn, then passes the same gates as every candidate", "good"


def _domain(form: Form, at: int, width: int) -> list[Span]:
    """Return the values of a parameter, the chosen one marked; where there are too many, those around it."""
    param, now = form.params[at], _place(form, form.params[at])
    cells = []
    for place, value in enumerate(param.domain):
        text = f"{value}{BREAKS if refusal(valued(form, at, place)) else ''}"
        cells.append(f"[{text}]" if place == now else f" {text} ")
    first, last = now, now + 1
    room = width - len(cells[now]) - 4
    while (first > 0 or last < len(cells)) and room > 0:
        if first > 0 and len(cells[first - 1]) <= room:
            first -= 1
            room -= len(cells[first])
        if last < len(cells) and len(cells[last]) <= room:
            room -= len(cells[last])
            last += 1
        elif first == 0 or len(cells[first - 1]) > room:
            break
    spans: list[Span] = [("… ", "dim")] if first else []
    for place in range(first, last):
        broken = BREAKS in cells[place]
        spans.append((cells[place], "bar" if place == now else "dim" if broken else ""))
    return [*spans, (" …", "dim")] if last < len(cells) else spans


def at_cell(form: Form, x: int, y: int, width: int) -> Form:
    """Return the form after a click on a cell: the parameter of that line, with the value that is drawn there."""
    at = y - _HEAD
    if not 0 <= at < len(form.params):
        return form
    left = _NAME + 2
    param = form.params[at]
    for text, _ in _domain(form, at, width - _NAME - 2):
        value = text.strip(f" []{BREAKS}")
        if left <= x < left + len(text) and value != "…":
            place = next(place for place, one in enumerate(param.domain) if str(one) == value)
            return valued(form, at, place)
        left += len(text)
    return replace(form, cursor=at)
