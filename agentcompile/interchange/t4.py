"""T4, the auto-tuning community's format of tuning results: one document per region, and one for the machine.

Source: results-schema.json and metadata-schema.json, version 1.0.0, of Kernel Tuner 1.4.0 (kernel_tuner/schema/T4), and
that program's own writer (kernel_tuner/file_utils.py) where the schema is silent: milliseconds, and the objective
`time` as a measurement of that name. Keys of the schema that a trial does not know are absent: times of compiling,
validating and searching, and single samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentcompile.interchange.trials import ExportedTrial, ms, number, report_of
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Crashed, Measured, Measurement, Trial, Verdict, reason

SCHEMA_VERSION = "1.0.0"
OBJECTIVE = "time"
"""The measurement that is minimised: the median time of a launch."""
Invalidity = Literal["timeout", "compile", "runtime", "correctness", "constraints", "correct"]

_INVALIDITY: dict[str, Invalidity] = {
    "measured": "correct", "rejected": "constraints", "build-failed": "compile", "incorrect": "correctness",
    "timed-out": "timeout", "cancelled": "timeout", "crashed": "runtime", "impossible": "runtime",
    "disturbed": "runtime",
}  # fmt: skip


def results(region: str, tried: Sequence[ExportedTrial], target: Target) -> dict[str, Json]:
    """Return the results document of one region: `region` is its name, `tried` its trials in the order of the run.

    The schema does not define `metadata`; Kernel Tuner writes the unit of time there, and so do we.
    """
    about: dict[str, Json] = {"timeunit": "milliseconds", "kernel": region, "device": target.device}
    return {"schema_version": SCHEMA_VERSION, "metadata": about, "results": [result(one) for one in tried]}


def result(tried: ExportedTrial) -> dict[str, Json]:
    """Return one trial; only a measured one has a time.

    Searching and confirming trials differ in the measurement `fidelity`. `correctness` is 1 when the correctness suite
    passed, and 0 when it failed or was not reached.
    """
    trial = tried.trial
    report = report_of(trial.verdict)
    found: dict[str, Json] = {
        "configuration": configuration(trial.candidate),
        "objectives": [OBJECTIVE],
        "times": {},
        "invalidity": invalidity(trial.verdict),
        "correctness": 1 if report is not None and report.ok else 0,
        "measurements": _measurements(trial),
    }
    # When a reused trial was measured is not recorded.
    return found if trial.reused else {"timestamp": tried.at, **found}


def configuration(candidate: Candidate) -> dict[str, Json]:
    """Return the point of the space: the template under a lower-case key, and the parameters under upper-case keys."""
    return {"template": candidate.template, **dict(candidate.params)}


def invalidity(verdict: Verdict) -> Invalidity:
    """Return T4's word for a verdict.

    A time below the machine's floor is a measurement that went wrong, hence `runtime`; so is a run whose worker was
    killed from outside. A candidate that a person cancelled counts as `timeout`.
    """
    in_build = isinstance(verdict, Crashed) and verdict.stage == "build"
    return "compile" if in_build else _INVALIDITY[verdict.kind]


def _measurements(trial: Trial) -> list[Json]:
    rows = [_row("fidelity", trial.fidelity), _row("reused", "yes" if trial.reused else "no")]
    if (report := report_of(trial.verdict)) is not None:
        rows.append(_row("error_ratio", number(report.error_ratio)))
    if isinstance(trial.verdict, Measured):
        rows += _timing(trial.verdict.measurement)
    else:
        rows.append(_row("reason", reason(trial.verdict)))
    return [*rows]


def _timing(m: Measurement) -> list[dict[str, Json]]:
    return [
        _row(OBJECTIVE, ms(m.median_ns), "ms"),
        _row("time_p95", ms(m.p95_ns), "ms"),
        _row("time_baseline", ms(m.baseline_ns), "ms"),
        _row("baseline", m.baseline),
        _row("speedup", number(m.speedup), "x"),
        _row("log_speedup", number(m.log_ratio)),
        _row("log_speedup_half_width", number(m.half_width)),
        _row("comparison", m.comparison),
        _row("rounds", m.rounds),
        _row("rounds_dropped", m.dropped),
        _row("processes", m.processes),
        _row("launches_per_sample", m.batch),
        _row("residency", m.residency),
        _row("bandwidth", number(m.bytes_per_s), "B/s"),
    ]


def _row(name: str, value: Json, unit: str = "") -> dict[str, Json]:
    return {"name": name, "value": value, "unit": unit}


def metadata(target: Target, version: str) -> dict[str, Json]:
    """Return the metadata document: the machine as it was probed, and the versions that shape code or references.

    `version` is agentcompile's. The operating system is not recorded by a run, so it is absent.
    """
    versions = (("agentcompile", version), *sorted(target.libraries))
    hardware: dict[str, Json] = {"hardware_description": [encode(target)]}
    environment: dict[str, Json] = {"requirements": [f"{name}=={number}" for name, number in versions]}
    return {"schema_version": SCHEMA_VERSION, "metadata": {"hardware": hardware, "environment": environment}}
