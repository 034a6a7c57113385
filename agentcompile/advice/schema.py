"""The JSON schema of an answer, for servers that decode by one.

All fields are required and optional values are nullable: servers that decode by a schema have that subset in common.
`answer.py` checks every limit and every name, and trusts no schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcompile.advice.asked import Asked
from agentcompile.advice.brief import ITEMS, SENTENCE
from agentcompile.advice.claims import CLAIMS
from agentcompile.ir.digest import Json
from agentcompile.ir.template import ParamValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a question names: regions, templates, listed candidates, parameters, and the values of these."""

    regions: tuple[str, ...]
    templates: tuple[str, ...]
    candidates: tuple[str, ...]
    params: tuple[str, ...]
    values: tuple[ParamValue, ...]


def names_in(asked: Sequence[Asked], listed: int) -> Names:
    """Return the names in a question that lists at most `listed` candidates of each region."""
    params = [param for one in asked for template in one.templates.values() for param in template.params]
    return Names(
        regions=tuple(one.id for one in asked),
        templates=tuple(dict.fromkeys(id for one in asked for id in one.templates)),
        candidates=tuple(dict.fromkeys(id for one in asked for id in one.sampled(listed).candidates)),
        params=tuple(dict.fromkeys(param.name for param in params)),
        values=tuple(dict.fromkeys(value for param in params for value in param.domain)),
    )


def answer_schema(names: Names | None = None) -> dict[str, Json]:
    """Return the schema of one answer.

    With `names` it allows no others, and limits lists and texts: a small model may invent names, and repeat an item for
    ever. Not every server that decodes by a schema knows these limits.
    """
    return _Schema(names).answer()


class _Schema:
    def __init__(self, names: Names | None) -> None:
        self._names = names
        self._items: Mapping[str, int] = {**ITEMS, "regions": len(names.regions)} if names else {}
        self._text: Json = {"type": "string", **({"maxLength": SENTENCE} if names else {})}

    def answer(self) -> dict[str, Json]:
        text, names = self._text, self._names
        template = self._one_of(names.templates if names else ())
        param = self._one_of(names.params if names else ())
        start = self._one_of((*names.templates, *names.candidates) if names else ())
        value: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        if names:
            value = {"enum": [*names.values]}
        to: Json = {"enum": [*names.values, *names.templates]} if names else value
        label = _object({"text": text, "rationale": text})
        ranked = _object({"candidate": self._one_of(names.candidates if names else ()), "rationale": text})
        values = self._list("values", value)
        hint = _object({"template": template, "param": param, "values": values, "rationale": text})
        change: Json = {"type": "string", "enum": ["template", "parameter", "step"]}
        steps = self._list("steps", _object({"change": change, "name": _nullable(param), "value": to}))
        # Servers write the keys in this order: the diagnosis comes first, because the rest follows from it.
        region = _object(
            {
                "region": self._one_of(names.regions if names else ()),
                "diagnosis": _object({"limit": text, "evidence": text, "attainable_us": {"type": ["number", "null"]}}),
                "label": label,
                "claims": self._list("claims", self._claim(template, semantic=True)),
                "ranking": self._list("ranking", ranked),
                "sequences": self._list("sequences", _object({"start": start, "steps": steps, "rationale": text})),
                "hints": self._list("hints", hint),
                "risks": self._list("risks", self._claim(template, semantic=False)),
            }
        )
        return _object({"regions": self._list("regions", region)})

    def _claim(self, template: dict[str, Json], *, semantic: bool) -> Json:
        rows = [row for row in CLAIMS if (row.topic == "semantic") is semantic]
        says: Json = {"type": "string", "enum": [row.says for row in rows]}
        found = dict.fromkeys(value for row in rows for value in row.values)
        value = _nullable(self._one_of(tuple(found) if self._names else ()))
        return _object({"says": says, "template": _nullable(template), "value": value, "rationale": self._text})

    def _one_of(self, names: Sequence[str]) -> dict[str, Json]:
        """Return the form of a text that is one of `names`, where there are any."""
        return {"type": "string", **({"enum": [*names]} if names else {})}

    def _list(self, name: str, items: Json) -> Json:
        limit: dict[str, Json] = {"maxItems": self._items[name]} if name in self._items else {}
        return {"type": "array", "items": items, **limit}


def _nullable(form: dict[str, Json]) -> dict[str, Json]:
    """Return a form of text that may be null instead."""
    allowed = form.get("enum")
    return {"type": ["string", "null"], **({"enum": [*allowed, None]} if isinstance(allowed, list) else {})}


def _object(properties: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [*properties],
        "additionalProperties": False,
    }
