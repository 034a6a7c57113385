"""Peers that hang, run out of memory or never load: a row with the reason, nothing left behind, the rest goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.figures.times import Build
from agentcompile.bench.figures.trial import Outcome, Setup, run_trial
from agentcompile.bench.suite.found import case_of

from tests.cpu import flows
from tests.cpu.test_suite_slow_down import undisturbed
from tests.cpu.trials import AT_ONCE, FAKE, WORK, Commands, setup

LIMIT_S = 4.0
ACTS = {"hanging": "import time; time.sleep(600)", "greedy-for-memory": "bytearray(1 << 55)"}
LOADS = {
    "never-there": "def load():\n    import time; time.sleep(600)",
    "broken": "def load(): raise OSError('no room')",
}
NAMES = ("base", *ACTS, *LOADS, "last")
REASONS = {
    "hanging": "no answer within 4 s",
    "greedy-for-memory": "exit code 1: MemoryError",
    "never-there": "no answer within 20 s",
    "broken": "exit code 1: OSError: no room",
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One trial with every fault, and two arms that have none."""
    folder = tmp_path_factory.mktemp("faults")

    def command(name: str, build: Build | None, made: Setup) -> list[str]:
        return [sys.executable, "-c", FAKE.format(act=ACTS.get(name, "pass"), load=LOADS.get(name, AT_ONCE))]

    made = setup(folder, Commands())
    made = replace(made, command=command, rounds=2, processes=2, limit_s=LIMIT_S, load_limit_s=20.0)
    return run_trial(NAMES, WORK, None, 0.0, made, Outcome())


def test_every_fault_is_a_reason_and_no_other_arm_has_one(outcome: Outcome) -> None:
    assert outcome.reasons == REASONS


def test_the_arms_without_a_fault_have_all_their_rounds(outcome: Outcome) -> None:
    assert [timed.process for timed in outcome.rounds] == [0, 0, 1, 1]
    assert all(set(timed.visits) == {"base", "last"} for timed in outcome.rounds)


def test_of_arms_that_failed_no_process_is_left(outcome: Outcome) -> None:
    pids: Mapping[str, object] = {name: facts["pid"] for name, facts in outcome.facts.items()}
    assert {"hanging", "greedy-for-memory", "base"} <= set(pids)
    assert [name for name, pid in pids.items() if Path(f"/proc/{pid}").exists()] == []


def test_each_is_a_row_of_the_case(outcome: Outcome) -> None:
    rounds = tuple(map(undisturbed, outcome.rounds))
    case, _ = case_of(
        NAMES, model="sample", workload="chat", mode="greedy", asked=WORK,
        outcome=Outcome(facts=outcome.facts, reasons=outcome.reasons, rounds=rounds), absent={}, baseline="base",
        cache_bytes=100, ceiling=flows.CEILING, cached=False, compile_s={},
    )  # fmt: skip
    states = {arm.name: (arm.state, arm.reason) for arm in case.arms}
    assert states == {
        "base": ("measured", ""),
        "last": ("measured", ""),
        **{name: ("failed", reason) for name, reason in REASONS.items()},
    }
