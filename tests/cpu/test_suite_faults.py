"""Peers that hang, run out of memory or never load: a row with the reason, nothing left behind, the rest goes on.

Of an arm whose tokens vary it depends on whose it is: a peer's row has a note, ours has failed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.found import case_of
from agentcompile.bench.harness.result import Case
from agentcompile.bench.harness.times import Build
from agentcompile.bench.harness.trial import Outcome, Setup, run_trial
from agentcompile.bench.report.markdown import arms_table

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


def made(names: Sequence[str], outcome: Outcome) -> Case:
    """The case of a machine that had nothing else to do."""
    case, _ = case_of(
        names, model="sample", workload="chat", mode="greedy", asked=WORK,
        outcome=replace(outcome, rounds=tuple(map(undisturbed, outcome.rounds))), absent={}, baseline="base",
        cache_bytes=100, ceiling=flows.CEILING, cached=False, compile_s={},
    )  # fmt: skip
    return case


def test_each_is_a_row_of_the_case(outcome: Outcome) -> None:
    case = made(NAMES, outcome)
    states = {arm.name: (arm.state, arm.reason) for arm in case.arms}
    assert states == {
        "base": ("measured", ""),
        "last": ("measured", ""),
        **{name: ("failed", reason) for name, reason in REASONS.items()},
    }


TOLD = "import time; time.sleep(0.02); return Generation([{token}] * new, 0.01, 0.01 + random.random() / 10)"
"""Generates a token for so long that a visit of `LEAST_S` has several generations."""
LEAST_S = 0.3
OURS = ("agentcompile", "agentcompile=again", "rung")
"""The run's lock under two names, and an arm with a lock of its own."""


@pytest.fixture(scope="module")
def varying(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One trial of a peer and three arms of ours, all of whose tokens vary, beside a peer whose tokens do not."""
    folder = tmp_path_factory.mktemp("varying")
    build = Build(model=WORK.model, lock=folder / "lock.toml", home=None, threads=1)
    acts = {"base": TOLD.format(token=7), **dict.fromkeys(("peer", *OURS), TOLD.format(token="time.monotonic_ns()"))}
    arms = replace(setup(folder, Commands(acts)), rounds=2, processes=2, builds={"rung": build})
    return run_trial(("base", "peer", *OURS), WORK, build, LEAST_S, arms, Outcome())


def test_arms_of_ours_whose_tokens_vary_fail_and_a_peer_keeps_its_rounds(varying: Outcome) -> None:
    assert varying.reasons == dict.fromkeys(OURS, "one prompt gave different tokens from one generation to the next")
    assert [set(timed.visits) for timed in varying.rounds] == [{"base", "peer"}] * 4


def test_the_row_of_a_peer_whose_tokens_vary_is_as_any_other_with_a_note(varying: Outcome) -> None:
    case = made(("base", "peer", *OURS), varying)
    peer = case.arm("peer")
    assert peer is not None
    assert (peer.state, peer.reason, peer.agrees, peer.same) == ("measured", "", "", False)
    assert peer.tokens_per_s is not None
    assert peer.speedup is not None
    assert peer.speedup.rounds == 4
    assert {arm.name: arm.state for arm in case.arms if arm.same} == {
        "base": "measured",
        **dict.fromkeys(OURS, "failed"),
    }
    notes = {row[1]: row[-1] for row in arms_table([case]).rows}
    assert notes["base"] == ""
    assert notes["peer"] == "its tokens differ from one generation to the next"
    assert notes["rung"] == f"failed: {varying.reasons['rung']}"
