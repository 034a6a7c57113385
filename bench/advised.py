"""`agentcompile bench advised`: what a model's answers were in compiles that it advised.

In: run directories. Out: for each, printed and as one JSON file: requests with how they ended, answers that could be
read and that follow the schema, items accepted and refused with the reasons, sequences by how legal they are, claims by
what became of them, and how the compile ended. A run in the heuristic's order beside it is the baseline.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentcompile.advice.answer import AnswerError, answer_of
from agentcompile.advice.configure import FOLDER
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.schema import answer_schema
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import AdviceMissed, AdviceTaken, AdviserCalled, AdviserReplied, Consulted
from agentcompile.ir.advice import SequenceCounts
from agentcompile.ir.digest import Json
from agentcompile.runs.session import RunDirectory

from .harness.course import say
from .harness.records import nameless, revision, write_record

_OPTIONS = ("model", "advisor", "advisor_context", "strategy", "seconds", "seed")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def run(arguments: Sequence[str]) -> int:
    """Count, print and write; return 0.

    Raises:
        AgentCompileError: a folder is no run, or its run did not begin.
    """
    parser = argparse.ArgumentParser(prog="agentcompile bench advised", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's directory")
    parser.add_argument("--note", action="append", default=[], help="what served the model; repeatable")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    asked, begun = parser.parse_args(arguments), revision()
    found = [RunDirectory.open(path) for path in asked.runs]
    states = [one.state() for one in found]
    if any(state.target is None for state in states):
        raise AgentCompileError("bench advised: a run has not begun", hint="name runs that ended")
    target = states[0].target
    assert target is not None
    rows = [counted(one) for one in found]
    for row in rows:
        _show(row)
    words = ["advised", *arguments]
    write_record(asked.out, words, begun, target, {"kind": "agentcompile advised", "notes": asked.note, "runs": rows})
    say(f"written to {asked.out}")
    return ExitCode.OK


def counted(found: RunDirectory) -> dict[str, Any]:
    """Return what is counted of a run."""
    events, state, options = list(found.events()), found.state(), found.options()
    assert isinstance(options, dict)
    # A resumed run takes again what it has recorded.
    each = {(event.region, event.exchange): event for event in events if isinstance(event, AdviceTaken)}
    taken = [*each.values()]
    consulted = [event for event in events if isinstance(event, Consulted)]
    missed = [event for event in events if isinstance(event, AdviceMissed)]
    replies = Counter(event.result for event in events if isinstance(event, AdviserReplied))
    answers = [exchange.answer for exchange in Cassette(found.path / FOLDER).exchanges.values()]
    items = [one for event in taken for one in event.advice.proposals]
    items += [one for event in missed for one in event.refused]
    sequences = sum((event.advice.sequence_counts for event in taken), SequenceCounts())
    claims = Counter(claim.standing for row in state.rows if row.advice for claim in row.advice.claims)
    refused = Counter(f"{one.what}: {one.reason}" for one in items if not one.accepted)
    plan = next((plan for plan in state.final if plan.phase == "decode"), None)
    seconds = round(state.finished.seconds, 1) if state.finished else None
    return {
        "run": found.path.name,
        "options": {key: _bare(options[key]) for key in _OPTIONS if key in options},
        "requests": {
            "sent": sum(isinstance(event, AdviserCalled) for event in events),
            "replies": dict(replies),
            "ways": dict(Counter(event.way for event in events if isinstance(event, AdviserCalled))),
            "used": {**asdict(state.spent), "seconds": round(state.spent.seconds, 1)},
        },
        "answers": {
            "read": len(answers),
            "by_the_schema": sum(follows(answer) for answer in answers),
            "in_mid_search": len(consulted),
            "regions_advised": len({event.region for event in taken}),
            "regions_missed": dict(Counter(event.reason for event in missed for _ in event.regions)),
        },
        "items": {
            "accepted": dict(Counter(one.what for one in items if one.accepted)),
            "refused": dict(Counter(one.what for one in items if not one.accepted)),
            "reasons": dict(refused.most_common(20)),
        },
        "sequences": asdict(sequences),
        "claims": dict(claims),
        "compile": {
            "trials": len(state.trials),
            "seconds": seconds,
            "step_us": round(plan.step_ns / 1e3, 1) if plan else None,
            "baseline_us": round(plan.baseline_ns / 1e3, 1) if plan else None,
        },
    }


def follows(answer: str) -> bool:
    """Return whether an answer is JSON, alone or in a fenced block, that follows the schema."""
    for fenced in (False, True):
        try:
            return _fits(answer_of(answer, fenced=fenced), answer_schema())
        except AnswerError:
            continue
    return False


def _fits(value: Json, schema: Json) -> bool:
    """Return whether a value follows a schema of the few forms that `answer_schema` uses."""
    assert isinstance(schema, dict)
    if isinstance(forms := schema.get("anyOf"), list):
        return any(_fits(value, form) for form in forms)
    if isinstance(allowed := schema.get("enum"), list) and value not in allowed:
        return False
    match schema["type"]:
        case "object":
            parts = schema["properties"]
            assert isinstance(parts, dict)
            if not isinstance(value, dict) or set(value) != set(parts):
                return False
            return all(_fits(item, parts[key]) for key, item in value.items())
        case "array":
            return isinstance(value, list) and all(_fits(item, schema["items"]) for item in value)
        case kinds:
            names = kinds if isinstance(kinds, list) else [kinds]
            return not isinstance(value, bool) and any(isinstance(value, _KINDS[str(name)]) for name in names)


def _bare(value: Json) -> Json:
    """Return a setting without the folders of this machine."""
    return " ".join(nameless([value])) if isinstance(value, str) and "://" not in value else value


def _show(row: Mapping[str, Any]) -> None:
    for line in _lines(row):
        say(line)


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    requests, answers, items, compiled = row["requests"], row["answers"], row["items"], row["compile"]
    yield f"{row['run']}: {row['options'].get('advisor')}"
    yield f"  requests: {requests['sent']}, {requests['used']['calls']} of them counted; {_told(requests['replies'])}"
    yield f"  answers: {answers['read']} read, {answers['by_the_schema']} of them by the schema"
    yield f"  regions: {answers['regions_advised']} advised; without advice: {_told(answers['regions_missed'])}"
    yield f"  items accepted: {_told(items['accepted'])}"
    yield f"  items refused: {_told(items['refused'])}"
    yield f"  sequences: {_told(row['sequences'])}; claims: {_told(row['claims'])}"
    yield f"  compile: {compiled['trials']} trials, {compiled['seconds']} s, step {compiled['step_us']} us"


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items()) or "none"
