"""Whole prompts of the three roles, compared with texts on disk, and what must be in them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agentcompile.agents.answers import Draft, PlanAnswer, manifest_text, read_draft, schema_of, starting_of
from agentcompile.agents.principles import Principle, PrincipleEvidence
from agentcompile.agents.prompts import FULL, SHORTER, VERSION, RolePrompt, prompt_of
from agentcompile.agents.rules import rules
from agentcompile.agents.tree import Node
from agentcompile.agents.windows import alone, window
from agentcompile.ir.attempt import Role, Written, WrittenLanguage
from tests.unit.refined import CONTRACT, contract_in, node, starting_in, tree

GOLDENS = Path(__file__).parent / "golden"
RULE = Principle(
    text="Read every byte once.",
    languages=("cpp",),
    dead_end=True,
    revalidate_if="the processor is another",
    evidence=(PrincipleEvidence(kind="rmsnorm", device="Test CPU", ratio=0.42),),
)
PLAN = PlanAnswer(
    diagnosis="slow",
    idea="Keep two sums a row.",
    instruction="unroll",
    kernel_with_marks="<<<IMPROVE BEGINS>>>\nkernel 1\n<<<IMPROVE ENDS>>>",
)
FEEDBACK = json.dumps({"over_floor": 8.0, "log": 'kernel.cpp:1: error: "x"\nmore'})
TREE = (
    node(0, None, 1000.0),
    node(1, 0, 800.0, "start simple", feedback=FEEDBACK),
    node(2, 1, instruction="vectorise", feedback=FEEDBACK),
    node(3, 1, 600.0, "unroll"),
    node(4, 2, feedback=FEEDBACK),
)  # fmt: skip


def asked(role: Role, id: int, **more: object) -> RolePrompt:
    return prompt_of(CONTRACT, TREE, window(role, TREE, id), attempt=5, **more)  # type: ignore[arg-type]


def prompts() -> dict[str, RolePrompt]:
    first = prompt_of(CONTRACT, TREE[:1], alone("plan"), attempt=1, principles=[RULE])
    return {
        "plan-root": first,
        "plan": asked("plan", 1, principles=[RULE], refused=["plan: no span"]),
        "code": asked("code", 1, principles=[RULE], plan=PLAN),
        "debug": asked("debug", 4),
    }


def held(name: str, found: str) -> None:
    """Compare with the golden `name`; the variable GOLDENS=write makes it anew."""
    file = GOLDENS / f"agents-{name}.txt"
    if os.environ.get("GOLDENS") == "write":
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), (
        f"{file}: a prompt that changed needs a new VERSION after {VERSION}; GOLDENS=write accepts it"
    )


@pytest.mark.parametrize("name", prompts())
def test_the_data_is_the_golden_one(name: str) -> None:
    held(name, prompts()[name].user + "\n")


@pytest.mark.parametrize("role", get_args(Role))
def test_the_rules_are_the_golden_ones(role: Role) -> None:
    held(f"rules-{role}", asked(role, 1).system + "\n")


def test_the_first_message_is_the_same_for_all_questions_of_a_session_to_a_role() -> None:
    for role in get_args(Role):
        assert len({asked(role, id, principles=[RULE]).system for id in (1, 3, 4)}) == 1
        assert contract_in(asked(role, 1).system)["incumbent_us"] == 0.9
        assert '"contract"' not in asked(role, 1).user
    assert starting_in(asked("code", 1).system) == starting_in(asked("debug", 4).system) == starting_of(CONTRACT)


def test_every_language_has_its_own_way_to_be_called() -> None:
    texts = {language: rules("code", language, contract="{}", starting="{}") for language in get_args(WrittenLanguage)}
    assert len(set(texts.values())) == 3
    assert "rank" in texts["cpp"]
    assert "__global__" in texts["cuda"]
    assert "@triton.jit" in texts["triton"]
    assert all("{{" not in text and "{called}" not in text for text in texts.values())


def test_the_nodes_are_those_of_the_window() -> None:
    for role, id in (("plan", 1), ("code", 1), ("debug", 4)):
        data = json.loads(asked(role, id).user)  # type: ignore[arg-type]
        assert {one["id"] for one in data["nodes"]} == window(role, TREE, id).shown  # type: ignore[arg-type]
        assert asked(role, id).user.isascii()  # type: ignore[arg-type]


def test_debug_reads_the_logs_of_the_lineage_and_code_the_plan() -> None:
    data = json.loads(asked("debug", 4).user)
    assert [one["id"] for one in data["lineage"]] == [4, 2]
    assert data["lineage"][0]["feedback"]["log"].startswith("kernel.cpp:1")
    assert "plan" not in data
    told = json.loads(asked("code", 1, plan=PLAN).user)["plan"]
    assert told == {
        "diagnosis": "slow",
        "idea": "Keep two sums a row.",
        "instruction": "unroll",
        "kernel_with_marks": PLAN.kernel_with_marks,
    }


def test_equal_questions_are_equal_and_others_differ() -> None:
    assert asked("plan", 1).digest == asked("plan", 1).digest
    others = [asked("plan", 3), asked("code", 1), asked("plan", 1, principles=[RULE]), asked("plan", 1, refused=["x"])]
    assert len({one.digest for one in [asked("plan", 1), *others]}) == 5


def test_the_place_of_a_question_does_not_depend_on_times() -> None:
    slower = tuple(replace(one, ns=one.ns * 1.5) for one in TREE)
    now, then = asked("plan", 1), prompt_of(CONTRACT, slower, window("plan", slower, 1), attempt=5)
    assert now.digest != then.digest
    assert now.place == then.place
    assert now.place != asked("code", 1).place
    assert asked("code", 1).place != asked("code", 1, plan=PLAN).place


def test_the_place_of_a_question_does_not_depend_on_the_plan_s_idea() -> None:
    assert asked("code", 1, plan=PLAN).place == asked("code", 1, plan=replace(PLAN, idea="")).place


def test_nodes_are_compared_by_shares_of_the_reference_in_their_own_rounds() -> None:
    # At a busy moment node 3 took five times as long as it takes else, and PyTorch beside it as well.
    busy = (*TREE[:3], replace(TREE[3], ns=3000.0), TREE[4])
    data = json.loads(prompt_of(CONTRACT, busy, window("plan", busy, 1), attempt=5).user)
    (three,) = (one for one in data["nodes"] if one["id"] == 3)
    assert three["us"] == 3.0
    assert three["over_reference"] == pytest.approx([1 / 0.6, 1.663, 1.67], abs=1e-3)
    assert three["over_parent"][0] == pytest.approx(0.8 / 0.6, abs=1e-3)


def long_tree(characters: int) -> tuple[Node, ...]:
    big = Written(manifest="", kernel="k" * characters)
    return tuple(replace(one, written=big) if one.id else one for one in tree((0, 800), (0, 700), (0, 600)))


def test_kernels_beyond_the_limit_are_left_out_but_never_the_node_s_own() -> None:
    nodes = long_tree(FULL.kernels)
    data = json.loads(prompt_of(CONTRACT, nodes, window("plan", nodes, 1), attempt=4).user)
    shown = {one["id"]: one.get("kernel") for one in data["nodes"]}
    assert shown[1]
    assert shown[3], "the fastest"
    assert shown[2] is None


def test_long_feedback_is_cut() -> None:
    nodes = (*TREE[:4], replace(TREE[4], feedback=json.dumps({"log": "e" * 100_000})))
    data = json.loads(prompt_of(CONTRACT, nodes, window("debug", nodes, 4), attempt=5).user)
    assert len(data["lineage"][0]["feedback"]) == FULL.own


def test_shorter_questions_are_the_same_question_with_less_of_the_tree() -> None:
    nodes = long_tree(FULL.kernels // 3)
    prompt = prompt_of(CONTRACT, nodes, window("plan", nodes, 1), attempt=4)
    sizes = [len(text) for text in (prompt.user, *prompt.shorter)]
    assert len(sizes) == 1 + len(SHORTER)
    assert sizes[0] > sizes[1] >= sizes[2] > FULL.kernels // 3
    for text in prompt.shorter:
        told = json.loads(text)
        assert next(one for one in told["nodes"] if one["id"] == 1)["kernel"] == nodes[1].kernel
        assert [one["id"] for one in told["nodes"]] == [one["id"] for one in json.loads(prompt.user)["nodes"]]


def test_a_manifest_is_shown_in_the_form_of_an_answer() -> None:
    manifest = {
        **starting_of(CONTRACT),
        "layouts": [{"port": "norm", "layout": "row-major"}],
        "params": [{"name": "UNROLL", "domain": [2, 4], "default": 4, "about": "rows"}],
        "workspaces": [{"name": "partial", "dtype": "fp32", "count": "threads * 16", "initial": "zero"}],
    }
    draft = read_draft(json.dumps({"notes": "n", "manifest": manifest, "kernel": "k"}))
    assert isinstance(draft, Draft), draft
    written = Written(manifest=manifest_text(CONTRACT, draft.manifest), kernel=draft.kernel)
    nodes = (TREE[0], replace(TREE[1], written=written))
    shown = json.loads(prompt_of(CONTRACT, nodes, window("plan", nodes, 1), attempt=2).user)["nodes"][1]
    assert shown["manifest"] == manifest


def test_the_schema_has_the_keys_of_the_manifest_to_start_from() -> None:
    starting = starting_of(CONTRACT)
    bare = {key: value for key, value in starting.items() if key not in ("layouts", "rounds")}
    found: Any = schema_of("code", bare)["properties"]
    manifest = found["manifest"]["properties"]
    assert list(manifest) == list(bare)
    assert list(manifest["launch"]["items"]["properties"]) == ["entry", "arguments", "in_place"]
    assert "library" not in manifest["accumulation"]["enum"]
