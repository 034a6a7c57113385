"""FlashInfer Trace, the format of FlashInfer-Bench: definition, workload, solution, trace, and their folders.

Source: the pydantic models in flashinfer_bench/data and docs/flashinfer-trace of flashinfer-ai/flashinfer-bench,
revision 40e6ca78 (98 commits after v0.1.2). A region is a definition with one workload, a candidate a solution, a trial
a trace. Three things have no counterpart there:

- The maximum of relative and of absolute errors, which traces that were compared must have. Our suite compares every
  element with a bound of its own and keeps neither, so both are NaN, and what it did keep is in `extra`.
- A status for a time that cannot be true: such a trial is a RUNTIME_ERROR without a time, and its log says why.
- Host code. A solution holds the program text as it was compiled, and `launch.json` says how it is launched.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.evaluation.chunk import any_chunk
from agentcompile.interchange.code import UnfitError, identifiers, program
from agentcompile.interchange.trials import ExportedTrial, lines, ms, number, pretty, report_of
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.graph import TOKENS, Dim, DType, concrete
from agentcompile.ir.region import ANY, Port, Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Source, Template
from agentcompile.ir.trial import BuildFailed, Crashed, Measured, Measurement, NumericReport, Verdict, reason

AUTHOR = "agentcompile"
PYTORCH = "pytorch"
"""The baseline that is the definition's own reference."""
LAUNCH = "launch.json"
Status = Literal["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"]
DTYPES: dict[DType, str] = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int64": "int64", "int32": "int32", "int8": "int8",
    "uint8": "uint8", "bool": "bool",
}  # fmt: skip
"""Element types by the format's names; it has none for float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTexts:
    """The template and the source of a candidate."""

    template: Template
    source: Source


def dataset(
    region: Region, tried: Sequence[ExportedTrial], made: Mapping[str, KernelTexts], target: Target, model: str
) -> dict[str, bytes]:
    """Return every file of one region by its path in a trace set; `made` has the template and source by candidate id.

    `model` is the model's name, for people.

    Raises:
        UnfitError: the format cannot express the region, or a candidate is a library call.
    """
    kind, name = op_type(region), definition_name(region)
    files = {f"definitions/{kind}/{name}.json": pretty(definition(region, model))}
    candidates = {one.trial.candidate.id: one.trial.candidate for one in tried}
    for id, candidate in candidates.items():
        file = f"solutions/{AUTHOR}/{kind}/{name}/{solution_name(candidate)}.json"
        files[file] = pretty(solution(region, candidate, made[id], target))
    alone: dict[str, Json] = {"definition": name, "workload": workload(region), "solution": None, "evaluation": None}
    files[f"workloads/{kind}/{name}.jsonl"] = lines([alone])
    files[f"traces/{AUTHOR}/{kind}/{name}.jsonl"] = lines(trace(region, one, target) for one in tried)
    if indices := _indices(region):
        files[blob_path(region)] = _safetensors(indices)
    return files


def op_type(region: Region) -> str:
    """Return the category: our region kind in the format's spelling."""
    return _plain(region.kind.replace("-", "_"))


def definition_name(region: Region) -> str:
    """Return kind, regime, extents and the start of the id: unique, and valid as a file name."""
    regime = region.regime
    where = [regime.phase, f"b{regime.batch}", *(f"c{end}" for end in regime.context if regime.context != ANY)]
    dims = [f"{name}{extent}" for name, extent in region.dims]
    return _plain("_".join([op_type(region), *where, *dims]))[:160] + f"_{region.id[:6]}"


def solution_name(candidate: Candidate) -> str:
    """Return the template and the start of the candidate's id; the parameters are in the description."""
    return f"{_plain(candidate.template)[:120]}_{candidate.id[:12]}"


def blob_path(region: Region) -> str:
    """Return the path of the workload's stored inputs."""
    name = definition_name(region)
    return f"blob/workloads/{op_type(region)}/{name}/{name}_{_workload_id(region)}.safetensors"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")


def _workload_id(region: Region) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, region.id))


