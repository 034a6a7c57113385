"""What is read of an agent's answer, and what is refused with a reason."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcompile.agents.answers import (
    LONGEST_KERNEL,
    LONGEST_TEXT,
    UNREADABLE,
    Draft,
    PlanAnswer,
    manifest_text,
    read_draft,
    read_plan,
    schema_of,
)
from agentcompile.catalog import load
from agentcompile.catalog.decode import from_toml
from agentcompile.catalog.manifest import Manifest
from agentcompile.ir.digest import Json
from agentcompile.regions.kinds import facts
from tests.unit.refined import CONTRACT, LAUNCH, draft, plan

WHOLE: dict[str, Any] = {
    "notes": "n",
    "manifest": {
        "layouts": [{"port": "norm", "layout": "row-major"}],
        "params": [{"name": "BLOCK", "domain": [64, 128], "default": 64, "about": "Elements."}],
        "workspaces": [
            {"name": "sums", "dtype": "fp32", "count": "groups * 4", "initial": "zero"},
            {"name": "more", "dtype": "int32", "count": 8, "initial": "undefined"},
        ],
        "requires": [],
        "arch": [],
        "accumulation": "float32",
        "rounds": [],
        "launch": [
            {
                **LAUNCH, "arguments": ["x", "norm", "y", "sums"], "grid": ["groups"], "block": [64],
                "shared_bytes": "hidden * 4", "cooperative": False, "cluster": [], "pdl": True, "early": ["norm"],
                "in_place": [["y", "x"]],
            }
        ],
    },
    "kernel": "void f();\n",
}  # fmt: skip


def read(value: object) -> Draft | str:
    return read_draft(json.dumps(value))


def changed(**manifest: object) -> dict[str, Any]:
    return {**WHOLE, "manifest": {**WHOLE["manifest"], **manifest}}


def test_a_whole_answer_is_read_and_fits_its_schema() -> None:
    found = read(WHOLE)
    assert isinstance(found, Draft), found
    assert found.kernel == "void f();\n"
    assert found.manifest.launch[0].in_place == (("y", "x"),)
    jsonschema.Draft202012Validator(schema_of("code", WHOLE["manifest"])).validate(WHOLE)
    planned = json.loads(plan("k"))
    jsonschema.Draft202012Validator(schema_of("plan", WHOLE["manifest"])).validate(planned)
    assert read_plan(json.dumps(planned)) == PlanAnswer(diagnosis="slow", instruction="unroll", kernel_with_marks="k")


def _objects(schema: Json) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for one in schema for found in _objects(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" else []
    return own + [found for one in schema.values() for found in _objects(one)]


def test_every_object_of_a_schema_is_strict() -> None:
    whole = WHOLE["manifest"]
    for found in [*_objects(schema_of("plan", whole)), *_objects(schema_of("debug", whole))]:
        assert found["additionalProperties"] is False
        assert found["required"] == list(found["properties"])


def test_sums_of_the_library_are_for_its_own_calls() -> None:
    assert read(changed(accumulation="library")) == (
        "manifest.accumulation: library; allowed: float32, float64, bf16x2"
    )


def test_what_is_usual_may_be_left_out() -> None:
    found = read_draft(draft("k"))
    assert isinstance(found, Draft)
    assert (found.manifest.params, found.manifest.layouts) == ((), ())


def test_a_fenced_answer_is_read_whatever_was_asked_for() -> None:
    assert isinstance(read_draft(f"Here it is.\n```json\n{draft('k')}\n```\n"), Draft)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 fenced blocks"),
        ("I would rather not.", "0 fenced blocks"),
        (f"```json\n{draft('a')}\n```\nor\n```json\n{draft('b')}\n```\n", "2 fenced blocks"),
        ("{" + "x" * 10_000_000, "10000001 characters"),
        (draft("k") + draft("k"), "not JSON: Extra data"),
        ('{"kernel": "a", "kernel": "b"}', "a key stands twice"),
        ('{"kernel": NaN}', "NaN is no number"),
        ('{"kernel": -Infinity}', "-Infinity is no number"),
        ('{"kernel": 1e999}', "out of the range of a float"),
        (json.dumps(WHOLE).replace("128", "-1e400"), "out of the range of a float"),
        ('{"kernel": 1' + "0" * 5000 + "}", "not JSON: Exceeds the limit"),
        ("{" + '"a":[' * 5000, "not JSON"),
        ('{"a":' + "[" * 20 + "]" * 20 + "}", "nested deeper"),
        (draft("k", region="linear"), "answer.region: unknown key"),
        (json.dumps(changed(region="linear")), "answer.manifest.region: unknown key"),
        (json.dumps(changed(launch=[{**LAUNCH, "stream": 1}])), r"answer.manifest.launch[0].stream: unknown key"),
        (json.dumps(changed(launch=[])), "manifest.launch: there must be a launch"),
        (json.dumps(changed(accumulation="fp8")), "answer.manifest.accumulation: 'fp8' is not one of"),
        (json.dumps(changed(rounds=[["n", "bf16"]] * 65)), "manifest.rounds: more than 64 items"),
        (json.dumps(changed(launch=[LAUNCH] * 65)), "manifest.launch: more than 64 items"),
        (json.dumps(changed(launch=[{**LAUNCH, "cooperative": 1}])), "expected bool"),
        (json.dumps(changed(params=WHOLE["manifest"]["params"] * 2)), "manifest.params: 'BLOCK' stands twice"),
        (json.dumps(changed(workspaces=[{"name": "s", "dtype": "fp8", "count": 1}])), "'fp8' is not one of"),
        (json.dumps({**WHOLE, "kernel": " \n"}), "kernel: it is empty"),
        (json.dumps({**WHOLE, "kernel": "a\0b"}), "NUL"),
        (json.dumps({**WHOLE, "kernel": "\ud800"}), "surrogate"),
        (json.dumps({**WHOLE, "kernel": "k" * (LONGEST_KERNEL + 1)}), f"kernel: {LONGEST_KERNEL + 1} characters"),
        (json.dumps({**WHOLE, "notes": "n" * (LONGEST_TEXT + 1)}), "notes: 4001 characters"),
        (json.dumps({"kernel": "k"}), "answer.manifest: missing"),
        (f"{UNREADABLE}a response of more than 2097152 bytes", "a response of more than 2097152 bytes"),
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_is_no_template_has_a_reason(text: str, reason: str) -> None:
    found = read_draft(text)
    assert isinstance(found, str)
    assert reason in found
    assert len(found) <= 300


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (plan("k", instruction=" "), "instruction: it is empty"),
        (plan("k", instruction="i" * 5000), "instruction: 5000 characters"),
        (plan("k", diagnosis="d" * 5000), "diagnosis: 5000 characters"),
        (plan("k\0"), "kernel_with_marks: there is a NUL"),
        (plan("k", more=1).replace(": 1", ": 1e999"), "out of the range of a float"),
        (draft("k"), "answer.kernel: unknown key"),
        (plan("k", code="more"), "answer.code: unknown key"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_plan_has_a_reason(text: str, reason: str) -> None:
    found = read_plan(text)
    assert isinstance(found, str)
    assert reason in found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(text=st.text(max_size=300))
@example(text="```\n```")
@example(text='{"a":1' + "0" * 5000 + "}")
@example(text='{"a":1e999}')
def test_no_text_raises(text: str) -> None:
    assert isinstance(read_draft(text), str)
    assert isinstance(read_plan(text), str)


PATHS = [
    ("kernel",), ("notes",), ("manifest",), ("manifest", "launch"), ("manifest", "launch", 0, "grid"),
    ("manifest", "params", 0, "domain"), ("manifest", "workspaces", 0), ("manifest", "layouts", 0, "port"),
]  # fmt: skip


@given(path=st.sampled_from(PATHS), value=JSON)
def test_no_value_anywhere_raises(path: tuple[str | int, ...], value: Json) -> None:
    spoilt = json.loads(json.dumps(WHOLE))
    at = spoilt
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    found = read(spoilt)
    if isinstance(found, Draft):
        tomllib.loads(manifest_text(CONTRACT, found.manifest))


def test_the_machine_writes_what_the_region_settles() -> None:
    found = read(WHOLE)
    assert isinstance(found, Draft)
    manifest = from_toml(Manifest, manifest_text(CONTRACT, found.manifest), file="template.toml")
    assert (manifest.region, manifest.language, manifest.dtypes) == ("rmsnorm", "cpp", ("fp32",))
    assert manifest.about
    assert manifest.layouts == {"norm": "row-major"}
    assert manifest.params["BLOCK"].domain == (64, 128)
    assert manifest.workspaces == found.manifest.workspaces
    assert manifest.launch == found.manifest.launch


def test_the_region_settles_dtypes_phases_and_tokens_and_the_agent_the_rest() -> None:
    settled = 'dtypes = ["bf16"]\nphases = ["prefill"]\ntokens = [2, 8]\n'
    example = f'{settled}requires = ["hidden == 1"]\n[[launch]]\nentry = "g"\n'
    contract = replace(CONTRACT, language="cuda", interface={"manifest": {"example": example}})
    own = {"arch": ["sm_90"], "accumulation": "bf16x2", "rounds": [["n", "bf16"]], "requires": ["hidden % 8 == 0"]}
    found = read(changed(**own))
    assert isinstance(found, Draft), found
    manifest = from_toml(Manifest, manifest_text(contract, found.manifest), file="template.toml")
    assert (manifest.language, manifest.dtypes, manifest.tokens) == ("cuda", ("bf16",), (2, 8))
    assert (manifest.phases, manifest.arch, manifest.accumulation) == (("prefill",), ("sm_90",), "bf16x2")
    assert (manifest.requires, manifest.rounds) == (("hidden % 8 == 0",), (("n", "bf16"),))
    assert [one.entry for one in manifest.launch] == ["f"]


def test_a_draft_becomes_a_folder_that_the_catalog_reads_like_a_person_s(tmp_path: Path) -> None:
    folder = tmp_path / "rmsnorm" / "written"
    folder.mkdir(parents=True)
    params = [{"name": "BLOCK", "domain": [8, 16], "default": 8, "about": "Elements a step."}]
    partial = [{"name": "sums", "dtype": "fp32", "count": "threads * 2", "initial": "undefined"}]
    launch = [{"entry": "f", "arguments": ["x", "sums"]}, {"entry": "g", "arguments": ["norm", "sums", "y"]}]
    found = read(
        {"manifest": {"launch": launch, "params": params, "workspaces": partial}, "kernel": "void f();\nvoid g();\n"}
    )
    assert isinstance(found, Draft), found
    (folder / "template.toml").write_text(manifest_text(CONTRACT, found.manifest))
    (folder / "kernel.cpp").write_text(found.kernel)
    (template,) = load([tmp_path], kinds=facts(), layouts=("row-major",)).templates
    assert (template.id, template.language, template.dtypes) == ("rmsnorm/written", "cpp", ("fp32",))
    assert [one.entry for one in template.launches] == ["f", "g"]
    assert template.params[0].domain == (8, 16)
    assert template.source == "void f();\nvoid g();\n"
