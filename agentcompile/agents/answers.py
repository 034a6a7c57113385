"""Answers of agents, read strictly: a plan, or a template; anything else is a reason, never an exception.

In: a text of any origin. Out: `PlanAnswer` or `Draft`, or why the text is neither. Nothing is repaired. The part of a
template's manifest that follows from the region is written here; the model says what its kernel needs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from agentcompile.advice.answer import AnswerError, answer_of
from agentcompile.advice.schema import list_of, object_of
from agentcompile.catalog.manifest import ManifestLaunch, ManifestWorkspace, Rounds
from agentcompile.ir.attempt import Contract, Role
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.template import Accumulation, ParamValue

T = TypeVar("T", "PlanAnswer", "Draft")
LONGEST_TEXT = 4000
"""Most characters of a diagnosis, an instruction or notes."""
LONGEST_IDEA = 300
"""Most characters of an idea."""
LONGEST_KERNEL = 200_000
MOST_ITEMS = 64
"""Most items of a list in a manifest."""
UNREADABLE = "(no text) "
"""Begins what is recorded in place of an answer that is no text, or is too long to be kept; the reason follows."""
ABOUT = "Written by language models."
SETTLED = ("dtypes", "phases", "tokens")
"""Keys of a manifest that the region settles, beside its kind and the language."""
SUMS: tuple[Accumulation, ...] = ("float32", "float64", "bf16x2")
"""How a written kernel may keep its sums; `library` is for calls of PyTorch."""
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What the plan role says: what limits the kernel, what to change, and where."""

    diagnosis: str
    idea: str = ""
    """The instruction in a sentence, for whoever does not see the kernel; answers to ``agents/3`` lack it."""
    instruction: str
    kernel_with_marks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLayout:
    """The resident layout of a port family; a family without one is row-major."""

    port: str
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftParam:
    """A tunable of the kernel: a name that the kernel's text uses as a constant, its values, and the default."""

    name: str
    domain: tuple[ParamValue, ...]
    default: ParamValue
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftManifest:
    """The part of template.toml that an agent decides."""

    launch: tuple[ManifestLaunch, ...]
    layouts: tuple[DraftLayout, ...] = ()
    workspaces: tuple[ManifestWorkspace, ...] = ()
    params: tuple[DraftParam, ...] = ()
    requires: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    accumulation: Accumulation = "float32"
    rounds: Rounds = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What the code and debug roles say: a whole kernel, and how it is launched."""

    manifest: DraftManifest
    kernel: str
    notes: str = ""


def read_plan(text: str) -> PlanAnswer | str:
    """Return the plan in an answer, or why there is none."""
    plan = _read(PlanAnswer, text)
    if isinstance(plan, str):
        return plan
    for name, most in (("diagnosis", LONGEST_TEXT), ("idea", LONGEST_IDEA), ("instruction", LONGEST_TEXT)):
        if len(found := getattr(plan, name)) > most:
            return f"{name}: {len(found)} characters, at most {most}"
    if not plan.instruction.strip():
        return "instruction: it is empty"
    return _wrong_kernel("kernel_with_marks", plan.kernel_with_marks) or plan


def read_draft(text: str) -> Draft | str:
    """Return the template in an answer, or why there is none."""
    draft = _read(Draft, text)
    if isinstance(draft, str):
        return draft
    if len(draft.notes) > LONGEST_TEXT:
        return f"notes: {len(draft.notes)} characters, at most {LONGEST_TEXT}"
    if not draft.kernel.strip():
        return "kernel: it is empty"
    return _wrong_kernel("kernel", draft.kernel) or _wrong_manifest(draft.manifest) or draft


def manifest_text(contract: Contract, told: DraftManifest) -> str:
    """Return the text of ``template.toml``: what the region settles, and what an agent told.

    The interface of a contract has in `manifest.example` a whole ``template.toml`` to start from: its dtypes, phases
    and tokens are the region's.
    """
    import tomli_w

    table: dict[str, Any] = {"region": contract.kind, "language": contract.language, "about": ABOUT}
    table |= {key: value for key, value in _example(contract).items() if key in SETTLED}
    own = _table(told)
    table |= {key: own[key] for key in ("arch", "accumulation", "requires", "rounds") if key in own}
    if told.layouts:
        table["layouts"] = {one.port: one.layout for one in told.layouts}
    if told.params:
        table["params"] = {
            one.name: {"domain": list(one.domain), "default": one.default, "about": one.about} for one in told.params
        }
    if told.workspaces:
        table["workspaces"] = [_table(one) for one in told.workspaces]
    table["launch"] = [_table(one) for one in told.launch]
    return tomli_w.dumps(table, multiline_strings=False)


def _example(contract: Contract) -> dict[str, Any]:
    text = _manifest(contract).get("example")
    assert isinstance(text, str), "the interface of a contract has manifest.example"
    return tomllib.loads(text)


def _manifest(contract: Contract) -> dict[str, Json]:
    interface = contract.interface if isinstance(contract.interface, dict) else {}
    manifest = interface.get("manifest")
    return manifest if isinstance(manifest, dict) else {}


def starting_of(contract: Contract) -> dict[str, Json]:
    """Return the manifest of a contract to start from, in the form of an answer; its keys are those of answers."""
    answer = _manifest(contract).get("answer")
    assert isinstance(answer, dict), "the interface of a contract has manifest.answer"
    return answer


def shown_manifest(text: str, starting: Mapping[str, Json]) -> Json:
    """Return what `manifest_text` made in the form of an answer, with the keys of the manifest to start from."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # of a journal that something else wrote
        return text
    shown = {key: found.get(key, usual) for key, usual in starting.items()}
    if "layouts" in found and "layouts" in shown:
        shown["layouts"] = [{"port": port, "layout": layout} for port, layout in found["layouts"].items()]
    if "params" in found:
        shown["params"] = [{"name": name, **param} for name, param in found["params"].items()]
    launches = starting["launch"]
    assert isinstance(launches, list)
    usual = launches[0]
    assert isinstance(usual, dict)
    empty = {key: _EMPTY.get(type(value), value) for key, value in usual.items()}
    shown["launch"] = [{**empty, **one} for one in found.get("launch", [])]
    return shown