def definition(region: Region, model: str = "") -> dict[str, Json]:
    """Return the region's interface and meaning; extents are constants, except the tokens of a chunk of any length.

    Raises:
        UnfitError: a value is float64, or an operator has no normalised form.
    """
    names = identifiers(region)
    extents = list(dict.fromkeys(dim for port in region.ports for dim in port.shape))
    ops = list(dict.fromkeys(node.op for node in region.body.nodes))
    tags = [f"stage:{region.regime.phase}", *([f"model:{model}"] if model else []), *(["fused"] if ops[1:] else [])]
    return {
        "name": definition_name(region),
        "op_type": op_type(region),
        "description": f"{region.name}, {region.regime.name}: {', '.join(ops)}.",
        "tags": [*tags],
        "axes": {_axis(dim): _axis_spec(dim, region) for dim in extents},
        "inputs": {names[port.name]: _tensor(port) for port in region.ports if port.role != "output"},
        "outputs": {names[port.name]: _tensor(port) for port in region.ports if port.role == "output"},
        "reference": program(region),
    }


def _axis(dim: Dim) -> str:
    return dim if isinstance(dim, str) else f"n{dim}"


def _axis_spec(dim: Dim, region: Region) -> dict[str, Json]:
    """Return the description of an axis; it is named after its size, since axes of equal size may differ in meaning."""
    if isinstance(dim, str):
        return {"type": "var", "description": "tokens of a chunk"}
    same = ", ".join(name for name, extent in region.dims if extent == dim)
    return {"type": "const", "value": dim, "description": f"an extent of {dim}{f' ({same})' if same else ''}"}


def _tensor(port: Port) -> dict[str, Json]:
    if port.dtype not in DTYPES:
        raise UnfitError(f"{port.name} is of {port.dtype}, which the format lacks")
    about = f"{port.role}, appended to in place" if port.access == "append" else port.role
    return {"shape": [_axis(dim) for dim in port.shape], "dtype": DTYPES[port.dtype], "description": about}


def workload(region: Region) -> dict[str, Json]:
    """Return the one workload of a region: random numbers, and stored indices where random ones would be invalid."""
    names, indices = identifiers(region), _indices(region)
    inputs: dict[str, Json] = {}
    for port in region.ports:
        name = names[port.name]
        if name in indices:
            inputs[name] = {"type": "safetensors", "path": blob_path(region), "tensor_key": name}
        elif port.role != "output":
            inputs[name] = {"type": "random"}
    symbolic = any(TOKENS in port.shape for port in region.ports)
    axes: dict[str, Json] = {TOKENS: _tokens(region)} if symbolic else {}
    return {"axes": axes, "inputs": inputs, "uuid": _workload_id(region)}


