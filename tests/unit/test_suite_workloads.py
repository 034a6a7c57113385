"""The suite's workloads: what ships with the project, and what is refused with file, key and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agentcompile.bench.harness.engines import ENGINES
from agentcompile.bench.harness.trial import FP32, LLAMA, VLLM
from agentcompile.bench.harness.workloads import WORKLOADS, Workloads, load_workloads
from agentcompile.bench.models.locate import MAKERS
from agentcompile.bench.suite.run import _parse, _suite, run

from agentcompile.errors import AgentCompileError, ExitCode

FULL = {
    "chat": (128, 128),
    "code": (512, 256),
    "summary": (2048, 128),
    "retrieval": (4096, 256),
    "reasoning": (256, 2048),
}
"""Tokens of the prompt and new ones."""
GOOD = """
[[workload]]
name = "long"
prompt = 100
new = 50
about = "a long one"

[[workload]]
name = "short"
small = "long"
prompt = 10
new = 5
about = "its twin"

[sampling]
temperature = 0.8
top-p = 0.95
seed = 0

[[suite]]
name = "quick"
kind = "cpu"
models = ["sample"]
workloads = ["long", "short"]
modes = ["greedy"]
arms = ["hf-eager", "agentcompile"]
baseline = "hf-eager"
rounds = 2
processes = 1
context = 150
"""
SUITE = GOOD[GOOD.index("[[suite]]") :]
Load = Callable[..., Workloads]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Reads the good file after texts in it were replaced, each by the next."""

    def read(*changes: str) -> Workloads:
        text = GOOD
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "workloads.toml"
        path.write_text(text, encoding="utf-8")
        load_workloads.cache_clear()
        return load_workloads(path)

    return read


def refusal(load: Load, *changes: str) -> AgentCompileError:
    with pytest.raises(AgentCompileError) as refused:
        load(*changes)
    assert refused.value.exit_code == ExitCode.USAGE
    assert refused.value.hint
    return refused.value


def test_every_workload_that_ships_has_its_size_and_a_small_twin() -> None:
    read = load_workloads(WORKLOADS)
    whole = {one.name: (one.prompt, one.new) for one in read.workload if not one.small}
    twins = {one.small: one for one in read.workload if one.small}
    assert whole == FULL
    assert set(twins) == set(FULL)
    assert all(twin.prompt < FULL[of][0] and twin.new < FULL[of][1] for of, twin in twins.items())
    assert all(one.about for one in read.workload)


def test_suites_that_ship_name_models_and_arms_that_there_are() -> None:
    arms = {*ENGINES, LLAMA, VLLM} - {FP32}
    for suite in load_workloads(WORKLOADS).suite:
        assert set(suite.models) <= set(MAKERS), suite.name
        assert set(suite.arms) <= arms, suite.name
        assert set(suite.lock) <= set(suite.models), suite.name
        assert all((WORKLOADS.parent / lock).is_file() for lock in suite.lock.values()), suite.name


def test_a_good_file_is_read_as_it_is_written(load: Load) -> None:
    read = load()
    assert (read.shape("short").small, read.of("quick").context, read.sampling.top_p) == ("long", 150, 0.95)


