"""`export` on a run that a user made: both formats hold its trials, and the definitions' reference code runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from agentcompile.ir.trial import Measured
from agentcompile.ops.reference import DTYPES
from agentcompile.runs.session import RunDirectory
from tests.cpu import flows
from tests.cpu.courses import Course
from tests.unit import published

TORCH = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def test_t4_holds_every_trial_of_a_run(compiled: Course, tmp_path: Path) -> None:
    done = flows.verb(compiled.home, "export", compiled.run, "--format", "t4", "--out", tmp_path / "t4")
    assert done.code == 0, done.err
    documents = [json.loads(path.read_text()) for path in (tmp_path / "t4").glob("*-*.json")]
    for document in documents:
        published.valid(document, published.T4_RESULTS)
    told = [
        round(1e6 * row["value"])
        for document in documents
        for result in document["results"]
        for row in result["measurements"]
        if row["name"] == "time"
    ]
    trials = RunDirectory.open(compiled.run).state().trials
    assert len(trials) == sum(len(document["results"]) for document in documents)
    measured = [trial.verdict.measurement.median_ns for trial in trials if isinstance(trial.verdict, Measured)]
    assert sorted(told) == sorted(measured)


def test_a_trace_set_holds_every_kernel_of_a_run_beside_code_that_runs(compiled: Course, tmp_path: Path) -> None:
    root = tmp_path / "set"
    done = flows.verb(compiled.home, "export", compiled.run, "--format", "flashinfer", "--out", root, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert {row["reason"] for row in told["left_out"]} <= {"a library call has no program text"}
    latencies = []
    for path in (root / "definitions").rglob("*.json"):
        definition = json.loads(path.read_text())
        published.definition(definition)
        run_once(root, definition)
        for trace in traces(root, definition):
            published.trace(trace, definition)
            if trace["evaluation"]["performance"]:
                latencies.append(round(1e6 * trace["evaluation"]["performance"]["latency_ms"]))
        for file in (root / "solutions").rglob(f"{definition['name']}/*.json"):
            published.solution(json.loads(file.read_text()), definition)
    kernels = [
        trial for trial in RunDirectory.open(compiled.run).state().trials if "/library" not in trial.candidate.template
    ]
    assert told["trials"] == len(kernels) > 0
    measured = [trial.verdict.measurement.median_ns for trial in kernels if isinstance(trial.verdict, Measured)]
    assert sorted(latencies) == sorted(measured)


def traces(root: Path, definition: dict[str, Any]) -> list[dict[str, Any]]:
    (file,) = (root / "traces").rglob(f"{definition['name']}.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def run_once(root: Path, definition: dict[str, Any]) -> None:
    """Run the reference on the workload as a benchmark would: outputs are of the declared shapes and types."""
    (file,) = (root / "workloads").rglob(f"{definition['name']}.jsonl")
    workload = json.loads(file.read_text())["workload"]
    inputs = [drawn(root, definition, workload, name) for name in definition["inputs"]]
    space: dict[str, Any] = {}
    exec(definition["reference"], space)
    with torch.no_grad():
        found = space["run"](*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    for tensor, spec in zip(outputs, definition["outputs"].values(), strict=True):
        assert (list(tensor.shape), tensor.dtype) == (shape(definition, workload, spec), TORCH[spec["dtype"]])


def drawn(root: Path, definition: dict[str, Any], workload: dict[str, Any], name: str) -> torch.Tensor:
    input, spec = workload["inputs"][name], definition["inputs"][name]
    if input["type"] == "safetensors":
        stored: torch.Tensor = load_file(root / input["path"])[input["tensor_key"]]
        assert list(stored.shape) == shape(definition, workload, spec)
        return stored
    return torch.randn(shape(definition, workload, spec)).to(TORCH[spec["dtype"]])


def shape(definition: dict[str, Any], workload: dict[str, Any], spec: dict[str, Any]) -> list[int]:
    return [definition["axes"][axis].get("value", workload["axes"].get(axis)) for axis in spec["shape"]]
