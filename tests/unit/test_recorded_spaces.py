"""What is read from recorded spaces, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.interchange import t4 as our_t4
from agentcompile.interchange.trials import ExportedTrial
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Measured, Measurement, NumericReport, Trial
from bench.ablation.documents import Failure
from bench.ablation.spaces import Domain, RecordedSpace, read_space
from tests.unit.fakes import target
from tests.unit.recorded import cache, result, t4, write


def read(tmp_path: Path, document: object) -> RecordedSpace:
    return read_space(write(tmp_path / "small.json", document))


def labels(space: RecordedSpace) -> dict[str, float | str]:
    """Times in ns, or kinds of failures, by label, in the order of the space."""
    found = {candidate.label: space.outcomes[candidate.id] for candidate in space.candidates}
    return {label: one.kind if isinstance(one, Failure) else one for label, one in found.items()}


def test_a_cache_of_kernel_tuner_gives_times_in_ns_and_failures_in_the_order_of_the_file(tmp_path: Path) -> None:
    space = read(tmp_path, cache([2.0, "RuntimeFailedConfig", 1.0, 1.05, "CompilationFailedConfig", "InvalidConfig"]))
    assert (space.name, space.device) == ("small", "a device")
    assert labels(space) == {
        "copy(A=0)": 2e6, "copy(A=1)": "runtime", "copy(A=2)": 1e6, "copy(A=3)": 1.05e6, "copy(A=4)": "compile",
        "copy(A=5)": "constraints",
    }  # fmt: skip
    assert space.best_ns == 1e6
    assert space.best is space.candidates[2]
    assert space.near == {space.candidates[2].id, space.candidates[3].id}
    assert space.nearer == {space.candidates[2].id}


def test_a_parameter_with_one_value_is_left_out_and_domains_keep_their_declared_order(tmp_path: Path) -> None:
    document = cache([1.0, 2.0, 3.0])
    document["tune_params"]["A"] = [2, 9, 0, 1]
    assert read(tmp_path, document).domains == (Domain(template="copy", name="A", values=(2, 0, 1)),)


def test_a_gzip_file_is_the_same_space(tmp_path: Path) -> None:
    document = cache([1.0, 2.0])
    packed = tmp_path / "small.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(document).encode()))
    assert read_space(packed) == read(tmp_path, document)


def test_truth_values_and_whole_floats_become_integers_and_other_floats_texts(tmp_path: Path) -> None:
    document = cache([1.0, 2.0, 3.0, 4.0])
    document["tune_params"]["A"] = [False, 2.0, 0.5, "x"]
    for entry, value in zip(document["cache"].values(), document["tune_params"]["A"], strict=True):
        entry["A"] = value
    values = [candidate.params[0][1] for candidate in read(tmp_path, document).candidates]
    assert values == [0, 2, "0.5", "x"]
    assert [type(value) for value in values] == [int, int, str, str]


def test_a_space_of_one_point_and_one_in_which_all_fail_are_read(tmp_path: Path) -> None:
    assert labels(read(tmp_path, cache([3.0]))) == {"copy": 3e6}
    failed = read(tmp_path, cache(["RuntimeFailedConfig"] * 2))
    assert (failed.best, failed.best_ns, failed.near) == (None, None, frozenset())


def test_t4_takes_the_measurement_called_time_or_the_mean_of_the_runtimes(tmp_path: Path) -> None:
    space = read(
        tmp_path,
        t4(
            result({"A": 1}, 2.0, times={"runtimes": [9.0]}),
            result({"A": 2}, times={"runtimes": [1.0, 2.0]}),
            result({"A": 3}, invalidity="correctness"),
            metadata={"kernel": "add", "device": "a card"},
        ),
    )
    assert space.device == "a card"
    assert labels(space) == {"add(A=1)": 2e6, "add(A=2)": 1.5e6, "add(A=3)": "correctness"}


def trial(template: str, a: int, ns: int | None, fidelity: Any = "search") -> ExportedTrial:
    candidate = Candidate(
        region="r",
        regime=Regime(phase="decode"),
        template=template,
        template_digest="d",
        params=(("A", a),),
        target="t",
    )
    report = NumericReport(checks=(), error_ratio=0.0, cases=0, repeats=0)
    verdict = BuildFailed(log="error: no") if ns is None else Measured(report=report, measurement=measurement(ns))
    return ExportedTrial(trial=Trial(candidate=candidate, source="", verdict=verdict, fidelity=fidelity), at_ms=0)


def measurement(ns: int) -> Measurement:
    return Measurement(
        median_ns=ns, p95_ns=ns, baseline_ns=9, baseline="pytorch", log_ratio=0.0, half_width=0.0, comparison="SAME",
        rounds=1, dropped=0, processes=1, batch=1, residency="dram", bytes_per_s=0.0,
    )  # fmt: skip


def test_what_agentcompile_exports_is_read_and_the_last_trial_of_a_candidate_counts(tmp_path: Path) -> None:
    tried = [trial("x/a", 1, 500), trial("x/a", 2, None), trial("x/b", 1, 700), trial("x/a", 1, 400, "confirm")]
    space = read(tmp_path, our_t4.results("linear@abc", tried, target()))
    assert labels(space) == {"x/a(A=1)": 400, "x/a(A=2)": "compile", "x/b": 700}
    assert space.device == target().device


def changed(*path: Any, to: object) -> dict[str, Any]:
    document: Any = cache([1.0, 2.0])
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    assert isinstance(document, dict)
    return document


def lacking(*path: str) -> dict[str, Any]:
    document: Any = cache([1.0, 2.0])
    place = document
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    assert isinstance(document, dict)
    return document


def timed(name: str, value: float) -> list[dict[str, Any]]:
    return [{"name": "time", "value": 1.0, "unit": "ms"}, {"name": name, "value": value}]


WHOLE = json.dumps(cache([1.0, 2.0]))
WRONG: list[tuple[object, str]] = [
    ("", "empty"),
    (WHOLE[:-2], "cut short"),
    (WHOLE[: WHOLE.index("device") + 3], "cut short"),
    ("{no", "no JSON: Expecting property name"),
    ("[1]", "a list instead of a table"),
    ("[" * 100_000, "too many levels"),
    ('{"cache": ' + "9" * 5000 + "}", "no JSON that can be read"),
    ({"points": []}, "neither a cache of Kernel Tuner nor"),
    ('{"results": [], "schema_version": "1.0.0", "results": []}', "'results' comes twice"),
    (WHOLE.replace('"1,7"', '"0,7"'), "'0,7' comes twice"),
    (changed("cache", "1,7", "A", to=0), r"the same configuration as cache\['0,7'\]"),
    (changed("tune_params", "A", to=[0, 0, 1]), "has a value twice"),
    (changed("tune_params_keys", to=["A", "A"]), "different names"),
    (changed("tune_params_keys", to=["A", "C"]), "tune_params.C: missing"),
    (changed("tune_params", to=[]), "a list instead of a table"),
    (changed("cache", to={}), "no point"),
    (changed("cache", "1,7", to=3), "a number instead of a table"),
    (changed("cache", "1,7", "A", to=5), "5 is not in its domain"),
    (changed("cache", "1,7", "A", to=None), "a null is no value"),
    (changed("cache", "1,7", "A", to=math.nan), "nan is no value"),
    (changed("cache", "1,7", "A", to=[1]), "a list is no value"),
    (changed("cache", "1,7", "time", to=math.nan), "nan ms is no time"),
    (changed("cache", "1,7", "time", to=math.inf), "inf ms is no time"),
    (changed("cache", "1,7", "time", to=10**400), "is no time"),
    (changed("cache", "1,7", "time", to=-1.0), "-1 ms is no time"),
    (changed("cache", "1,7", "time", to=0), "0 ms is no time"),
    (changed("cache", "1,7", "time", to=None), "a null is no time"),
    (changed("cache", "1,7", "time", to=True), "a truth value is no time"),
    (changed("cache", "1,7", "time", to="NaN"), "a number in quotes"),
    (lacking("cache", "1,7", "time"), "time is missing"),
    (lacking("cache", "1,7", "A"), "A is missing"),
    (lacking("tune_params"), "tune_params: missing"),
    (changed("schema_version", to="2.0.0"), "'2.0.0' is not 1.x"),
    ({"results": []}, "schema_version: missing"),
    (t4(schema_version="1.1.0"), "'1.1.0' is not 1.0.0"),
    (t4(), "no point"),
    (t4(metadata={"timeunit": "seconds"}), "'seconds' is not milliseconds"),
    (t4(result({"A": 1}, 1.0), result({"A": 1}, 2.0)), r"results\[1\]: the same configuration"),
    (t4(result({"A": 1}, 1.0), result({"B": 1}, 2.0)), "other parameters than before"),
    (t4(result({"A": 1})), "neither a measurement `time` nor"),
    (t4(result({"A": 1}, times={"runtimes": []})), "neither a measurement `time` nor"),
    (t4(result({"A": 1}, times={"runtimes": [math.nan]})), "nan ms is no time"),
    (t4(result({"A": 1}, -2)), "-2 ms is no time"),
    (t4(result({"A": 1}, 2, "wrong")), "'wrong' is none of"),
    (t4(result({"A": 1}, measurements=[{"name": "time", "value": 1, "unit": "s"}])), "the unit of `time` is 's'"),
    (t4(result({"A": 1}, measurements=[3])), "a table with a name"),
    (t4(result({"template": 3}, 1.0)), "a number is no name"),
    (t4(result({"A": "b\ud800"}, 1.0)), "half of a surrogate pair, which is no character, stands after .*b'"),
    (t4(result({"\udfff": 1}, 1.0)), "half of a surrogate pair"),
    (changed("tune_params_keys", to=["\ud83d"]), "half of a surrogate pair"),
    (WHOLE.replace("a device", "a \\uD8ffe"), "half of a surrogate pair"),
    (t4(result({"A": 1}, 1.0, measurements=timed("time_baseline", 10**400))), "time_baseline: 1000.*out of the range"),
    (
        t4(result({"A": 1}, 1.0, measurements=timed("time_baseline", 1e305))),
        "time_baseline: 1e.305 is out of the range",
    ),
    (t4(result({"A": 1}, 1.0, measurements=timed("log_speedup_half_width", -(10**400)))), "half_width: -1000"),
]


@pytest.mark.parametrize(("document", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_document_that_is_wrong_is_refused_with_its_file_and_a_remedy(
    tmp_path: Path, document: object, message: str
) -> None:
    with pytest.raises(AgentCompileError, match=message) as caught:
        read(tmp_path, document)
    assert "small.json: " in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


PACKED = gzip.compress(WHOLE.encode())
FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: None, "there is no such file"),
    ("folder", lambda path: path.mkdir(), "not a file but a folder"),
    ("cut", lambda path: path.write_bytes(PACKED[:-12]), "the gzip file is cut short"),
    ("damaged", lambda path: path.write_bytes(PACKED[:12] + b"\xff\xff" + PACKED[14:]), "the gzip file is damaged"),
    ("latin", lambda path: path.write_bytes(b'{"a": "\xe9"}'), "not UTF-8"),
    ("large", lambda path: path.write_bytes(gzip.compress(b" " * 5000)), "unpacked"),
    ("larger", lambda path: path.write_bytes(b" " * 5000), "5000 bytes, and at most 4096"),
]


@pytest.mark.parametrize(("name", "make", "message"), FILES, ids=[name for name, _, _ in FILES])
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(AgentCompileError, match=message) as caught:
        read_space(tmp_path / name, most_bytes=4096)
    assert name in caught.value.message
    assert caught.value.hint


def test_names_of_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    space = read(tmp_path, cache([1.0, 2.0], device_name="a\x1b[31m\ncard", kernel_name="k\x07"))
    assert space.device == "a card"
    assert space.candidates[0].template == "k"


def test_a_character_beyond_the_first_plane_may_be_written_as_two_escapes(tmp_path: Path) -> None:
    space = read(tmp_path, t4(result({"A": "\U0001f600"}, 1.0), result({"A": "\\ud800"}, 2.0)))
    assert list(labels(space)) == ["kernel(A=\U0001f600)", "kernel(A=\\ud800)"]
