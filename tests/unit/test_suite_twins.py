"""An arm under a second name: how it is asked for, what is refused, and what a planted slow-down is on a real clock."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.channel import Generation, _slowed, _timed
from agentcompile.bench.harness.trial import command_of, request_for
from agentcompile.bench.harness.twins import fault, kind_of, slower
from agentcompile.bench.suite.run import run

from agentcompile.errors import AgentCompileError
from tests.cpu.trials import WORK, Commands, setup


def test_a_twin_is_its_arm_in_all_but_its_name(tmp_path: Path) -> None:
    made = setup(tmp_path, Commands())
    assert [kind_of(name) for name in ("hf-eager", "hf-eager=again", "a=b:0.5")] == ["hf-eager", "hf-eager", "a"]
    assert command_of("hf-eager=again", None, made) == command_of("hf-eager", None, made)
    llama = replace(made, llama_python=Path("/bin/true"))
    assert command_of("llama.cpp=again", None, llama) == command_of("llama.cpp", None, llama)
    assert request_for("hf-eager=again", WORK, None, made) == request_for("hf-eager", WORK, None, made)
    slowed = request_for("hf-eager=slow:0.03", WORK, None, made)
    assert slowed == {**request_for("hf-eager", WORK, None, made), "slower": 0.03}


@pytest.mark.parametrize(("name", "share"), [("a", 0.0), ("a=b", 0.0), ("a=b:0.03", 0.03), ("a=b:10", 10.0)])
def test_a_share_is_how_much_longer_a_twin_waits(name: str, share: float) -> None:
    assert (slower(name), fault(name)) == (share, "")


@pytest.mark.parametrize("name", ["a=", "a=:0.1", "a=b:", "a=b:x", "a=b:0", "a=b:-1", "a=b:nan", "a=b:inf", "a=b:11"])
def test_what_is_no_twin_is_refused(name: str) -> None:
    assert fault(name)
    with pytest.raises(AgentCompileError) as refused:
        run(["--arms", f"hf-eager,hf-{name.replace('a=', 'eager=')}"])
    assert refused.value.message.startswith("--arms: 'hf-eager=")
    assert "agentcompile=again" in refused.value.hint


def test_a_twin_of_no_arm_names_the_nearest() -> None:
    with pytest.raises(AgentCompileError) as refused:
        run(["--arms", "hf-eager,agentcompil=again"])
    assert "did you mean `agentcompile`?" in refused.value.hint


@pytest.mark.parametrize("option", ["--llama-python", "--vllm-python"])
def test_an_interpreter_that_is_not_there_is_refused_at_once(option: str) -> None:
    with pytest.raises(AgentCompileError, match=f"{option}: /nowhere/python: is no program"):
        run([option, "/nowhere/python"])


def test_a_slow_down_is_waited_for_on_the_clock_that_times_the_arm() -> None:
    begin = time.perf_counter()
    made = _slowed(Generation([1], 0.01, 0.04), 0.5)
    waited = time.perf_counter() - begin
    assert made.first_s >= 0.015
    assert made.rest_s >= 0.06
    assert made.first_s + made.rest_s - 0.05 <= waited


class Fake:
    """Takes a second for the first token and three for the rest, and looks at no clock where none is asked for."""

    facts: dict[str, object] = {}  # noqa: RUF012

    def generate(self, ids: object, new: int, **drawn: object) -> Generation:
        return Generation([7] * new, 1.0, 3.0)

    def whole(self, ids: object, new: int) -> list[int]:
        return [7] * new

    def tops(self, ids: object, new: int, count: int) -> tuple[list[int], list[list[int]]]:
        raise NotImplementedError


def test_a_whole_generation_is_timed_from_its_begin_to_its_end() -> None:
    request = {"ids": [1], "new": 4, "warm": 1, "least_s": 0.0}
    made = _timed(Fake(), request, 0.0, {})
    assert (made["tokens"], made["first_s"], made["rest_s"]) == ([7] * 4, [1.0], [3.0])
    plain = _timed(Fake(), {**request, "whole": True}, 0.0, {})
    assert (plain["tokens"], plain["first_s"], len(plain["rest_s"])) == ([7] * 4, [0.0], 1)
    assert 0 <= plain["rest_s"][0] < 1
    assert math.isclose(_timed(Fake(), request, 1e-9, {})["rest_s"][0], 3.0, rel_tol=1e-2)
