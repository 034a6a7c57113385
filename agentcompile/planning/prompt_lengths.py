"""How prompts run on a CPU, by measurement: the length of their chunks, and what is short enough for decode steps.

In: admitted plans. Out: lengths, with the times that they follow from. Prompts run as usual unless another way is
surely faster. Shorter chunks run the accepted kernels; those of longer ones are made for as many tokens, so that they
are built for the timing and pass the whole correctness suite before they ship.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentcompile.backends import backend_of
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.evaluation.time_budget import Left
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.template import Source
from agentcompile.ir.trial import Death, Layouts, Plan, PromptLengths, PromptTime
from agentcompile.measure import POLICY, Timing, contrast
from agentcompile.planning.arms import lowered
from agentcompile.planning.chunks import Chunk, chunks_of, fits_beside, usual
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.worker.protocol import Feeding

LENGTHS = (64, 128, 256, 512)
"""Tokens of the chunks that are tried; longer ones gained nothing more where they were measured."""
SHORT = (1, 2, 3, 4, 6, 8, 12, 16)
"""Tokens of the prompts that are tried in decode steps."""
MOST_S = 5.0
"""The most seconds that timing should take on a quiet machine."""
LEAST_S = 1.0
"""The least seconds in which anything is timed."""
LONGER_S = 120.0
"""The seconds that must be left for longer chunks, most of them for the correctness suite at their length."""
LONGER_CLAIM = 0.03
"""The least gain of a longer chunk: its kernels are built and accepted anew, here and wherever the lock is replayed."""
OF_CHUNKS = 0.6
"""The share of the time that the lengths of chunks may take."""


class Accepting(Protocol):
    """The part of acceptance that runs the whole correctness suite on kernels."""

    def failing(self, jobs: Sequence[EvaluationJob]) -> Sequence[object]:
        """Return those of `jobs` that fail it."""


class PromptClock(Protocol):
    """A clock that times whole prompts beside one another."""

    def prompts(
        self,
        decode: Program,
        prefill: Sequence[tuple[int, Program]],
        arms: Sequence[Feeding],
        *,
        sources: Mapping[str, Source],
        rounds: int,
        claim: float,
        seed: int,
        seconds: float,
    ) -> Timing | Death:
        """Time prompts, each of `arms` in its own way, as `evaluation.step_clock.StepClock.prompts` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The lengths, and one line for people on what they follow from."""

    prompts: PromptLengths
    note: str


def measured_lengths(
    prepared: PreparedModel,
    plans: Sequence[Plan],
    layouts: Layouts,
    sources: Mapping[str, Source],
    clock: PromptClock,
    accepting: Accepting,
    seed: int,
    left: Left,
) -> Lengths:
    """Return how prompts run through `plans`, the prefill's last; as usual, with the reason, where nothing is timed.

    `sources` has the kernels of the plans; `accepting` decides whether those of longer chunks may ship. No more than
    `MOST_S` seconds are planned for, nor than are `left`.
    """
    common = usual(prepared.model.captured)
    if not backend_of(prepared.here.device).any_chunk or common == 1:
        return Lengths(prompts=PromptLengths(), note="")
    decode, prefill = plans[0], plans[-1]
    seconds = min(MOST_S, left())
    if not (decode.step_ns and prefill.step_ns) or seconds < LEAST_S:
        why = "no time is left to compare other lengths" if seconds < LEAST_S else "a step or a chunk was not timed"
        return Lengths(prompts=PromptLengths(), note=f"prompts run as usual: {why}")
    longer = _longer(prepared, prefill, layouts) if left() >= LONGER_S else None
    chunks = chunk_arms(common, longer[0] if longer else 0, prefill.step_ns, OF_CHUNKS * seconds)
    steps = step_arms(common, decode.step_ns, (1 - OF_CHUNKS) * seconds)
    programs = [(common, lowered(prepared.prefill, prefill.parts, sources, dict(layouts)))]
    own: dict[str, Source] = {}
    if longer is not None and any(arm.chunk > common for arm in chunks):
        programs.append((longer[0], longer[1].program))
        own = {job.source.digest: job.source for job in longer[1].jobs}
    step = lowered(prepared.decode[0], decode.parts, sources, dict(layouts))

    def timed(arms: Sequence[Feeding], rounds: int) -> Timing | None:
        """Time arms; None where there are none, or where the process itself fails."""
        if not arms:
            return None
        found = clock.prompts(
            step, programs, arms, sources=own, rounds=rounds, claim=POLICY.claim, seed=seed, seconds=seconds
        )
        return found if isinstance(found, Timing) else None

    by_chunks, by_steps = timed(chunks, POLICY.search_rounds), timed(steps, POLICY.confirm_rounds)
    if by_chunks is None and by_steps is None:
        text = f"prompts run as usual: other lengths could not be compared in {seconds:.0f} s"
        return Lengths(prompts=PromptLengths(), note=text)
    found, refused = chosen(by_chunks, chunks, by_steps, steps, common), ""
    if longer is not None and found.chunk > common and accepting.failing(longer[1].jobs):
        refused = f"chunks of {found.chunk} would be faster, but a kernel is wrong there; "
        found = chosen(by_chunks, chunks, by_steps, steps, common, most=common)
    return Lengths(prompts=found, note=refused + described(found, common))


def still_hold(prompts: PromptLengths, *, decode: bool, prefill: bool) -> PromptLengths:
    """Return what holds of measured lengths where the `decode` plan, and the `prefill` plan, are as they were."""
    if not prefill:
        return PromptLengths()
    return prompts if decode else PromptLengths(chunk=prompts.chunk, times=tuple(t for t in prompts.times if t.chunk))


def chunk_arms(common: int, longer: int, chunk_ns: float, seconds: float) -> tuple[Feeding, ...]:
    """Return lengths of chunks to time in about `seconds`, the usual `common` first; empty where no other fits.

    A chunk of the usual length takes `chunk_ns`; `longer` is a longer one, 0 for none. The prompt is as long as the
    longest chunk, so that all lengths do the same work.
    """
    tokens = max(common, longer)
    others = [*([longer] if longer else []), *(one for one in reversed(LENGTHS) if common / 4 <= one < common)]
    fit = min(int(seconds * 1e9 / _passes(POLICY.search_rounds) * common / (chunk_ns * tokens)) - 1, len(others))
    if fit > 0:
        return tuple(Feeding(tokens=tokens, chunk=chunk) for chunk in [common, *others[:fit]])
    return chunk_arms(common, 0, chunk_ns, seconds) if longer else ()


def step_arms(common: int, step_ns: float, seconds: float) -> tuple[Feeding, ...]:
    """Return short prompts to time in about `seconds`, each as a chunk and in decode steps of `step_ns`."""
    left_ns = seconds * 1e9 / _passes(POLICY.confirm_rounds)
    arms: list[Feeding] = []
    for count in (count for count in SHORT if count < common):
        left_ns -= 2 * count * step_ns  # where steps are worth it, a chunk takes no less
        if left_ns < 0:
            break
        arms += [Feeding(tokens=count, chunk=common), Feeding(tokens=count, chunk=0)]
    return tuple(arms)


def _passes(rounds: int) -> int:
    """Return how often each arm runs: twice a round, and to choose the number of prompts and to check the clock."""
    return 2 * rounds + 4


def chosen(
    by_chunks: Timing | None,
    chunks: Sequence[Feeding],
    by_steps: Timing | None,
    steps: Sequence[Feeding],
    common: int,
    most: int = LENGTHS[-1],
) -> PromptLengths:
    """Return the lengths that timings of the arms `chunks` and `steps` speak for; chunks have at most `most` tokens.

    A length of chunks is taken if it is surely faster than the usual `common` and by most. Prompts run through decode
    steps up to the last number of tokens at which they, and all fewer that were timed, surely are.
    """
    lengths = _times(by_chunks, chunks, common) if by_chunks is not None else []
    short = _times(by_steps, steps, common) if by_steps is not None else []
    faster = [one for one in lengths if one.comparison == "FASTER" and one.chunk <= most]
    best = max(faster, key=lambda one: one.log_ratio, default=None)
    surely = {one.tokens: one.comparison == "FASTER" for one in short}
    stepped = 0
    for count in sorted(arm.tokens for arm in steps if not arm.chunk):
        if not surely.get(count, False):
            break
        stepped = count
    chunk = best.chunk if best is not None else 0
    return PromptLengths(chunk=chunk, steps_up_to=min(stepped, (chunk or common) - 1), times=(*lengths, *short))


def _times(timing: Timing, arms: Sequence[Feeding], common: int) -> list[PromptTime]:
    """Return each arm that lived and is not the usual one beside that, which has lived too."""
    usual_at = {arm.tokens: at for at, arm in enumerate(arms) if arm.chunk == common}
    others = [(at, arm) for at, arm in enumerate(arms) if arm.chunk != common]
    return [
        _time(timing, arm, at, usual_at[arm.tokens], common, len(others))
        for at, arm in others
        if {at, usual_at[arm.tokens]} <= set(timing.live)
    ]


def described(found: PromptLengths, common: int) -> str:
    """Return one line on lengths for people, with the times that decided."""
    chunks = f"prompts run in chunks of {found.chunk or common}"
    last = found.steps_up_to
    steps = f", up to {last} {'token' if last == 1 else 'tokens'} in decode steps" if last else ""
    for one in found.deciding:
        times = f"{one.median_ns / 1e6:.2f} ms for {one.tokens}, {one.baseline_ns / 1e6:.2f} ms"
        if one.chunk:
            chunks += f" ({times} in chunks of {common})"
        else:
            steps += f" ({times} as a chunk)"
    return chunks + steps


def _time(timing: Timing, arm: Feeding, at: int, base: int, common: int, comparisons: int) -> PromptTime:
    claim = LONGER_CLAIM if arm.chunk > common else POLICY.claim
    found = contrast(timing, at, base, claim=claim, comparisons=comparisons)
    return PromptTime(
        tokens=arm.tokens,
        chunk=arm.chunk,
        median_ns=round(found.arm_ns),
        baseline_ns=round(found.baseline_ns),
        log_ratio=found.log_ratio,
        half_width=found.half_width,
        comparison=found.comparison,
    )


def _longer(prepared: PreparedModel, plan: Plan, layouts: Layouts) -> tuple[int, Chunk] | None:
    """Return the longest chunk that cache and memory hold, and its program; None where none has the same kernels."""
    chunks, common = chunks_of(prepared, plan.parts, layouts), usual(prepared.model.captured)
    usual_calls = _native(chunks.any_up_to(common).program)
    for tokens in reversed(LENGTHS):
        if common < tokens <= prepared.model.captured.info.context:
            made = chunks.any_up_to(tokens)
            if fits_beside(made.program, tokens) and _native(made.program) == usual_calls:
                return tokens, made
    return None


def _native(program: Program) -> int:
    return sum(isinstance(call, NativeCall) for call in program.calls)
