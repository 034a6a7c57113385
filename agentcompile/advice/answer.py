"""Turns an adviser's text into advice, strictly: unknown, repeated, too long or out-of-space items are refused.

In: a text of any origin and the prompt that it answers. Out: advice for each region, and a record of every item with
whether it was accepted, and the reason where it was not. Nothing is repaired; valid items are kept beside refused ones;
`read_answer` never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, cast

from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.claims import ROWS, structural
from agentcompile.advice.prompt import CLAIMED, HINTED, RANKED, RATIONALE, SEQUENCES, Prompt
from agentcompile.advice.sequences import followed
from agentcompile.events import clean
from agentcompile.ir.advice import Advice, AdvisedSequence, AnswerItem, Claim, Diagnosis, Hint, SequenceCounts
from agentcompile.ir.codec import CodecError, decode
from agentcompile.ir.digest import Json
from agentcompile.ir.template import ParamValue, Template

T = TypeVar("T")
MOST_CHARACTERS = 400_000
"""Most characters of an answer; a longer text is refused as a whole."""
DEEPEST = 12
"""Most levels of nested lists and objects; a valid answer has seven."""
_SHOWN = 120
_OPENS, _CLOSES = re.compile(r" {0,3}```[a-zA-Z]* *"), re.compile(r" {0,3}``` *")
"""A line that opens a fenced block, and one that closes it; the second may open one too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    text: str
    rationale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    says: str
    template: str | None
    value: str | None
    rationale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    candidate: str
    rationale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hint:
    template: str
    param: str
    values: tuple[int | str, ...]
    rationale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    """A sequence of an answer without its steps, which are read one by one."""

    start: str
    rationale: str


SCHEMA_PARTS = ("diagnosis", "label", "claims", "ranking", "sequences", "hints", "risks")
"""Keys of a region's item beside `region`. Answers to prompts before ``advise/2`` lack `diagnosis` and `sequences`."""


_LONGEST_US = 1e9
"""The longest time of a launch that is taken at its word, in microseconds."""


class AnswerError(ValueError):
    """A text that cannot be read as an answer; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The accepted part of an answer."""

    advice: dict[str, Advice]
    """Advice by the graph's region id, for every region of the prompt that is mentioned; `order` holds its ranking."""
    refused: tuple[AnswerItem, ...] = ()
    """Refused items that belong to no region."""


def answer_of(text: str, *, fenced: bool) -> Json:
    """Parse the JSON object of an answer: the whole text, or the one fenced block of it when `fenced`.

    Raises:
        AnswerError: the text is too long, has no single fenced block, is no JSON object, repeats a key, or nests too
            deep.
    """
    if len(text) > MOST_CHARACTERS:
        raise AnswerError(f"{len(text)} characters, at most {MOST_CHARACTERS} are read")
    if fenced:
        blocks = fenced_blocks(text)
        if len(blocks) != 1:
            raise AnswerError(f"{len(blocks)} fenced blocks where there must be one")
        text = blocks[0]
    try:
        found: Json = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"not JSON: {clean(str(error), _SHOWN)}") from error
    if not isinstance(found, dict):
        raise AnswerError("not a JSON object")
    if _deep(found):
        raise AnswerError(f"nested deeper than {DEEPEST}")
    return found


def fenced_blocks(text: str) -> list[str]:
    """Return what stands in the fenced blocks of a text, each with its line breaks; a block that is not closed is none.

    The time is linear in the text's length, whatever the text is.
    """
    blocks = list[str]()
    opened: list[str] | None = None
    for line in text.split("\n"):
        if opened is None:
            opened = [] if _OPENS.fullmatch(line) else None
        elif _CLOSES.fullmatch(line):
            blocks.append("".join(opened))
            opened = None
        else:
            opened.append(f"{line}\n")
    return blocks


def _deep(value: Json) -> bool:
    level: list[Json] = [value]
    for _ in range(DEEPEST):
        inner = [item for item in level if isinstance(item, (dict, list))]
        level = [one for item in inner for one in (item.values() if isinstance(item, dict) else item)]
    return bool(level)


def read_answer(found: Json, prompt: Prompt, who: str) -> Reading:
    """Return what an answer says about the regions, templates and candidates of `prompt`; `who` names the answerer."""
    refused: list[AnswerItem] = []
    advice: dict[str, Advice] = {}
    items = found.get("regions") if isinstance(found, dict) else None
    if isinstance(found, dict):
        refused += [_no("answer", _shown(key), "unknown key") for key in list(found)[:RANKED] if key != "regions"]
    if not isinstance(items, list):
        refused.append(_no("answer", "regions", "missing, or not a list"))
        return Reading(advice=advice, refused=tuple(refused))
    regions = {asked.id: asked for asked in prompt.asked}
    for item in items[: len(regions) + RANKED]:
        name = item.get("region") if isinstance(item, dict) else None
        asked = regions.get(name) if isinstance(name, str) else None
        if not isinstance(item, dict) or asked is None:
            refused.append(_no("answer", _shown(name), "no region of the question"))
        elif asked.question.region.id in advice:
            refused.append(_no("answer", _shown(name), "answered twice"))
        else:
            advice[asked.question.region.id] = _Reader(asked).read(item, who)
    if len(items) > len(regions) + RANKED:
        refused.append(_no("answer", "regions", f"{len(items)} items about {len(regions)} regions"))
    for asked in prompt.asked:
        if asked.question.region.id not in advice:
            refused.append(_no("answer", asked.id, "nothing was said about it"))
    return Reading(advice=advice, refused=tuple(refused))


