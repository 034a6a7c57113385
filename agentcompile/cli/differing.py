"""The verb `diff`: what two locks choose, were made with and measured, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from textwrap import shorten

from agentcompile import arguments
from agentcompile.cli.looking import chosen
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError
from agentcompile.ir.digest import Json
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock, LockChoice, LockPlan
from agentcompile.options import Options, resolve
from agentcompile.runs.folders import resuming
from agentcompile.runs.tables import Table, duration

NOTHING = "-"
_SIDE = 24
"""The most characters of a fact that are shown; JSON has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One region of one plan that two locks run otherwise; a choice that a lock does not have is empty."""

    plan: str
    region: str
    a: str
    b: str
    a_ns: int
    """Time of one occurrence in A as it was measured alone; 0 where A measured none."""
    b_ns: int


def diff(flags: Mapping[str, object], a: str, b: str, *, screen: Screen) -> int:
    """Show how two locks differ; each is a lock, a bundle, or a run, of which the lock is taken.

    Raises:
        AgentCompileError: one of them is neither, or a run has written no lock (usage).
    """
    options = resolve(flags).options
    places = [_lock_of(options, name) for name in (a, b)]
    one, other = (read_lock(place) for place in places)
    facts, steps, found = list(differing_facts(one, other)), list(step_times(one, other)), differences(one, other)
    same, alike = one.content_hash == other.content_hash, one.model.graphs == other.model.graphs
    for what, x, y in facts:
        screen.text(f"{what}: {shorten(x, _SIDE, placeholder='…')} → {shorten(y, _SIDE, placeholder='…')}")
    if steps and not same:
        rows = [(plan, duration(x), duration(y), _ratio(x, y)) for plan, x, y in steps]
        screen.table(Table(heads=("step", "A", "B", "A/B"), rows=rows, right=(1, 2, 3)))
    for plan in dict.fromkeys(d.plan for d in found) if alike else ():
        screen.text(f"@@ {plan}")
        for d in (d for d in found if d.plan == plan):
            screen.text(f"{d.region}\n- {d.a}{_time(d.a_ns)}\n+ {d.b}{_time(d.b_ns)}")
    screen.text(_summary(found, same=same, alike=alike))
    if steps and alike and not same:
        screen.say("times of two compiles are of two moments: `agentcompile bench` times both locks in one run")
    told: list[Json] = [
        {"plan": d.plan, "region": d.region, "a": d.a, "b": d.b, "a_ns": d.a_ns, "b_ns": d.b_ns} for d in found
    ]
    made: list[Json] = [{"what": what, "a": x, "b": y} for what, x, y in facts]
    timed: list[Json] = [{"plan": plan, "a_ns": x, "b_ns": y} for plan, x, y in steps]
    screen.json({"same": same, "made_with": made, "steps": timed, "regions": told})
    screen.next(f"agentcompile replay {quote(str(places[1]))}")
    return 0


def _summary(found: Sequence[Difference], *, same: bool, alike: bool) -> str:
    if same:
        return "the same decisions"
    if not alike:
        return "their graphs differ: regions are not compared"
    return f"{len(found)} {'region runs' if len(found) == 1 else 'regions run'} otherwise"


def _lock_of(options: Options, name: str) -> Path:
    """Return the file that is meant: a lock or a bundle, or the lock of a run."""  # noqa: DOC501
    path = Path(arguments.path("diff", name))
    with suppress(OSError):  # a folder that nobody may look at
        if path.is_file():
            return path
    run = chosen(options, name)
    written = run.state().lock
    if written is None:
        hint = f"finish it with {resuming(run.path)}, or name a lock"
        raise AgentCompileError(f"{run.path}: this run has written no lock", hint=hint)
    return Path(written.path)


def differing_facts(a: Lock, b: Lock) -> Iterator[tuple[str, str, str]]:
    """Yield the name and both values of every fact that two locks were made with and that differs."""
    for name in ("device", "arch", "threads", "toolchain"):
        yield from _unlike(name, getattr(a.target, name), getattr(b.target, name))
    only = [" ".join(sorted(set(x.target.isa) - set(y.target.isa))) or NOTHING for x, y in ((a, b), (b, a))]
    yield from _unlike("instructions of it alone", *only)
    for name in sorted(a.target.libraries.keys() | b.target.libraries.keys()):
        yield from _unlike(name, a.target.libraries.get(name, NOTHING), b.target.libraries.get(name, NOTHING))
    for name in ("name", "architecture", "dtype", "context"):
        yield from _unlike(f"model's {name}", getattr(a.model, name), getattr(b.model, name))
    yield from _unlike("weights", a.model.weights[:19], b.model.weights[:19])
    for name, value in (("chunk of a prompt", "chunk"), ("prompt in decode steps up to", "steps_up_to")):
        own = [[getattr(plan, value) for plan in lock.plan if plan.phase == "prefill"] for lock in (a, b)]
        yield from _unlike(name, *(next(iter(found), 0) or "as usual" for found in own))
    yield from _unlike("rule of choice", a.policy.choose, b.policy.choose)
    yield from _unlike("strategy", a.evidence.strategy or NOTHING, b.evidence.strategy or NOTHING)
    for name in sorted(a.policy.settings.keys() | b.policy.settings.keys()):
        yield from _unlike(name, a.policy.settings.get(name, NOTHING), b.policy.settings.get(name, NOTHING))


def _unlike(name: str, a: object, b: object) -> Iterator[tuple[str, str, str]]:
    if a != b:
        yield name, str(a), str(b)


def step_times(a: Lock, b: Lock) -> Iterator[tuple[str, int, int]]:
    """Yield the plans that both locks timed, with the step's time in each, in ns."""
    other = {(one.phase, one.batch, one.context): one.step_ns for one in b.evidence.steps}
    for one in a.evidence.steps:
        key = (one.phase, one.batch, one.context)
        if one.step_ns and other.get(key):
            yield _named(*key), one.step_ns, other[key]


