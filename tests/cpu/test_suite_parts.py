"""Greedy and drawn generations of one prompt: the same processes serve both, and what one lost the other has anew."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.times import Build
from agentcompile.bench.harness.trial import Outcome, Part, Setup, run_trials

from tests.cpu.trials import ARMS, PROCESSES, ROUNDS, WORK, Commands, setup

DRAWN = replace(WORK, name="y", sampling={"temperature": 0.8, "top_p": 0.95, "seed": 0})


def parts() -> tuple[Part, Part]:
    return Part(workload=WORK, outcome=Outcome()), Part(workload=DRAWN, outcome=Outcome())


def test_a_process_that_loaded_serves_both_modes(tmp_path: Path) -> None:
    commands, both = Commands(), parts()
    run_trials(ARMS, both, None, 0.0, setup(tmp_path, commands))
    assert Counter(commands.started) == {"fp32": 1, **dict.fromkeys(ARMS, PROCESSES)}
    for part in both:
        assert [timed.process for timed in part.outcome.rounds] == [0] * ROUNDS + [1] * ROUNDS
        assert all(set(timed.visits) == set(ARMS) for timed in part.outcome.rounds)
        assert part.outcome.agreement == dict.fromkeys(ARMS, "")
        assert {name: len(took) for name, took in part.outcome.load_s.items()} == {
            "fp32": 1,
            **dict.fromkeys(ARMS, PROCESSES),
        }
    assert both[0].outcome.facts == both[1].outcome.facts


def test_what_the_first_mode_lost_is_loaded_again_for_the_second(tmp_path: Path) -> None:
    commands, (greedy, drawn) = Commands({"slow": "raise OSError('not greedily')"}), parts()
    run_trials(ARMS, (greedy, drawn), None, 0.0, setup(tmp_path, commands))
    assert greedy.outcome.reasons == {"slow": "exit code 1: OSError: not greedily"}
    assert drawn.outcome.reasons == {}
    assert all(set(timed.visits) == {"fast"} for timed in greedy.outcome.rounds)
    assert all(set(timed.visits) == set(ARMS) for timed in drawn.outcome.rounds)
    assert Counter(commands.started) == {"fp32": 1, "fast": PROCESSES, "slow": PROCESSES + 1}


FEW = "return Generation([7] * (new - 1), 1.0, 1.0)"


def test_an_arm_that_makes_too_few_tokens_fails_and_the_others_are_timed(tmp_path: Path) -> None:
    commands, (greedy, drawn) = Commands({"slow": FEW}), parts()
    run_trials(ARMS, (greedy, drawn), None, 0.0, setup(tmp_path, commands))
    assert greedy.outcome.reasons == {"slow": "exit code 1: RuntimeError: made 7 tokens where 8 were asked for"}
    assert all(set(timed.visits) == {"fast"} for timed in greedy.outcome.rounds)


def test_an_arm_that_checks_too_few_tokens_fails_and_the_others_are_timed(tmp_path: Path) -> None:
    class Short(Commands):
        def __call__(self, name: str, build: Build | None, setup: Setup) -> list[str]:
            *head, code = super().__call__(name, build, setup)
            return [*head, code.replace("] * new, [[7", "] * (new - 1), [[7") if name == "slow" else code]

    commands, (greedy, drawn) = Short(), parts()
    run_trials(ARMS, (greedy, drawn), None, 0.0, setup(tmp_path, commands))
    assert greedy.outcome.reasons == {"slow": "made 7 tokens, 8 with alternatives, where 8 were asked for"}
    assert all(set(timed.visits) == {"fast"} for part in (greedy, drawn) for timed in part.outcome.rounds)


class Enough(Exception):
    """The run's time has gone."""


@pytest.mark.parametrize("kept", [1, ROUNDS, ROUNDS + 1, 2 * ROUNDS, 3 * ROUNDS + 1])
def test_a_run_that_was_cut_has_each_round_once(tmp_path: Path, kept: int) -> None:
    both = parts()

    def pause() -> None:
        if sum(len(part.outcome.rounds) for part in both) >= kept:
            raise Enough

    with pytest.raises(Enough):
        run_trials(ARMS, both, None, 0.0, setup(tmp_path, Commands(), pause=pause))
    before = [part.outcome.rounds for part in both]
    assert sum(map(len, before)) == kept
    run_trials(ARMS, both, None, 0.0, setup(tmp_path, Commands()))
    for part, rounds in zip(both, before, strict=True):
        assert part.outcome.rounds[: len(rounds)] == rounds
        assert [timed.process for timed in part.outcome.rounds] == [0] * ROUNDS + [1] * ROUNDS
