"""Regions, candidates and trials as a FlashInfer trace set: what its models ask for, and what they have no word for."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import ValidationError

from agentcompile.interchange import flashinfer
from agentcompile.interchange.code import UnfitError, identifiers, program
from agentcompile.interchange.trials import ExportedTrial
from agentcompile.ir.graph import Graph, Node, Use, Value, View
from agentcompile.ir.region import Port, Regime, Region
from agentcompile.ir.trial import Measured
from agentcompile.materialize import specialise
from agentcompile.regions.partition import partition
from tests.unit import fakes, outcomes, published
from tests.unit.graphs import Shape, decoder
from tests.unit.outcomes import REGION, TARGET, TEMPLATE

MEASURED = Measured(report=outcomes.RIGHT, measurement=outcomes.measurement())


def files(tried: Sequence[ExportedTrial], region: Region = REGION) -> dict[str, Any]:
    """A trace set as a reader finds it: a value a JSON file, a list a JSON Lines file."""
    made = {
        one.trial.candidate.id: flashinfer.KernelTexts(
            template=TEMPLATE, source=specialise(TEMPLATE, region, one.trial.candidate.params, TARGET)
        )
        for one in tried
    }
    found = flashinfer.dataset(region, tried, made, TARGET, "tiny")
    return {path: _read(path, data) for path, data in found.items()}


def _read(path: str, data: bytes) -> Any:
    if path.endswith(".safetensors"):
        return data
    return [json.loads(line) for line in data.splitlines()] if path.endswith("l") else json.loads(data)


def below(found: dict[str, Any], folder: str) -> list[Any]:
    return [value for path, value in found.items() if PurePosixPath(path).parts[0] == folder]


def evaluation(tried: ExportedTrial) -> dict[str, Any]:
    (traces,) = below(files([tried]), "traces")
    found: dict[str, Any] = traces[0]["evaluation"]
    return found


def regions_of(phase: str) -> list[Region]:
    """Everything that a small decoder could be cut into."""
    graph = decoder(Shape(), phase)  # type: ignore[arg-type]
    regime = Regime(phase=phase, context=(1, 64))  # type: ignore[arg-type]
    return list(partition(graph, regime).regions)


@settings(max_examples=25)
@given(tried=outcomes.trials)
def test_any_trials_give_a_trace_set_that_the_models_take(tried: list[ExportedTrial]) -> None:
    found = files(tried)
    ((definition,), (workloads,), (traces,)) = (below(found, name) for name in ("definitions", "workloads", "traces"))
    solutions = below(found, "solutions")
    published.definition(definition)
    for solution in solutions:
        published.solution(solution, definition)
    for trace in (*workloads, *traces):
        published.trace(trace, definition)
    names = [solution["name"] for solution in solutions]
    assert len(names) == len(set(names)) == len({one.trial.candidate.id for one in tried})
    assert [trace["solution"] in names for trace in traces] == [True] * len(tried)
    assert {trace["workload"]["uuid"] for trace in (*workloads, *traces)} == {workloads[0]["workload"]["uuid"]}


@settings(max_examples=25)
@given(tried=outcomes.trials)
def test_a_latency_is_that_of_its_measured_trial_and_no_other_trial_has_one(tried: list[ExportedTrial]) -> None:
    (traces,) = below(files(tried), "traces")
    for one, trace in zip(tried, traces, strict=True):
        found = trace["evaluation"]
        if not isinstance(one.trial.verdict, Measured):
            assert (found["performance"], found["status"] == "PASSED") == (None, False)
            continue
        m, performance = one.trial.verdict.measurement, found["performance"]
        assert round(1e6 * performance["latency_ms"]) == m.median_ns
        beside_reference = m.baseline == "pytorch"
        assert round(1e6 * performance["reference_latency_ms"]) == (m.baseline_ns if beside_reference else 0)
        assert performance["speedup_factor"] == (m.baseline_ns / m.median_ns if beside_reference else 0)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("rejected", "COMPILE_ERROR"),
        ("build-failed", "COMPILE_ERROR"),
        ("incorrect", "INCORRECT_NUMERICAL"),
        ("crashed in build", "COMPILE_ERROR"),
        ("crashed in validate", "RUNTIME_ERROR"),
        ("crashed in measure", "RUNTIME_ERROR"),
        ("timed-out", "TIMEOUT"),
        ("disturbed", "RUNTIME_ERROR"),
        ("impossible", "RUNTIME_ERROR"),
    ],
)
def test_every_failure_has_the_word_that_the_format_has_for_it_and_its_reason(name: str, status: str) -> None:
    verdict = outcomes.FAILURES[name]
    found = evaluation(outcomes.tried(verdict))
    assert found["status"] == status
    assert f"verdict: {verdict.kind}" in found["log"]
    assert len(found["log"].splitlines()) >= 3


def test_a_time_below_the_floor_is_explained_and_no_time() -> None:
    found = evaluation(outcomes.tried(outcomes.FAILURES["impossible"]))
    assert "below its roofline" in found["log"]
    assert (found["correctness"], found["performance"]) == (None, None)


def test_errors_that_were_not_kept_are_unknown_and_not_zero() -> None:
    found = evaluation(outcomes.tried(MEASURED))["correctness"]
    assert (found["max_relative_error"], found["max_absolute_error"]) == ("NaN", "NaN")
    assert (found["extra"]["error_ratio"], found["extra"]["cases"]) == (1.1, 6)
    (check,) = evaluation(outcomes.tried(outcomes.FAILURES["incorrect"]))["correctness"]["extra"]["checks"]
    assert check == {
        "name": "element",
        "ok": False,
        "measured": "Infinity",
        "allowed": 1.0,
        "detail": "y[3] is nan, expected 1",
    }


@pytest.mark.parametrize("fidelity", ["search", "confirm"])
def test_searching_and_confirming_trials_are_told_apart(fidelity: str) -> None:
    found = evaluation(outcomes.tried(MEASURED, fidelity=fidelity))
    assert found["correctness"]["extra"]["fidelity"] == fidelity
    assert found["log"].startswith(f"fidelity: {fidelity}\n")


def test_the_environment_is_the_one_that_was_measured_in() -> None:
    found = evaluation(outcomes.tried(MEASURED, reused=True))
    assert found["environment"] == {"hardware": "Test CPU", "libs": {"torch": "2.13.0", "g++": "12.2.0"}}
    assert "the timestamp says when it was found again" in found["log"]


def test_files_lie_where_their_fields_say() -> None:
    """definitions/OP/NAME.json, workloads/OP/NAME.jsonl, solutions/AUTHOR/OP/NAME/SOLUTION.json, traces/AUTHOR/OP/…"""
    found = files([outcomes.tried(MEASURED)])
    (definition,) = below(found, "definitions")
    (solution,) = below(found, "solutions")
    name, op = definition["name"], definition["op_type"]
    assert set(found) == {
        f"definitions/{op}/{name}.json",
        f"workloads/{op}/{name}.jsonl",
        f"solutions/{solution['author']}/{op}/{name}/{solution['name']}.json",
        f"traces/{solution['author']}/{op}/{name}.jsonl",
    }


def test_a_solution_holds_its_text_as_it_was_compiled_and_how_it_is_launched() -> None:
    (solution,) = below(files([outcomes.tried(MEASURED, rows=8)]), "solutions")
    source = specialise(TEMPLATE, REGION, outcomes.candidate(8).params, TARGET)
    content = {file["path"]: file["content"] for file in solution["sources"]}
    assert content["kernel.cpp"] == source.text
    launch = json.loads(content["launch.json"])
    assert launch["flags"] == list(source.flags)
    assert launch["layouts"] == {"w": "rows16-k2"}
    assert launch["workspaces"] == [{"name": "partial", "dtype": "fp32", "elements": 64, "zeroed": False}]
    assert solution["spec"]["entry_point"] == "kernel.cpp::linear_rows"
    assert solution["spec"]["target_hardware"] == ["Test CPU"]


def test_a_library_call_has_no_program_text_to_give() -> None:
    made = flashinfer.KernelTexts(
        template=TEMPLATE, source=replace(specialise(TEMPLATE, REGION, outcomes.candidate().params, TARGET), text="")
    )
    with pytest.raises(UnfitError, match="library call"):
        flashinfer.solution(REGION, outcomes.candidate(), made, TARGET)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_every_region_of_a_decoder_has_a_definition_and_a_workload(phase: str) -> None:
    names = set()
    for region in regions_of(phase):
        definition = flashinfer.definition(region, "tiny")
        published.definition(definition)
        workload = {"definition": definition["name"], "workload": flashinfer.workload(region)}
        published.trace({**workload, "solution": None, "evaluation": None}, definition)
        assert definition["tags"][0] == f"stage:{phase}"  # type: ignore[index]
        names.add(definition["name"])
    assert len(names) == len(regions_of(phase))


def test_equal_extents_share_an_axis_that_claims_no_meaning() -> None:
    definition = flashinfer.definition(fakes.linear_region(hidden=64, rows=64))
    assert definition["axes"] == {
        "n1": {"type": "const", "value": 1, "description": "an extent of 1 (tokens)"},
        "n64": {"type": "const", "value": 64, "description": "an extent of 64 (hidden, rows)"},
    }


def test_numbered_ports_become_names_that_python_takes() -> None:
    definition = flashinfer.definition(fakes.linear_region(hidden=8, rows=4, count=2))
    assert [*definition["inputs"]] == ["x", "w_0", "w_1"]  # type: ignore[call-overload]
    assert [*definition["outputs"]] == ["y_0", "y_1"]  # type: ignore[call-overload]


def test_a_name_never_hides_an_operator_or_a_word_of_python() -> None:
    names = ["linear", "torch", "lambda", "0", "a.b", "a_b"]
    values = tuple(Value(id=name, shape=(2,), dtype="fp32", role="activation") for name in names)
    body = Graph(phase="decode", values=values, nodes=(), inputs=tuple(names), outputs=())
    found = identifiers(replace(REGION, body=body))
    assert list(found.values()) == ["linear_", "torch_", "lambda_", "_0", "a_b", "a_b_"]


def test_integer_inputs_are_stored_because_random_ones_point_nowhere() -> None:
    from safetensors.numpy import load

    def stored(region: Region, name: str) -> Any:
        found = flashinfer.dataset(region, [], {}, TARGET, "")
        input = flashinfer.workload(region)["inputs"][name]  # type: ignore[index, call-overload]
        assert input["type"] == "safetensors"  # type: ignore[index, call-overload]
        return load(found[input["path"]])[input["tensor_key"]]  # type: ignore[index, call-overload]

    decode, prefill = regions_of("decode"), regions_of("prefill")
    attention = next(region for region in decode if region.kind == "qknorm-rope-attention-decode")
    assert stored(attention, "positions").tolist() == [63]
    append = next(region for region in prefill if region.kind == "qknorm-rope-append")
    assert stored(append, "positions").tolist() == list(range(64))
    embedding = next(region for region in prefill if region.kind == "embedding")
    assert set(stored(embedding, "ids").reshape(-1).tolist()) <= set(range(96))


def test_float64_is_refused_because_the_format_lacks_it() -> None:
    port = Port(name="x", role="activation", access="read", shape=(1, 1, 64), dtype="fp64")
    with pytest.raises(UnfitError, match="x is of fp64"):
        flashinfer.definition(replace(REGION, ports=(port, *REGION.ports[1:])))


def test_an_operator_without_a_normalised_form_is_refused_by_name() -> None:
    node = Node(id="n", op="aten.cumsum.default", inputs=(Use(value="x"),), outputs=("y",))
    with pytest.raises(UnfitError, match=r"aten\.cumsum\.default"):
        program(replace(REGION, body=replace(REGION.body, nodes=(node,))))


def test_views_are_spelled_out_and_only_what_is_needed_comes_along() -> None:
    views = (View(op="slice", args=(1, -1, "T")), View(op="permute", args=(1, 0)), View(op="reshape", args=("T",)))
    x = Value(id="x", shape=(4, "T"), dtype="fp32", role="activation")
    y = Value(id="y", shape=("T",), dtype="bf16", role="activation")
    node = Node(id="n", op="cast", inputs=(Use(value="x", views=views),), outputs=("y",), attrs=(("to", "bf16"),))
    ports = (
        Port(name="x", role="activation", access="read", shape=x.shape, dtype="fp32"),
        Port(name="y", role="output", access="write", shape=y.shape, dtype="bf16"),
    )
    body = Graph(phase="prefill", values=(x, y), nodes=(node,), inputs=("x",), outputs=(("y", Use(value="y")),))
    text = program(replace(REGION, body=body, ports=ports))
    assert text.endswith(
        "def run(x):\n"
        "    T = x.shape[1]\n"
        "    y = cast(x[:, -1:T].permute((1, 0,)).reshape((T,)), to='bf16')\n"
        "    return y\n"
    )
    bound = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert bound == {"cast", "run"}
    assert "functools" not in text


@pytest.mark.parametrize(
    ("status", "correctness", "performance"),
    [("PASSED", None, None), ("TIMEOUT", None, {"latency_ms": 1, "reference_latency_ms": 1, "speedup_factor": 1})],
)
def test_the_schema_holds_status_against_what_is_there(status: str, correctness: Any, performance: Any) -> None:
    found = evaluation(outcomes.tried(MEASURED))
    with pytest.raises(ValidationError):
        published.valid(
            {**found, "status": status, "correctness": correctness, "performance": performance}, published.EVALUATION
        )
