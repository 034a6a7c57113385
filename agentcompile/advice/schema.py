"""The JSON schema of an answer as it is sent to the server.

All fields are required, optional values are nullable, and no number or length is limited: servers that decode by a
schema have that subset in common. `answer.py` checks every limit and trusts no schema.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentcompile.advice.claims import CLAIMS
from agentcompile.ir.digest import Json

NAME = "advice"


def answer_schema() -> dict[str, Json]:
    """Return the JSON schema of one answer."""
    text: Json = {"type": "string"}
    label = _object({"text": text, "rationale": text})
    ranked = _object({"candidate": text, "rationale": text})
    value: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    hint = _object({"template": text, "param": text, "values": _list(value), "rationale": text})
    region = _object(
        {
            "region": text,
            "label": label,
            "claims": _list(_claim(row.says for row in CLAIMS if row.topic == "semantic")),
            "ranking": _list(ranked),
            "hints": _list(hint),
            "risks": _list(_claim(row.says for row in CLAIMS if row.topic != "semantic")),
        }
    )
    return _object({"regions": _list(region)})


def _claim(says: Iterable[str]) -> Json:
    nullable: Json = {"type": ["string", "null"]}
    text: Json = {"type": "string"}
    return _object(
        {"says": {"type": "string", "enum": [*says]}, "template": nullable, "value": nullable, "rationale": text}
    )


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