def _tokens(region: Region) -> int:
    """Return the number of tokens that the region was measured at."""
    return region.longest_chunk if any_chunk(region) else dict(region.dims).get("tokens", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indices:
    shape: tuple[int, ...]
    values: tuple[int, ...]
    dtype: Literal["int64", "int32"]


def _indices(region: Region) -> dict[str, _Indices]:
    """Return the integer inputs by name.

    Positions are those at which it was timed, the last ones of the regime. Ids are any that lie inside the table,
    because a trial does not record them.
    """
    found, names, last = {}, identifiers(region), region.regime.context[1] - 1
    for port in region.ports:
        if port.role == "output" or port.dtype not in ("int64", "int32"):
            continue
        shape = concrete(port.shape, _tokens(region))
        count = math.prod(shape)
        if port.family != "positions":
            tables = [concrete(one.shape)[0] for one in region.ports if one.role == "weight" and one.shape]
            rows = dict(region.dims).get("vocab") or min(tables, default=1)
            values = [i % rows for i in range(count)]
        elif region.regime.phase == "prefill":  # a slot for every token of the chunk
            values = list(range(max(last + 1 - count, 0), max(last + 1, count)))
        else:
            values = [last] * count
        found[names[port.name]] = _Indices(shape=shape, values=tuple(values), dtype=port.dtype)
    return found


def _safetensors(indices: Mapping[str, _Indices]) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    arrays = {name: np.array(one.values, dtype=one.dtype).reshape(one.shape) for name, one in indices.items()}
    return bytes(save(arrays))


def solution(region: Region, candidate: Candidate, made: KernelTexts, target: Target) -> dict[str, Json]:
    """Return a candidate as it was compiled.

    Raises:
        UnfitError: it is a library call, which has no program text.
    """
    template, source = made.template, made.source
    if not source.text or not source.launches:
        raise UnfitError("a library call has no program text")
    launch: dict[str, Json] = {
        "flags": encode(source.flags),
        "launches": encode(source.launches),
        "layouts": dict(template.layouts),
        "params": dict(candidate.params),
        "workspaces": [
            {"name": name, "dtype": dtype, "elements": count, "zeroed": zeroed}
            for name, dtype, count, zeroed in source.workspaces
        ],
    }
    return {
        "name": solution_name(candidate),
        "definition": definition_name(region),
        "author": AUTHOR,
        "description": f"{candidate.label}: {template.about} Launched by agentcompile as {LAUNCH} says; no host code.",
        "spec": {
            "language": source.language,
            "target_hardware": [hardware(target)],
            "entry_point": f"{template.source_name}::{source.launches[0].entry}",
            "destination_passing_style": True,
        },
        "sources": [
            {"path": template.source_name, "content": source.text},
            {"path": LAUNCH, "content": pretty(launch).decode()},
        ],
    }


def hardware(target: Target) -> str:
    """Return the device's name as the system reports it."""
    return target.device or target.kind


def trace(region: Region, tried: ExportedTrial, target: Target) -> dict[str, Json]:
    """Return one trial on the region's workload."""
    return {
        "definition": definition_name(region),
        "workload": workload(region),
        "solution": solution_name(tried.trial.candidate),
        "evaluation": evaluation(tried, target),
    }


def evaluation(tried: ExportedTrial, target: Target) -> dict[str, Json]:
    """Return status, correctness, performance and environment of a trial, each present where the format wants it.

    Searching and confirming trials differ in the log, and in `extra` where there is one.
    """
    trial = tried.trial
    found = status(trial.verdict)
    report = report_of(trial.verdict) if found in ("PASSED", "INCORRECT_NUMERICAL") else None
    libraries = dict(target.libraries)
    if target.toolchain:
        compiler, _, version = target.toolchain.partition(" ")
        libraries[compiler] = version
    return {
        "status": found,
        "environment": {"hardware": hardware(target), "libs": {**libraries}},
        "timestamp": tried.at,
        "log": _log(tried),
        "correctness": None if report is None else _correctness(report, trial.fidelity),
        "performance": _performance(trial.verdict.measurement) if isinstance(trial.verdict, Measured) else None,
    }


_STATUS: dict[str, Status] = {
    "measured": "PASSED", "incorrect": "INCORRECT_NUMERICAL", "rejected": "COMPILE_ERROR",
    "build-failed": "COMPILE_ERROR", "timed-out": "TIMEOUT", "cancelled": "TIMEOUT", "crashed": "RUNTIME_ERROR",
    "impossible": "RUNTIME_ERROR", "disturbed": "RUNTIME_ERROR",
}  # fmt: skip


def status(verdict: Verdict) -> Status:
    """Return the format's status for a verdict; a candidate that a static check rejected counts as not compiled."""
    in_build = isinstance(verdict, Crashed) and verdict.stage == "build"
    return "COMPILE_ERROR" if in_build else _STATUS[verdict.kind]


def _correctness(report: NumericReport, fidelity: str) -> dict[str, Json]:
    checks: list[Json] = [
        {
            "name": check.name,
            "ok": check.ok,
            "measured": number(check.measured),
            "allowed": number(check.allowed),
            "detail": check.detail,
        }
        for check in report.checks
    ]
    extra: dict[str, Json] = {
        "fidelity": fidelity,
        "error_ratio": number(report.error_ratio),
        "cases": report.cases,
        "repeats": report.repeats,
        "checks": checks,
    }
    unknown = number(math.nan)
    return {"max_relative_error": unknown, "max_absolute_error": unknown, "extra": extra}


def _performance(m: Measurement) -> dict[str, Json]:
    """Return medians per launch.

    With another baseline than the reference, the reference was not timed: its time and the speedup are 0 then, as the
    format's own benchmark writes them.
    """
    reference = m.baseline == PYTORCH
    return {
        "latency_ms": ms(m.median_ns),
        "reference_latency_ms": ms(m.baseline_ns) if reference else 0.0,
        "speedup_factor": m.baseline_ns / m.median_ns if reference else 0.0,
    }


def _log(tried: ExportedTrial) -> str:
    trial = tried.trial
    said = [f"fidelity: {trial.fidelity}", f"verdict: {trial.verdict.kind}"]
    if trial.reused:
        said.append("reused: from the measurement database; the timestamp says when it was found again")
    match trial.verdict:
        case Measured(measurement=m):
            said.append(
                f"paired speedup over {m.baseline}: {m.speedup:.4g}, ln {m.log_ratio:.4g} ± {m.half_width:.2g}, "
                f"{m.comparison}, {m.rounds} rounds in {m.processes} processes, weights in {m.residency}"
            )
        case BuildFailed(log=log):
            said.append(log)
        case _:
            said.append(f"reason: {reason(trial.verdict)}")
    return "\n".join(said)
