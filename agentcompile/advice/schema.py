"""The JSON schema of an answer, for servers that decode by one.

All fields are required and optional values are nullable: servers that decode by a schema have that subset in common.
`answer.py` checks every limit and every name, and trusts no schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.brief import ITEMS, SENTENCE
from agentcompile.advice.claims import CLAIMS
from agentcompile.ir.digest import Json
from agentcompile.ir.template import ParamValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a question names: regions, templates, listed candidates, and the domain of each template's parameters."""

    regions: tuple[str, ...]
    templates: tuple[str, ...]
    candidates: tuple[str, ...]
    domains: tuple[tuple[str, str, tuple[ParamValue, ...]], ...]
    """(template, parameter, values); a template's name may mean another one in each region."""


def names_in(asked: Sequence[PromptRegion], listed: int) -> Names:
    """Return the names in a question that lists at most `listed` candidates of each region."""
    templates = [(id, template) for one in asked for id, template in one.templates.items()]
    domains = [(id, param.name, tuple(param.domain)) for id, template in templates for param in template.params]
    return Names(
        regions=tuple(one.id for one in asked),
        templates=tuple(dict.fromkeys(id for id, _ in templates)),
        candidates=tuple(dict.fromkeys(id for one in asked for id in one.sampled(listed).shown)),
        domains=tuple(dict.fromkeys(domains)),
    )


def answer_schema(names: Names | None = None) -> dict[str, Json]:
    """Return the schema of one answer.

    With `names` it allows no others, and limits lists and texts: a small model may invent names, and repeat an item for
    ever. Not every server that decodes by a schema knows these limits.
    """
    return _Schema(names).answer()


_STRING: Mapping[str, Json] = {"type": "string"}
_NULL: Json = {"type": "null"}
_VALUE: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def list_of(items: Json) -> dict[str, Json]:
    """Return the schema of a list whose items have that schema."""
    return {"type": "array", "items": items}


def object_of(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schema of an object that has all these keys and no other."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [*properties],
        "additionalProperties": False,
    }


class _Schema:
    def __init__(self, names: Names | None) -> None:
        self._names = names
        self._items: Mapping[str, int] = {**ITEMS, "regions": len(names.regions)} if names else {}
        self._text: Json = {"type": "string", **({"maxLength": SENTENCE} if names else {})}

    def answer(self) -> dict[str, Json]:
        text, names = self._text, self._names
        start = self._one_of((*names.templates, *names.candidates) if names else ())
        label = object_of({"text": text, "rationale": text})
        ranked = object_of({"candidate": self._one_of(names.candidates if names else ()), "rationale": text})
        steps = self._list("steps", self._step())
        # Servers write the keys in this order: the diagnosis comes first, because the rest follows from it.
        region = object_of(
            {
                "region": self._one_of(names.regions if names else ()),
                "diagnosis": object_of(
                    {"limit": text, "evidence": text, "attainable_us": {"type": ["number", "null"]}}
                ),
                "label": label,
                "claims": self._list("claims", self._claim(semantic=True)),
                "ranking": self._list("ranking", ranked),
                "sequences": self._list("sequences", object_of({"start": start, "steps": steps, "rationale": text})),
                "hints": self._list("hints", self._hint()),
                "risks": self._list("risks", self._claim(semantic=False)),
            }
        )
        least: dict[str, Json] = {"minItems": len(names.regions)} if names else {}
        return object_of({"regions": {**list_of(region), **self._most("regions"), **least}})

    def _hint(self) -> Json:
        """Return the form of a hint, an alternative for each parameter of a template where any are known."""

        def form(template: Json, param: Json, value: Json) -> Json:
            values = self._list("values", value)
            return object_of({"template": template, "param": param, "values": values, "rationale": self._text})

        if self._names is None or not self._names.domains:
            return form({**_STRING}, {**_STRING}, _VALUE)
        return {"anyOf": [form(_only(t), _only(p), {"enum": [*domain]}) for t, p, domain in self._names.domains]}

    def _step(self) -> Json:
        names = self._names
        if names is None:
            change: Json = {"type": "string", "enum": ["template", "parameter", "step"]}
            return object_of({"change": change, "name": _nullable(_STRING), "value": _VALUE})
        domains: dict[str, dict[ParamValue, None]] = {}
        for _, param, values in names.domains:
            domains.setdefault(param, {}).update(dict.fromkeys(values))
        other = object_of({"change": _only("template"), "name": _NULL, "value": self._one_of(names.templates)})
        return {"anyOf": [other, *(_assigned(param, [*values]) for param, values in domains.items())]}

    def _claim(self, *, semantic: bool) -> Json:
        rows = [row for row in CLAIMS if (row.topic == "semantic") is semantic]

        def form(says: Json, template: Json, value: Json) -> Json:
            return object_of({"says": says, "template": template, "value": value, "rationale": self._text})

        if self._names is None:
            return form({"type": "string", "enum": [row.says for row in rows]}, *(_nullable(_STRING),) * 2)
        templates = self._one_of(self._names.templates)
        return {
            "anyOf": [
                form(
                    _only(row.says),
                    templates if row.of_template else _NULL,
                    self._one_of(row.values) if row.values else _NULL,
                )
                for row in rows
            ]
        }

    def _one_of(self, names: Sequence[str]) -> dict[str, Json]:
        """Return the form of a text that is one of `names`, where there are any."""
        return {"type": "string", **({"enum": [*names]} if names else {})}

    def _list(self, name: str, items: Json) -> Json:
        return {**list_of(items), **self._most(name)}

    def _most(self, name: str) -> dict[str, Json]:
        return {"maxItems": self._items[name]} if name in self._items else {}


def _only(name: str) -> dict[str, Json]:
    return {"type": "string", "enum": [name]}


def _assigned(param: str, values: Sequence[Json]) -> Json:
    """Return the form of a step that sets a parameter to one of `values`."""
    return object_of({"change": _only("parameter"), "name": _only(param), "value": {"enum": [*values]}})


def _nullable(form: Mapping[str, Json]) -> dict[str, Json]:
    return {**form, "type": ["string", "null"]}
