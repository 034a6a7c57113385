"""The JSON schema of an answer, for servers that decode by one.

All fields are required and optional values are nullable: servers that decode by a schema have that subset in common.
`answer.py` checks every limit and trusts no schema.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.advice.brief import ITEMS, NAME, SENTENCE
from agentcompile.advice.claims import CLAIMS
from agentcompile.ir.digest import Json


def answer_schema(*, bounded: int = 0) -> dict[str, Json]:
    """Return the schema of one answer.

    `bounded` is the number of regions of one that limits lists and texts, because a small model may repeat an item for
    ever; not every server that decodes by a schema knows these limits. 0 sets none.
    """
    return _Schema({**ITEMS, "regions": bounded} if bounded else {}, (SENTENCE, NAME) if bounded else (0, 0)).answer()


class _Schema:
    def __init__(self, items: Mapping[str, int], characters: tuple[int, int]) -> None:
        self._items = items
        self._text, self._name = (_text(most) for most in characters)

    def answer(self) -> dict[str, Json]:
        text, name = self._text, self._name
        label = _object({"text": text, "rationale": text})
        ranked = _object({"candidate": name, "rationale": text})
        value: Json = {"anyOf": [{"type": "integer"}, name]}
        values = self._list("values", value)
        hint = _object({"template": name, "param": name, "values": values, "rationale": text})
        change: Json = {"type": "string", "enum": ["template", "parameter", "step"]}
        steps = self._list("steps", _object({"change": change, "name": self._nullable(), "value": value}))
        # Servers write the keys in this order: the diagnosis comes first, because the rest follows from it.
        region = _object(
            {
                "region": name,
                "diagnosis": _object({"limit": text, "evidence": text, "attainable_us": {"type": ["number", "null"]}}),
                "label": label,
                "claims": self._list("claims", self._claim(semantic=True)),
                "ranking": self._list("ranking", ranked),
                "sequences": self._list("sequences", _object({"start": name, "steps": steps, "rationale": text})),
                "hints": self._list("hints", hint),
                "risks": self._list("risks", self._claim(semantic=False)),
            }
        )
        return _object({"regions": self._list("regions", region)})

    def _claim(self, *, semantic: bool) -> Json:
        says: Json = {
            "type": "string",
            "enum": [row.says for row in CLAIMS if (row.topic == "semantic") is semantic],
        }
        nullable = self._nullable()
        return _object({"says": says, "template": nullable, "value": nullable, "rationale": self._text})

    def _nullable(self) -> Json:
        return {**self._name, "type": ["string", "null"]}

    def _list(self, name: str, items: Json) -> Json:
        limit: dict[str, Json] = {"maxItems": self._items[name]} if name in self._items else {}
        return {"type": "array", "items": items, **limit}


def _text(most: int) -> dict[str, Json]:
    return {"type": "string", **({"maxLength": most} if most else {})}


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
