"""Times whole steps through the evaluator, under one policy that makes all numbers of a run comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from agentcompile.build import Binary, compile
from agentcompile.capture.cached import Model
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import Machine, residency
from agentcompile.evaluation.time_budget import LEAST_S, Left, any_time
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Source
from agentcompile.ir.trial import Death
from agentcompile.measure import POLICY, Timing
from agentcompile.validate import POLICY as TOLERANCES
from agentcompile.worker.pool import Limits
from agentcompile.worker.protocol import Feeding, TimePrompts

POSITION = 256
"""Cache position at which whole steps are timed: the middle of a short chat."""
_LIMIT_S = 60.0
LATE = 20.0
"""The longest that timing prompts may take, as a multiple of what it was expected to: other processes may run."""
_OF_STEPS = 0.6  # the share of the time left that a step may take, because the chunk is timed after it


def position_of(regime: Regime) -> int:
    """Return where a regime's steps are timed: `POSITION` if its contexts include it, else their geometric middle."""
    first, last = regime.context
    return POSITION if first <= POSITION < last else min(math.isqrt(first * last), last - 1)


def policy_digest(residency: Residency) -> str:
    """Return the identity of tolerances, timing protocol and residency; only results under equal ones compare."""
    return POLICY.digest(tolerances=TOLERANCES, residency=residency)


def binaries(here: Machine, sources: Mapping[str, Source], wanted: Sequence[str]) -> dict[str, Binary]:
    """Build the sources that `wanted` names by digest, or find their binaries in the store.

    Raises:
        AgentCompileError: a source that was built before no longer builds (environment).
    """
    found = {}
    for source in wanted:
        made = compile(sources[source], here.store, toolchain=here.toolchain, limit_s=_LIMIT_S)
        if not isinstance(made, Binary):
            text = f"source {source[:12]} no longer builds with {here.toolchain.name}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="compile again on this machine")
        found[source] = made
    return found


class StepClock:
    """Times programs of one model beside one another, in worker processes that hold its real weights."""

    def __init__(
        self,
        here: Machine,
        evaluator: WorkerEvaluator,
        model: Model,
        sources: Callable[[], Mapping[str, Source]],
        steering: Steering | None = None,
        left: Left = any_time,
    ) -> None:
        """Create a clock; `sources` returns the kernels that the programs may call, by digest.

        Nothing is timed while `steering` is paused. When no seconds are `left`, a timing takes no more rounds than it
        needs, in one process: it is the starting of processes that a busy machine makes long.
        """
        self._steering, self._left = steering or Steering(), left
        self._here, self._evaluator, self._model, self._sources = here, evaluator, model, sources
        self._residency: Residency = residency(model.captured.decode, here.target)

    @property
    def known(self) -> Mapping[str, Timing]:
        """The timings of an earlier process of the run, by the digest of what was timed."""
        return self._steering.earlier.steps

    def __call__(
        self,
        programs: Sequence[tuple[str, Program]],
        *,
        at: Regime,
        rounds: int,
        processes: int,
        claim: float,
        seed: int,
        trusted: bool = True,
    ) -> Timing | Death:
        """Time labelled programs in interleaved rounds, at the position that `position_of` gives for the regime."""
        self._steering.point()
        calls = [call for _, program in programs for call in program.calls]
        wanted = sorted({call.source for call in calls if isinstance(call, NativeCall)})
        built = binaries(self._here, self._sources(), wanted)
        left = self._left() * (_OF_STEPS if at.phase == "decode" else 1.0)
        return self._evaluator.steps(
            programs,
            checkpoint=self._model.captured.checkpoint,
            constants=self._model.constants,
            binaries={source: binary.path for source, binary in built.items()},
            position=position_of(at),
            rounds=rounds,
            processes=processes if left > 0 else 1,
            claim=claim,
            residency=self._residency,
            seed=seed,
            trusted=trusted,
            seconds=max(left, LEAST_S),
        )

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
        """Time whole prompts on a CPU in interleaved rounds of one process, each of `arms` in its own way.

        `prefill` has programs with the longest chunk that each serves, shortest first; `sources` are kernels that no
        trial made. After `seconds` no round begins that an interval does not need.

        Raises:
            AgentCompileError: a kernel does not build any more (environment).
        """
        self._steering.point()
        programs = [decode, *(program for _, program in prefill)]
        wanted = {call.source for program in programs for call in program.calls if isinstance(call, NativeCall)}
        built = binaries(self._here, {**self._sources(), **sources}, sorted(wanted))
        captured = self._model.captured
        nbytes = sum(file.stat().st_size for file in captured.checkpoint.iterdir() if file.is_file())
        request = TimePrompts(
            info=captured.info,
            decode=decode,
            prefill=tuple(prefill),
            arms=tuple(arms),
            checkpoint=str(captured.checkpoint),
            constants=str(self._model.constants),
            binaries=tuple((source, binary.path) for source, binary in built.items()),
            rounds=rounds,
            claim=claim,
            policy=POLICY,
            seed=seed,
            seconds=seconds,
        )
        limit_s = Limits().measure(3 * nbytes) + LATE * seconds  # a weight may be resident in several layouts
        labels = [f"{arm.tokens} by {arm.chunk or 'steps'}" for arm in arms]
        return self._evaluator.prompts(labels, request, self._residency, limit_s)
