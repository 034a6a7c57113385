"""Locks with changed content and a correct new hash: what someone who knows the hash could write."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agentcompile.catalog import Catalog
from agentcompile.ir.region import Region
from agentcompile.ir.template import Source, Template
from agentcompile.lockfile.schema import Lock, LockChoice, LockPlan, PromptEvidence
from agentcompile.materialize import specialise
from agentcompile.replay.sources import LockSources


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a forger can use: the lock's regions, all templates, and a bundle to put sources and templates into."""

    regions: Mapping[str, Region]
    templates: Catalog
    kept: LockSources
    """The sources of the lock; forged ones are added to its bundle."""

    def keep(self, made: Source | Template) -> str:
        """Add a source or template to the bundle; return its digest."""
        held: Any = self.kept.bundle.sources if isinstance(made, Source) else self.kept.bundle.templates
        held[made.digest] = made
        return made.digest


Forge = Callable[[Lock, Ground, random.Random], Lock]
Change = Callable[[LockChoice, Lock, Ground, random.Random], LockChoice]
_NUMBERS = (-1, 0, 1, 2, 3, 7, 48, 63, 64, 65, 1023, 2**31, 2**40, 2**62)
_LENGTHS = (4, 5, 8, 13, 16, 17, 20, 21, 22, 31, 32, 33)
"""Tokens of chunks and of prompts, around the prompt by which locks are compared."""
_RATIOS = ("0", "-0.5", "1e999", "inf", "nan", "", "9" * 40, "0x1", "1e-3")
_PLACES = (
    "/", "/etc", "~", "~root", "../../../..", "../../../../..", "a/../b", "./x", "\0", "x\0y", "/dev/zero", "preset:",
    "preset:../x", "preset:tiny-qwen3", "preset:none", "\\\\host\\x", "", "x" * 5000, "/proc/self/root", "\u202e",
)  # fmt: skip
_SWAPPED = (
    "source", "template", "template_digest", "region", "region name", "region name sites at",
    "template template_digest", "params source", "template template_digest params source use decided_by", "at sites",
)  # fmt: skip
"""Fields that are copied together from one choice to another."""
_DIGESTS = ("0" * 64, "f" * 64, "", "0", "F" * 64, "g" * 64, "../" * 21 + "x")


