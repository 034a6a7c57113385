"""Trials as T4 results: what the published schema asks for, and nothing that a trial did not record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import ValidationError

from agentcompile.interchange import t4
from agentcompile.interchange.trials import ExportedTrial, pretty
from agentcompile.ir.trial import Measured
from tests.unit import outcomes, published


def exported(tried: Sequence[ExportedTrial]) -> Any:
    """The document as a reader finds it."""
    return json.loads(pretty(t4.results("linear@abc123", tried, outcomes.TARGET)))


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """Measurements by name; a name stands once, as readers expect."""
    rows = {row["name"]: row["value"] for row in result["measurements"]}
    assert len(rows) == len(result["measurements"])
    return rows


@given(tried=outcomes.trials)
def test_any_trials_give_a_document_that_the_schema_takes(tried: list[ExportedTrial]) -> None:
    document = exported(tried)
    published.valid(document, published.T4_RESULTS)
    assert len(document["results"]) == len(tried)


@given(tried=outcomes.trials)
def test_a_time_is_that_of_its_measured_trial_and_no_other_trial_has_one(tried: list[ExportedTrial]) -> None:
    for one, result in zip(tried, exported(tried)["results"], strict=True):
        rows = measured(result)
        if isinstance(one.trial.verdict, Measured):
            m = one.trial.verdict.measurement
            told = [round(1e6 * rows[name]) for name in ("time", "time_p95", "time_baseline")]
            assert told == [m.median_ns, m.p95_ns, m.baseline_ns]
            assert (result["invalidity"], result["objectives"]) == ("correct", ["time"])
        else:
            assert result["invalidity"] != "correct"
            assert rows.keys() <= {"fidelity", "reused", "reason", "error_ratio"}
        assert result["times"] == {}


@pytest.mark.parametrize(
    ("name", "word", "correctness"),
    [
        ("rejected", "constraints", 0),
        ("build-failed", "compile", 0),
        ("incorrect", "correctness", 0),
        ("crashed in build", "compile", 0),
        ("crashed in validate", "runtime", 0),
        ("crashed in measure", "runtime", 0),
        ("timed-out", "timeout", 0),
        ("disturbed", "runtime", 0),
        ("impossible", "runtime", 1),
    ],
)
def test_every_failure_has_the_word_that_the_format_has_for_it(name: str, word: str, correctness: int) -> None:
    (result,) = exported([outcomes.tried(outcomes.FAILURES[name])])["results"]
    assert (result["invalidity"], result["correctness"]) == (word, correctness)
    assert measured(result)["reason"]


def test_the_failures_above_are_all_that_there_are() -> None:
    kinds = {verdict.kind for verdict in outcomes.FAILURES.values()}
    assert kinds == {"rejected", "build-failed", "incorrect", "crashed", "timed-out", "disturbed", "impossible"}


def test_a_configuration_is_the_template_with_its_parameters() -> None:
    (result,) = exported([outcomes.tried(outcomes.FAILURES["rejected"], rows=8)])["results"]
    assert result["configuration"] == {"template": "linear/rows", "ROWS": 8, "UNROLL": 1}


@pytest.mark.parametrize("fidelity", ["search", "confirm"])
def test_searching_and_confirming_trials_are_told_apart(fidelity: str) -> None:
    verdict = Measured(report=outcomes.RIGHT, measurement=outcomes.measurement())
    (result,) = exported([outcomes.tried(verdict, fidelity=fidelity)])["results"]
    assert measured(result)["fidelity"] == fidelity


def test_a_trial_from_the_database_has_no_time_of_day() -> None:
    verdict = outcomes.FAILURES["timed-out"]
    fresh, reused = exported([outcomes.tried(verdict), outcomes.tried(verdict, reused=True)])["results"]
    assert fresh["timestamp"] == "2026-09-21T14:13:20.123+00:00"
    assert "timestamp" not in reused


def test_a_number_that_json_lacks_becomes_a_text() -> None:
    (result,) = exported([outcomes.tried(outcomes.FAILURES["incorrect"])])["results"]
    assert measured(result)["error_ratio"] == "Infinity"


def test_the_machine_has_a_document_of_its_own() -> None:
    document = json.loads(pretty(t4.metadata(outcomes.TARGET, "1.2.3")))
    published.valid(document, published.T4_METADATA)
    assert document["metadata"]["environment"]["requirements"] == ["agentcompile==1.2.3", "torch==2.13.0"]
    (hardware,) = document["metadata"]["hardware"]["hardware_description"]
    assert (hardware["device"], hardware["toolchain"]) == ("Test CPU", "g++ 12.2.0")


@given(key=st.sampled_from(["configuration", "times", "invalidity", "correctness"]))
def test_the_schema_misses_what_is_missing(key: str) -> None:
    document = exported([outcomes.tried(outcomes.FAILURES["timed-out"])])
    del document["results"][0][key]
    with pytest.raises(ValidationError, match=key):
        published.valid(document, published.T4_RESULTS)
