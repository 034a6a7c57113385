"""How prompts run: what is timed in the time there is, and which lengths a timing speaks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.ir.codec import decode, encode
from agentcompile.ir.graph import Phase
from agentcompile.ir.program import CHUNK
from agentcompile.ir.region import Regime
from agentcompile.ir.timing import Clock, Round, Samples
from agentcompile.ir.trial import Crashed, Plan, PromptLengths, PromptTime
from agentcompile.measure import Timing
from agentcompile.planning.chunks import fits_beside
from agentcompile.planning.prompt_lengths import SHORT, chosen, chunk_arms, described, measured_lengths, step_arms
from agentcompile.runs.tables import plan_line
from agentcompile.worker.protocol import Feeding
from tests.models.lowered import clashes, in_pytorch
from tests.unit.graphs import Shape, decoder

USUAL = 256
STEP_NS, CHUNK_NS = 130e3, 16e6
Cost = Callable[[Feeding], float]
PHASES: tuple[Phase, Phase] = ("decode", "prefill")


def timing(arms: tuple[Feeding, ...], cost: Cost, *, noise: float = 0.002, rounds: int = 5) -> Timing:
    """Rounds in which an arm takes its cost in µs, each time up to `noise` of it more."""
    wobble = itertools.cycle((0.0, 0.7, 0.2, 1.0, 0.4, 0.9, 0.1))
    taken = [tuple((round(1000 * cost(arm) * (1 + noise * next(wobble))),) * 2 for arm in arms) for _ in range(rounds)]
    made = tuple(Round(intervals_ns=one, waited_ns=(0,) * len(arms)) for one in taken)
    samples = Samples(batch=1, clock=Clock(quantum_ns=1, doubling=(2.0,) * len(arms)), rounds=made)
    labels = tuple(str(arm) for arm in arms)
    return Timing(arms=labels, live=tuple(range(len(arms))), processes=(samples,), residency="cache")


def costs(chunks: Mapping[int, float], step: float = 130.0, least: float = 480.0) -> Cost:
    """A token takes what its chunk's length says, a chunk at least `least`, a decode step `step`; all in µs."""
    return lambda arm: max(least, arm.tokens * chunks[arm.chunk]) if arm.chunk else arm.tokens * step


FLAT = dict.fromkeys((64, 128, 256, 512), 60.0)
CHUNKS, STEPS = chunk_arms(USUAL, 512, CHUNK_NS, 3.0), step_arms(USUAL, STEP_NS, 2.0)


def speaks_for(cost: Cost, *, noise: float = 0.002, most: int = 512) -> PromptLengths:
    """The lengths that rounds with this cost speak for."""
    return chosen(
        timing(CHUNKS, cost, noise=noise), CHUNKS, timing(STEPS, cost, noise=noise, rounds=10), STEPS, USUAL, most
    )


def test_every_length_is_timed_on_a_prompt_of_the_longest_chunk_and_short_prompts_both_ways() -> None:
    assert [(arm.tokens, arm.chunk) for arm in CHUNKS] == [(512, 256), (512, 512), (512, 128), (512, 64)]
    assert [(arm.tokens, arm.chunk) for arm in STEPS] == [(count, way) for count in SHORT for way in (USUAL, 0)]


def test_what_a_short_time_is_too_little_for_is_left_out_from_the_least_useful_on() -> None:
    assert [arm.chunk for arm in chunk_arms(USUAL, 0, CHUNK_NS, 0.5)] == [256, 128]
    assert {arm.tokens for arm in chunk_arms(USUAL, 512, CHUNK_NS, 0.5)} == {USUAL}
    assert chunk_arms(USUAL, 512, 3e9, 3.0) == ()
    assert [arm.tokens for arm in step_arms(USUAL, 8e6, 2.0) if not arm.chunk] == [1, 2]
    assert step_arms(USUAL, 1e9, 2.0) == ()


def test_a_short_cache_has_no_chunks_longer_than_itself_and_no_prompt_of_a_whole_chunk_in_steps() -> None:
    assert chunk_arms(12, 0, 1e6, 3.0) == ()
    assert max(arm.tokens for arm in step_arms(12, STEP_NS, 2.0)) == 8


def test_the_usual_length_stays_where_no_other_is_surely_faster() -> None:
    assert speaks_for(costs(FLAT, step=500.0)).chunk == 0
    close = speaks_for(costs({**FLAT, 128: 59.8}, step=500.0))
    assert (close.chunk, close.steps_up_to) == (0, 0)
    noisy = speaks_for(costs({**FLAT, 128: 58.0}), noise=0.3)
    assert noisy.chunk == 0


def test_the_fastest_of_the_surely_faster_lengths_is_taken() -> None:
    assert speaks_for(costs({**FLAT, 64: 57.0, 128: 50.0})).chunk == 128
    assert speaks_for(costs({**FLAT, 128: 57.0, 512: 52.0})).chunk == 512


def test_a_longer_chunk_must_gain_more_as_its_kernels_are_made_and_accepted_anew() -> None:
    assert speaks_for(costs({**FLAT, 512: 59.0})).chunk == 0
    assert speaks_for(costs({**FLAT, 128: 59.0})).chunk == 128