_EMPTY: dict[type, Json] = {list: []}
"""What a launch has where its manifest does not say."""


def schema_of(role: Role, starting: Mapping[str, Json]) -> dict[str, Json]:
    """Return the JSON schema of a role's answer: every key is required, and no number or length is limited.

    A manifest has the keys of the one to start from, which a language needs.
    """
    text: Json = {"type": "string"}
    if role == "plan":
        return object_of({"diagnosis": text, "idea": text, "instruction": text, "kernel_with_marks": text})
    flag: Json = {"type": "boolean"}
    value: Json = {"anyOf": [{"type": "integer"}, text]}
    texts, values, pairs = list_of(text), list_of(value), list_of(list_of(text))
    launches = starting["launch"]
    assert isinstance(launches, list)
    assert isinstance(launches[0], dict)
    launch: dict[str, Json] = {
        "entry": text, "arguments": texts, "grid": values, "block": values, "shared_bytes": value,
        "cooperative": flag, "cluster": values, "pdl": flag, "early": texts, "in_place": pairs,
    }  # fmt: skip
    workspace = object_of(
        {
            "name": text,
            "dtype": {"type": "string", "enum": ["fp32", "int64", "int32", "bf16"]},
            "count": value,
            "initial": {"type": "string", "enum": ["undefined", "zero"]},
        }
    )
    manifest: dict[str, Json] = {
        "layouts": list_of(object_of({"port": text, "layout": text})),
        "params": list_of(object_of({"name": text, "domain": values, "default": value, "about": text})),
        "workspaces": list_of(workspace),
        "requires": texts,
        "arch": texts,
        "accumulation": {"type": "string", "enum": [*SUMS]},
        "rounds": pairs,
        "launch": list_of(object_of({key: launch[key] for key in launches[0]})),
    }
    return object_of({"notes": text, "manifest": object_of({key: manifest[key] for key in starting}), "kernel": text})


def _read(cls: type[T], text: str) -> T | str:
    if text.startswith(UNREADABLE):
        return clean(text.removeprefix(UNREADABLE), _SHOWN)
    # A server that was asked for JSON may fence it nevertheless; one that was asked for a fence may leave it out.
    bare = text[:1000].lstrip().startswith("{")
    try:
        found = answer_of(text, fenced=not bare)
        canonical(found)
        value: T = decode(cls, found, "answer")
    except (AnswerError, CodecError) as error:
        return clean(str(error), _SHOWN)
    except UnicodeEncodeError:
        return "half of a surrogate pair stands in it, which is no character"
    except ValueError:  # `canonical` found a number such as 1e999, which Python reads as infinity
        return "a number in it is out of the range of a float"
    return value


def _table(one: DraftManifest | ManifestWorkspace | ManifestLaunch) -> dict[str, Json]:
    """Return the table of a manifest, a workspace or a launch, without what is as usual."""
    values = {field.name: (getattr(one, field.name), field.default) for field in fields(one)}
    return {name: encode(value) for name, (value, usual) in values.items() if value != usual}


def _wrong_kernel(key: str, kernel: str) -> str:
    if len(kernel) > LONGEST_KERNEL:
        return f"{key}: {len(kernel)} characters, at most {LONGEST_KERNEL}"
    return f"{key}: there is a NUL character in it" if "\0" in kernel else ""


def _wrong_manifest(manifest: DraftManifest) -> str:
    if not manifest.launch:
        return "manifest.launch: there must be a launch"
    if manifest.accumulation not in SUMS:
        return f"manifest.accumulation: {manifest.accumulation}; allowed: {', '.join(SUMS)}"
    named = {
        "layouts": [one.port for one in manifest.layouts],
        "params": [one.name for one in manifest.params],
        "workspaces": [one.name for one in manifest.workspaces],
    }
    for key, names in named.items():
        if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
            return f"manifest.{key}: {clean(twice, 40)!r} stands twice"
    lists: dict[str, Iterable[tuple[object, ...]]] = {
        "launch": [manifest.launch, *(one.arguments for one in manifest.launch)],
        "layouts": [manifest.layouts],
        "params": [manifest.params, *(one.domain for one in manifest.params)],
        "workspaces": [manifest.workspaces],
        "requires": [manifest.requires],
        "arch": [manifest.arch],
        "rounds": [manifest.rounds],
    }
    for key, some in lists.items():
        if any(len(one) > MOST_ITEMS for one in some):
            return f"manifest.{key}: more than {MOST_ITEMS} items"
    return ""