@dataclass(slots=True)
class _Reader:
    asked: PromptRegion
    said: list[AnswerItem] = field(default_factory=list)
    counts: SequenceCounts = field(default_factory=SequenceCounts)

    def read(self, item: dict[str, Json], who: str) -> Advice:
        for key in [key for key in item if key not in (*SCHEMA_PARTS, "region")][:RANKED]:
            self.said.append(_no("answer", _shown(key), "unknown key"))
        diagnosis = self._diagnosis(item)
        label = self._label(item)
        claims = tuple(self._claims(item, "claims", semantic=True))
        ranked = tuple(self._ranked(item))
        sequences = tuple(self._sequences(item))
        hints = tuple(self._hints(item))
        risks = tuple(self._claims(item, "risks", semantic=False))
        return Advice(
            label=who,
            order=tuple(id for id, _ in ranked),
            hints=hints,
            rationales=ranked,
            meaning=label,
            claims=(*claims, *risks),
            diagnosis=diagnosis,
            sequences=sequences,
            sequence_counts=self.counts,
            proposals=tuple(self.said),
        )

    def _diagnosis(self, item: dict[str, Json]) -> Diagnosis | None:
        if "diagnosis" not in item:
            return None
        found = self._decoded(Diagnosis, item["diagnosis"], "diagnosis", "diagnosis", "")
        if found is None:
            return None
        if reason := _too_long(found.limit) or _too_long(found.evidence) or _no_time(found.attainable_us):
            self.said.append(_no("diagnosis", _shown(found.limit), reason))
            return None
        self.said.append(AnswerItem(what="diagnosis", text=_shown(found.limit), accepted=True))
        return replace(found, limit=clean(found.limit, RATIONALE), evidence=clean(found.evidence, RATIONALE))

    def _label(self, item: dict[str, Json]) -> str:
        label = self._decoded(_Label, item.get("label"), "label", "label", "")
        if label is None:
            return ""
        if reason := _too_long(label.text) or _too_long(label.rationale):
            self.said.append(_no("label", _shown(label.text), reason))
            return ""
        self.said.append(AnswerItem(what="label", text=_shown(label.text), accepted=True))
        return clean(label.text, RATIONALE)

    def _ranked(self, item: dict[str, Json]) -> Iterator[tuple[str, str]]:
        seen: set[str] = set()
        for data in self._items(item, "ranking", RANKED):
            ranked = self._decoded(_Ranked, data, "ranking", "rank", _shown(data))
            if ranked is None:
                continue
            candidate = self.asked.named(ranked.candidate)
            if candidate is None:
                self.said.append(_no("rank", _shown(ranked.candidate), "no candidate of the region"))
            elif candidate.id in seen:
                self.said.append(_no("rank", ranked.candidate, "ranked twice"))
            elif reason := _too_long(ranked.rationale):
                self.said.append(_no("rank", ranked.candidate, reason))
            else:
                seen.add(candidate.id)
                self.said.append(AnswerItem(what="rank", text=candidate.label, accepted=True))
                yield candidate.id, clean(ranked.rationale, RATIONALE)

    def _sequences(self, item: dict[str, Json]) -> Iterator[AdvisedSequence]:
        """Yield the legal beginnings of the sequences, and count how legal they are."""
        for data in self._items(item, "sequences", SEQUENCES) if "sequences" in item else ():
            found = self._sequence(data)
            if found is None:
                self.counts += SequenceCounts(dropped=1)
                continue
            self.counts += SequenceCounts(partial=1) if found.stopped else SequenceCounts(full=1)
            text = _shown(f"from {found.start[:12]}: {', '.join(f'{s.name}={s.value}' for s in found.steps)}")
            self.said.append(AnswerItem(what="sequence", text=text, accepted=True))
            if found.stopped:
                self.said.append(_no("sequence", f"step {len(found.steps) + 1} of it", found.stopped))
            yield found

    def _sequence(self, data: Json) -> AdvisedSequence | None:
        """Return the legal beginning of one sequence; one without a legal step is refused."""
        steps = data.get("steps") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(steps, list):
            self.said.append(_no("sequence", _shown(data), "no table with a list of steps"))
            return None
        rest = {key: value for key, value in data.items() if key != "steps"}
        sequence = self._decoded(_Sequence, rest, "sequences", "sequence", _shown(data))
        if sequence is None:
            return None
        found: AdvisedSequence | str = _too_long(sequence.rationale)
        if not found:
            found = followed(self.asked, sequence.start, steps, clean(sequence.rationale, RATIONALE))
        if isinstance(found, str):
            self.said.append(_no("sequence", _shown(data), found))
            return None
        return found

    def _hints(self, item: dict[str, Json]) -> Iterator[Hint]:
        seen: set[tuple[str, str]] = set()
        for data in self._items(item, "hints", HINTED):
            hint = self._decoded(_Hint, data, "hints", "hint", _shown(data))
            if hint is None:
                continue
            shown = f"{_shown(hint.template)} {_shown(hint.param)}"
            template = self.asked.templates.get(hint.template)
            params = {param.name: param.domain for param in template.params} if template is not None else {}
            domain = params.get(hint.param)
            if template is None or domain is None:
                self.said.append(_no("hint", shown, "no template of the region, or no parameter of it"))
            elif (template.id, hint.param) in seen:
                self.said.append(_no("hint", shown, "hinted twice"))
            elif reason := _too_long(hint.rationale):
                self.said.append(_no("hint", shown, reason))
            else:
                seen.add((template.id, hint.param))
                if values := self._values(template, hint, domain):
                    text = f"{template.id} {hint.param}: {', '.join(str(value) for value in values)}"
                    self.said.append(AnswerItem(what="hint", text=text, accepted=True))
                    yield Hint(
                        template=template.id,
                        param=hint.param,
                        values=values,
                        rationale=clean(hint.rationale, RATIONALE),
                    )

    def _values(self, template: Template, hint: _Hint, domain: Sequence[ParamValue]) -> tuple[ParamValue, ...]:
        kept: list[ParamValue] = []
        for value in hint.values[: len(domain) + HINTED]:
            shown = f"{template.id} {hint.param}={_shown(value)}"
            if not any(type(value) is type(allowed) and value == allowed for allowed in domain):
                self.said.append(_no("hint", shown, f"not one of {_shown(list(domain))}"))
            elif value in kept:
                self.said.append(_no("hint", shown, "named twice"))
            else:
                kept.append(value)
        if not kept:
            self.said.append(_no("hint", f"{template.id} {hint.param}", "no value is left"))
        return tuple(kept)

    def _claims(self, item: dict[str, Json], key: str, *, semantic: bool) -> Iterator[Claim]:
        kind: Literal["claim", "risk"] = "claim" if semantic else "risk"
        seen: set[tuple[str, str | None, str | None]] = set()
        for data in self._items(item, key, CLAIMED):
            made = self._decoded(_Claim, data, key, kind, _shown(data))
            if made is None:
                continue
            same = (made.says, made.template, made.value)
            reason = "said twice" if same in seen else self._refusal(made, semantic)
            shown = " ".join(_shown(part) for part in same if part)
            self.said.append(AnswerItem(what=kind, text=shown, accepted=not reason, reason=reason))
            if not reason:
                seen.add(same)
                template = self.asked.templates[made.template].id if made.template is not None else ""
                claim = Claim(
                    says=made.says,
                    topic=ROWS[made.says].topic,
                    template=template,
                    value=made.value or "",
                    rationale=clean(made.rationale, RATIONALE),
                )
                yield structural(claim, self.asked.question)

    def _refusal(self, made: _Claim, semantic: bool) -> str:
        row = ROWS.get(made.says)
        if row is None or (row.topic == "semantic") is not semantic:
            return "no such statement here"
        if row.of_template and (made.template is None or made.template not in self.asked.templates):
            return "it is about a template, and names none of the region's"
        if not row.of_template and made.template is not None:
            return "it is about the region, and names a template"
        if (made.value not in row.values) if row.values else (made.value is not None):
            return f"its value must be {' or '.join(row.values) or 'null'}"
        return _too_long(made.rationale)

    def _decoded(self, cls: type[T], data: Json, key: str, what: str, shown: str) -> T | None:
        """Return an item of the answer; one that is malformed is refused."""
        try:
            return cast(T, decode(cls, data, key))
        except CodecError as error:
            self.said.append(_no(what, shown, clean(str(error), _SHOWN)))
            return None

    def _items(self, item: dict[str, Json], key: str, most: int) -> list[Json]:
        found = item.get(key)
        if not isinstance(found, list):
            self.said.append(_no("answer", key, "missing, or not a list"))
            return []
        if len(found) > most:
            self.said.append(_no("answer", key, f"{len(found)} items, the first {most} are read"))
        return found[:most]


def _no_time(us: float | None) -> str:
    return "" if us is None or 0 < us <= _LONGEST_US else f"{us:g} us is no time of a launch"


def _too_long(text: str) -> str:
    return f"{len(text)} characters, at most {RATIONALE} are allowed" if len(text) > RATIONALE else ""


def _no(what: str, text: str, reason: str) -> AnswerItem:
    return AnswerItem(what=what, text=text, accepted=False, reason=reason)  # type: ignore[arg-type] # a literal at each call


def _shown(value: object) -> str:
    """Return any value as short text without control characters."""
    text = value if isinstance(value, str) else repr(value)[: 4 * _SHOWN]
    return clean(text, _SHOWN)


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(text: str) -> Json:
    raise ValueError(f"{text} is no number of JSON")