def _of_a_choice(change: Change) -> Forge:
    """Return a forgery that changes one drawn choice of a drawn plan, and nothing where the plan has no choices."""

    def forge(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
        at = draw.randrange(len(lock.plan))
        choices = list(lock.plan[at].choices)
        if not choices:
            return lock
        chosen = draw.randrange(len(choices))
        choices[chosen] = change(choices[chosen], lock, ground, draw)
        return _planned(lock, at, replace(lock.plan[at], choices=tuple(choices)))

    return forge


def _planned(lock: Lock, at: int, plan: LockPlan) -> Lock:
    return replace(lock, plan=(*lock.plan[:at], plan, *lock.plan[at + 1 :]))


def layouts_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Delete, add or rename weight layouts."""
    held = dict(lock.layouts)
    names = ("row-major", "rows16-k2", "rows16-k1", "rows8", "", "__class__")
    if held and draw.random() < 0.6:
        name = draw.choice(sorted(held))
        if draw.random() < 0.5:
            del held[name]
        else:
            held[name] = draw.choice(names)
    else:
        bound = [value for region in ground.regions.values() for value in region.sites[0].bindings]
        held[draw.choice([*lock.layouts, "model.norm.weight", "none", draw.choice(bound)[1]])] = draw.choice(names)
    return replace(lock, layouts={} if draw.random() < 0.1 else held)


@_of_a_choice
def params_of(choice: LockChoice, lock: Lock, ground: Ground, draw: random.Random) -> LockChoice:
    """Change the value of a parameter, remove one or add one."""
    params: dict[str, Any] = dict(choice.params)
    name = draw.choice([*params, "ROWS", "X", "__init__"])
    if draw.random() < 0.2:
        params.pop(name, None)
    else:
        params[name] = draw.choice([*_NUMBERS, *(v * 2 for v in params.values() if isinstance(v, int)), "1", ""])
    return replace(choice, params=params)


def swapped(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Copy some fields of one kernel's choice to another choice, of the same plan or another."""
    kernels = [choice for plan in lock.plan for choice in plan.choices if choice.use == "kernel"]
    if not kernels:
        return lock
    giver = draw.choice(kernels)
    fields = draw.choice(_SWAPPED).split()
    copied = {name: getattr(giver, name) for name in fields}
    return _of_a_choice(lambda choice, *_: replace(choice, **copied))(lock, ground, draw)


def choices_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Drop, duplicate, move, reorder or re-site the choices of a plan."""
    at = draw.randrange(len(lock.plan))
    choices = list(lock.plan[at].choices)
    if not choices:
        return lock
    one = draw.choice(choices)
    match draw.randrange(6):
        case 0:
            choices.remove(one)
        case 1:
            choices.append(one)
        case 2:
            other = draw.choice(lock.plan)
            choices.append(draw.choice(other.choices) if other.choices else one)
        case 3:
            draw.shuffle(choices)
        case 4:
            sites = draw.choice(((), (0,), (0, 1), (1, 0), (0, 0), (-1,), (10**9,), tuple(range(one.sites))))
            count = draw.choice((one.sites, len(sites) or one.sites))
            choices[choices.index(one)] = replace(one, at=sites, sites=count)
        case _:
            choices = []
    return _planned(lock, at, replace(lock.plan[at], choices=tuple(choices)))


def plans_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Change a plan's phase, batch or context, or add, drop or reorder plans."""
    at = draw.randrange(len(lock.plan))
    plan = lock.plan[at]
    match draw.randrange(6):
        case 0:
            return replace(lock, plan=(*lock.plan, plan))
        case 1:
            return replace(lock, plan=(*lock.plan[:at], *lock.plan[at + 1 :]))
        case 2:
            return replace(lock, plan=tuple(reversed(lock.plan)))
        case 3:
            plan = replace(plan, batch=draw.choice(_NUMBERS))
        case 4:
            plan = replace(plan, context=(draw.choice(_NUMBERS), draw.choice((*_NUMBERS, lock.model.context))))
        case _:
            plan = replace(plan, phase=draw.choice(("decode", "prefill")), exact=draw.random() < 0.5)
    return _planned(lock, at, plan)


def prompts_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Change how prompts run: the tokens of their chunks, and up to how many run in decode steps; or its evidence."""
    match draw.randrange(4):
        case 0:
            changed: dict[str, Any] = {"chunk": draw.choice((*_NUMBERS, *_LENGTHS, lock.model.context))}
        case 1:
            changed = {"steps_up_to": draw.choice((*_NUMBERS, *_LENGTHS))}
        case 2:
            chunk = draw.choice(_LENGTHS)
            changed = {"chunk": chunk, "steps_up_to": draw.randrange(chunk)}
        case _:
            fields = {
                name: draw.choice((*_NUMBERS, *_LENGTHS)) for name in ("tokens", "chunk", "median_ns", "baseline_ns")
            }
            row = PromptEvidence(**fields, log_ratio=draw.choice(_RATIOS), half_width=draw.choice(_RATIOS))
            rows = (*lock.evidence.prompts, *[row] * draw.choice((1, 1, 3)))
            return replace(lock, evidence=replace(lock.evidence, prompts=rows))
    # Mostly of the plan that prompts run by: the others must refuse it.
    prompts = [at for at, plan in enumerate(lock.plan) if plan.phase == "prefill"]
    at = draw.choice(prompts) if prompts and draw.random() < 0.8 else draw.randrange(len(lock.plan))
    return _planned(lock, at, replace(lock.plan[at], **changed))


def target_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Change the target machine."""
    target = lock.target
    fields: dict[str, Any] = draw.choice(
        (
            {"threads": draw.choice(_NUMBERS)},
            {"kind": draw.choice(("cpu", "cuda"))},
            {"arch": draw.choice(("x86_64", "aarch64", "sm_90a", "sm_", "", "\0"))},
            {"isa": tuple(draw.sample(target.isa, len(target.isa) // 2))},
            {"isa": (*target.isa, draw.choice(("avx10", "amx_bf16", "-march=native", "")))},
            {"device": draw.choice(("", "\x1b[31m", "x" * 10000))},
            {"cache_bytes": tuple(draw.choice(_NUMBERS) for _ in range(draw.randrange(4)))},
            {"line_bytes": draw.choice(_NUMBERS)},
            {"toolchain": draw.choice(("g++ 1.0", "", "nvrtc 13.0"))},
            {"libraries": {"torch": draw.choice(("0", "2.13.0"))}},
            {"libraries": {}},
        )
    )
    return replace(lock, target=replace(target, **fields))


def model_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Change the model, or where it is."""
    model = lock.model
    fields: dict[str, Any] = draw.choice(
        (
            {"location": draw.choice(_PLACES)},
            {"context": draw.choice(_NUMBERS)},
            {"dtype": draw.choice(("bf16", "fp32", "fp8", ""))},
            {"config": draw.choice(_DIGESTS)},
            {"weights": draw.choice(_DIGESTS)},
            {"graphs": dict(zip(("decode", "prefill"), reversed(list(model.graphs.values())), strict=True))},
            {"graphs": {"decode": model.graphs["decode"]}},
            {"name": "\u202e\x07", "architecture": ""},
        )
    )
    return replace(lock, model=replace(model, **fields))


def words_of(lock: Lock, ground: Ground, draw: random.Random) -> Lock:
    """Change what is only read by people: policy, who decided, reasons, evidence, revision."""
    match draw.randrange(5):
        case 0:
            rule: Any = draw.choice(("admitted", "isolated", "first", "pytorch"))
            return replace(lock, policy=replace(lock.policy, choose=rule, digest=draw.choice((*_DIGESTS, "a" * 64))))
        case 1:
            return replace(lock, policy=replace(lock.policy, settings={"alpha": "1", "x": ""}))
        case 2:
            by: Any = draw.choice(("measured", "adviser", "human", "fallback"))
            told = {"decided_by": by, "reason": "\x1b]0;x\x07", "approval": "\0"}
            return _of_a_choice(lambda choice, *_: replace(choice, **told))(lock, ground, draw)
        case 3:
            rows = tuple(replace(row, median_ns=draw.choice(_NUMBERS)) for row in lock.evidence.regions)
            return replace(lock, evidence=replace(lock.evidence, regions=rows, advice=("x",)))
        case _:
            return replace(lock, revision=draw.choice((0, 1, 2, -1, 2**40)))


@_of_a_choice
def as_fallback(choice: LockChoice, lock: Lock, ground: Ground, draw: random.Random) -> LockChoice:
    """Turn a kernel into a fallback to PyTorch: another plan with the same results."""
    return replace(choice, use="fallback", template="", template_digest="", source="", params={}, decided_by="human")


@_of_a_choice
def another_kernel(choice: LockChoice, lock: Lock, ground: Ground, draw: random.Random) -> LockChoice:
    """Choose any template at any parameters of its domains, with the source that it really gives."""
    region = ground.regions.get(choice.region)
    serving = [one for one in ground.templates.templates if region is not None and one.region == region.kind]
    if region is None or not serving:
        return choice
    template = draw.choice(serving)
    params = tuple((param.name, draw.choice(param.domain)) for param in template.params)
    source = specialise(template, region, params, lock.target.target())
    fields: dict[str, Any] = {"template": template.id, "template_digest": template.digest, "params": dict(params)}
    return replace(choice, use="kernel", source=source.digest, decided_by="measured", **fields)


@_of_a_choice
def forged_source(choice: LockChoice, lock: Lock, ground: Ground, draw: random.Random) -> LockChoice:
    """Choose a source with another launch, workspace, flag, constant or text, in the bundle under its own digest."""
    source = ground.kept.source(choice.source) if choice.use == "kernel" else None
    if source is None or not source.launches:
        return choice
    first, text = source.launches[0], source.text
    spaces = tuple(
        (name, dtype, draw.choice((0, 1, count // 2)), not zeroed) for name, dtype, count, zeroed in source.workspaces
    )
    changes: tuple[dict[str, Any], ...] = (
        {"workspaces": spaces or (("more", "fp32", 4, True),)},
        {"launches": (*source.launches, first)},
        {"launches": (replace(first, arguments=tuple(reversed(first.arguments))),)},
        {"launches": (replace(first, entry="main"),)},
        {"flags": (*source.flags, "-ffast-math")},
        {"text": text.replace(" = 2;", " = 1;").replace(" = 64;", " = 32;")},
        {"text": text.replace("+", "-")},
        {"text": text + "\n// more\n"},
    )
    return replace(choice, source=ground.keep(replace(source, **draw.choice(changes))))


@_of_a_choice
def forged_template(choice: LockChoice, lock: Lock, ground: Ground, draw: random.Random) -> LockChoice:
    """Choose a template with other declarations, in the bundle under its own digest.

    Half of the time, the choice also gets the source that the template gives.
    """
    region, known = ground.regions.get(choice.region), ground.kept.template(choice.template_digest)
    if choice.use != "kernel" or region is None or known is None:
        return choice
    changes: tuple[dict[str, Any], ...] = (
        {"about": "another"},
        {"layouts": ()},
        {"layouts": (*known.layouts[:-1], ("w", "rows16-k1"))},
        {"requires": ()},
        {"workspaces": ()},
        {"id": "linear/other"},
        {"region": "rmsnorm"},
        {"source": known.source.replace("+", "-")},
        {"launches": known.launches[:-1]},
    )
    forged = replace(known, **draw.choice(changes))
    made = replace(choice, template_digest=ground.keep(forged), template=forged.id)
    if draw.random() >= 0.5:
        with suppress(KeyError, IndexError):
            source = specialise(forged, region, tuple(choice.params.items()), lock.target.target())
            return replace(made, source=ground.keep(source))
    return made


FORGERIES: Mapping[str, Forge] = {
    "layouts": layouts_of,
    "parameters": params_of,
    "fields swapped": swapped,
    "choices": choices_of,
    "plans": plans_of,
    "prompts": prompts_of,
    "target": target_of,
    "model": model_of,
    "words": words_of,
    "as fallback": as_fallback,
    "another kernel": another_kernel,
    "forged source": forged_source,
    "forged template": forged_template,
}