def test_a_longer_chunk_that_is_refused_leaves_the_next_best() -> None:
    assert speaks_for(costs({**FLAT, 128: 56.0, 512: 50.0}), most=USUAL).chunk == 128


def test_prompts_run_in_decode_steps_up_to_the_last_length_at_which_they_are_surely_faster() -> None:
    assert speaks_for(costs(FLAT)).steps_up_to == 3  # 390 µs beside 480; 4 take 520
    assert speaks_for(costs(FLAT, step=479.9)).steps_up_to == 0
    assert speaks_for(costs(FLAT, step=10.0)).steps_up_to == 16


def test_a_length_at_which_steps_are_not_surely_faster_ends_them_even_if_a_longer_one_looks_faster() -> None:
    def cost(arm: Feeding) -> float:
        return costs(FLAT)(arm) * (3.0 if (arm.tokens, arm.chunk) == (2, 0) else 0.5 if not arm.chunk else 1.0)

    assert speaks_for(cost).steps_up_to == 1


def test_an_arm_that_died_is_not_faster_and_a_timing_that_failed_says_nothing() -> None:
    cost = costs({**FLAT, 128: 40.0})
    dead = CHUNKS.index(Feeding(tokens=512, chunk=128))
    live = tuple(arm for arm in CHUNKS if arm.chunk != 128)
    places = tuple(at for at in range(len(CHUNKS)) if at != dead)
    found = replace(
        timing(live, cost), live=places, failed=((dead, Crashed(stage="measure", signal=11)),), arms=("",) * len(CHUNKS)
    )
    assert chosen(found, CHUNKS, None, STEPS, USUAL) == replace(
        chosen(found, CHUNKS, None, (), USUAL), chunk=0, steps_up_to=0
    )
    assert chosen(None, (), None, (), USUAL) == PromptLengths()


@pytest.mark.parametrize(
    ("device", "step_ns", "left_s", "says"),
    [
        ("cpu", 130_000, 0.5, "prompts run as usual: no time is left to compare other lengths"),
        ("cpu", 130_000, -3.0, "prompts run as usual: no time is left to compare other lengths"),
        ("cpu", 0, 60.0, "prompts run as usual: a step or a chunk was not timed"),
        ("cuda:0", 130_000, 60.0, ""),
    ],
)
def test_nothing_is_timed_without_time_or_on_a_gpu_and_a_person_reads_why(
    device: str, step_ns: int, left_s: float, says: str
) -> None:
    captured = SimpleNamespace(prefill=decoder(Shape(), "prefill"), info=SimpleNamespace(context=64))
    prepared: Any = SimpleNamespace(model=SimpleNamespace(captured=captured), here=SimpleNamespace(device=device))
    plans = [
        Plan(regime=Regime(phase=phase, context=(1, 64)), parts=(), exact=True, step_ns=step_ns) for phase in PHASES
    ]
    nobody: Any = None
    found = measured_lengths(prepared, plans, (), {}, nobody, nobody, 0, lambda: left_s)
    assert (found.prompts, found.note) == (PromptLengths(), says)


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        (FLAT, "prompts run in chunks of 256, up to 3 tokens in decode steps (0.39 ms for 3, 0.48 ms as a chunk)"),
        ({**FLAT, 128: 50.0}, "prompts run in chunks of 128 (25.61 ms for 512, 30.74 ms in chunks of 256), up to 3"),
    ],
)
def test_a_person_reads_what_was_chosen_with_its_times(chunks: dict[int, float], says: str) -> None:
    assert described(speaks_for(costs(chunks)), USUAL).startswith(says)


def test_a_plan_has_its_lengths_in_its_event_and_its_line_and_one_from_before_runs_as_usual() -> None:
    time = PromptTime(tokens=3, chunk=0, median_ns=1, baseline_ns=2, log_ratio=0.7, half_width=0.1, comparison="FASTER")
    lengths = PromptLengths(chunk=512, steps_up_to=3, times=(time,))
    plan = Plan(regime=Regime(phase="prefill", context=(1, 900)), parts=(), exact=True, prompts=lengths)
    data = encode(plan)
    assert decode(Plan, data) == plan
    assert isinstance(data, dict)
    del data["prompts"]
    assert decode(Plan, data).prompts == PromptLengths()
    assert plan_line(plan).endswith("; prompts run in chunks of 512; up to 3 tokens of a prompt run in decode steps")


def test_the_memory_of_a_chunk_counts_a_vocabulary_once_and_not_for_each_token() -> None:
    few, many = (in_pytorch(decoder(Shape(vocab=vocab), "prefill"), 64, singly=True) for vocab in (96, 160_000))
    assert many.arena_bytes - few.arena_bytes <= 2 * 160_000 / CHUNK + 64
    assert fits_beside(many, 512) is fits_beside(few, 512) is True
    for tokens, room in ((1, CHUNK), (100, CHUNK), (CHUNK, CHUNK), (512, 512)):
        assert clashes(many, tokens=tokens, room=room) == []