def differences(a: Lock, b: Lock) -> tuple[Difference, ...]:
    """Return the regions that two locks run otherwise, plan by plan, in their order."""
    times = [{one.region: one.median_ns for one in lock.evidence.regions} for lock in (a, b)]
    plans = [{(plan.phase, plan.batch, plan.context): plan for plan in lock.plan} for lock in (a, b)]
    found = list[Difference]()
    for key in dict.fromkeys((*plans[0], *plans[1])):
        sides = [_choices(plan.get(key)) for plan in plans]
        for region in dict.fromkeys((*sides[0], *sides[1])):
            own = [side.get(region) for side in sides]
            labels = [_label(choice) for choice in own]
            if labels[0] != labels[1]:
                ns = [at.get(choice.region, 0) if choice else 0 for at, choice in zip(times, own, strict=True)]
                name = _named(*key)
                found.append(Difference(plan=name, region=region, a=labels[0], b=labels[1], a_ns=ns[0], b_ns=ns[1]))
    return tuple(found)


def _choices(plan: LockPlan | None) -> dict[str, LockChoice]:
    """Return a plan's choices by the region's name, which occurrences that run another choice follow."""
    found: dict[str, LockChoice] = {}
    for choice in plan.choices if plan is not None else ():
        at = f" at {','.join(map(str, choice.at))}" if choice.at else ""
        found[f"{choice.name}{at}"] = choice
    return found


def _label(choice: LockChoice | None) -> str:
    if choice is None:
        return NOTHING
    if choice.use == "fallback":
        return "pytorch"
    params = ", ".join(f"{name}={value}" for name, value in choice.params.items())
    return f"{choice.template}({params})" if params else choice.template


def _named(phase: str, batch: int, context: tuple[int, int]) -> str:
    return f"{phase} b{batch} c{context[0]}-{context[1]}"


def _time(ns: int) -> str:
    return f"  {duration(ns)} alone" if ns else ""


def _ratio(a: int, b: int) -> str:
    return f"{a / b:.2f}×" if a and b else NOTHING