def test_a_lock_of_a_model_whose_name_has_a_dash_is_found_under_that_name(load: Load) -> None:
    assert load("context = 150", 'context = 150\nlock = { qwen3-4b = "a.toml" }').of("quick").lock == {
        "qwen3-4b": "a.toml"
    }


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (('name = "short"', 'name = "long"'), "workload: long: is defined twice"),
        (("prompt = 100", "prompt = 0"), "workload: long: prompt: 0 is less than 1"),
        (("new = 5\n", "new = -3\n"), "workload: short: new: -3 is less than 2"),
        (("new = 5\n", "new = 1\n"), "workload: short: new: 1 is less than 2"),
        (('small = "long"', 'small = "lung"'), "workload: short: small: 'lung' is no workload"),
        (('["long", "short"]', '["long", "shot"]'), "suite: quick: 'shot' is no workload"),
        (('baseline = "hf-eager"', 'baseline = "hf"'), "suite: quick: baseline: 'hf' is none of its arms"),
        (("context = 150", "context = 149"), "suite: quick: context: 149 is less than the 150 tokens it needs"),
        (("rounds = 2", "rounds = 0"), "suite: quick: rounds: 0 is less than 1"),
        (("processes = 1", "processes = 0"), "suite: quick: processes: 0 is less than 1"),
        (("temperature = 0.8", "temperature = 0.0"), "sampling: temperature: 0 is not more than 0"),
        (("top-p = 0.95", "top-p = 0.0"), "sampling: top-p: 0 is not in (0, 1]"),
        (("top-p = 0.95", "top-p = 1.5"), "sampling: top-p: 1.5 is not in (0, 1]"),
        ((SUITE, SUITE + SUITE), "suite: quick: is defined twice"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_key_and_value(load: Load, changes: tuple[str, str], fault: str) -> None:
    assert refusal(load, *changes).message == f"workloads.toml: {fault}"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (("context = 150", 'context = "150"'), 'suite[0].context: "150" is not a whole number'),
        (("prompt = 100", "prompt = 1.5"), "workload[0].prompt: 1.5 is not a whole number"),
        (('models = ["sample"]', 'models = "sample"'), 'suite[0].models: "sample" is not an array of texts'),
        (('kind = "cpu"', 'kind = "gpu"'), 'suite[0].kind: "gpu" is not one of cpu, cuda'),
        (('modes = ["greedy"]', 'modes = ["greedily"]'), 'suite[0].modes[0]: "greedily" is not one of'),
        (('about = "a long one"\n', ""), "workload[0].about: missing"),
        (("rounds = 2", "rounds = 2\nround = 3"), "suite[0].round: unknown key"),
        (("temperature = 0.8", "temperature = nan"), "sampling.temperature: nan is not a finite number"),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_stands(load: Load, changes: tuple[str, str], fault: str) -> None:
    assert refusal(load, *changes).message.startswith(f"workloads.toml: {fault}")


def test_a_misspelt_key_names_the_nearest(load: Load) -> None:
    assert "did you mean `baseline`?" in refusal(load, "baseline =", "base-line =").hint


def test_what_is_no_toml_and_what_is_not_there_are_named(load: Load, tmp_path: Path) -> None:
    assert "workloads.toml: not TOML: " in refusal(load, "[sampling]", "[sampling").message
    with pytest.raises(AgentCompileError, match=r"nowhere\.toml: cannot be read: No such file"):
        load_workloads(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("option", "given", "near"),
    [
        ("--suite", "gpus", "gpu"),
        ("--workload", "chat-smal", "chat-small"),
        ("--arms", "hf-eager,agentcompil", "agentcompile"),
        ("--model", "smaple", "sample"),
    ],
)
def test_an_unknown_name_on_the_command_line_names_the_nearest(option: str, given: str, near: str) -> None:
    with pytest.raises(AgentCompileError) as refused:
        run(["--minutes", "0", option, given])
    assert refused.value.exit_code == ExitCode.USAGE
    assert refused.value.message.startswith(f"{option}: {given.rpartition(',')[2]!r}: ")
    assert f"did you mean `{near}`?" in refused.value.hint


def test_the_reference_is_no_arm() -> None:
    with pytest.raises(AgentCompileError, match="--arms: 'fp32': no such arm"):
        run(["--arms", "fp32"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arms", "hf-eager,hf-eager"), "--arms: hf-eager,hf-eager: one is named twice"),
        (("--rounds", "0"), "--rounds: 0: is less than 1"),
        (("--processes", "-1"), "--processes: -1: is less than 1"),
        (("--suite", "gpu", "--lock", "x.lock.toml"), "--lock: x.lock.toml: is of one model, not 3"),
    ],
)
def test_what_a_run_cannot_be_asked_for_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(AgentCompileError) as refused:
        run(words)
    assert refused.value.message.startswith(said)


def test_our_lock_holds_the_longest_workload_that_is_asked_for() -> None:
    def context(*workloads: str) -> int:
        return _suite(_parse(["--suite", "cpu", *(f"--workload={name}" for name in workloads)])).context

    assert context() == context("chat") == 2048
    assert context("chat", "retrieval") == 4096 + 256
