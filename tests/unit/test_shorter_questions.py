"""Shorter questions: what is left out first, what stays, and that names keep their meaning."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from agentcompile.advice.detail import FULL, SHORTER
from agentcompile.advice.prompt import Prompt, prompt_of
from agentcompile.advice.schema import answer_schema, names_in
from agentcompile.space import Space
from tests.unit import fakes
from tests.unit.wide import WIDE


def test_every_shorter_question_is_shorter_and_keeps_what_matters_most() -> None:
    before = prompt_of([WIDE])
    best, worst = (pick(WIDE.history, key=_ratio).candidate for pick in (max, min))
    for detail in SHORTER:
        prompt = prompt_of([WIDE], detail)
        assert len(prompt.system) + len(prompt.user) < len(before.system) + len(before.user)
        assert prompt.asked[0].key == before.asked[0].key
        (region,) = json.loads(prompt.user)["regions"]
        assert [len(one["parameters"]) for one in region["templates"]] == [1, 3]
        assert region["templates"][1]["constraints"] == ["TILES > 0"]
        assert json.loads(prompt.user)["machine"] == json.loads(before.user)["machine"]
        asked = prompt.asked[0].sampled(detail.listed)
        names = [row[0] for row in region["trials"]]
        assert names[0] == asked.name(best)
        assert len(names) <= detail.trials
        if detail.trials < FULL.trials:
            assert names[-1] == asked.name(worst)
        for id, template, *values in region["candidates"]:
            assert prompt.asked[0].named(id) == prompt.asked[0].named(f"{template}({','.join(map(str, values))})")
        before = prompt


def _ratio(trial: Any) -> float:
    return float(trial.verdict.measurement.log_ratio)


def test_a_focus_is_told_in_every_length() -> None:
    focused = replace(WIDE, focus=(WIDE.candidates[7].id,))
    for detail in SHORTER:
        prompt: Prompt = prompt_of([focused], detail)
        assert "focus" in json.loads(prompt.user)["regions"][0]
        assert "focus" in prompt.system


def test_a_schema_has_no_empty_list_of_alternatives() -> None:
    fixed = fakes.rows_template(id="linear/fixed", arch=(), requires=(), params=(), workspaces=(), layouts=())
    space = Space(WIDE.region, (fixed,), fakes.target())
    (asked,) = prompt_of([replace(WIDE, templates=space.templates, candidates=tuple(space), history=())]).asked
    text = json.dumps(answer_schema(names_in([asked], 4)))
    assert "[]" not in text
