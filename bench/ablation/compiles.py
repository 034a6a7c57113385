"""The result of real compiles under several strategies and advisers: what was reached, and what it cost. Pure."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentcompile.events import AdviserReplied, Event, SearchProgress
from agentcompile.ir.advice import Usage
from agentcompile.ir.target import Target
from agentcompile.measure.policy import POLICY

from ..harness.means import mean_of

FORMAT = 1
KIND = "agentcompile compiles"
MARKS = (25, 50, 100, 200)
"""Numbers of trials after which the best step is looked at."""
_MOST_LOG = math.log(sys.float_info.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to search: a strategy with its settings, and an adviser."""

    strategy: str
    adviser: str

    @property
    def name(self) -> str:
        """``STRATEGY@ADVISER``."""
        return f"{self.strategy}@{self.adviser}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The best step that was known when so many candidates had a verdict."""

    trials: int
    elapsed_s: float
    step_ns: int
    """An estimate from the regions' times while the regions are searched, then a time measured in the step."""
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compile in folders of its own."""

    model: str
    arm: str
    seed: int
    seconds: float
    """Wall time of the whole command."""
    searched_s: float
    """The part of it that `--seconds` bounds: search and step tuning."""
    trials: int
    """Distinct candidates that have a verdict."""
    progress: tuple[Progress, ...]
    used: Usage
    """What the adviser used; nothing where no model was asked."""
    step_ns: float | None = None
    """The median time of the final step, beside the other arms of the same model and seed; None before it is timed."""
    log_ratio: float | None = None
    """ln(time of the first arm ÷ time) in the rounds that both were timed in; above 0 is faster; None without both."""
    half_width: float | None = None
    """Half the width of the 95 % interval of `log_ratio`."""
    failure: str = ""
    """Why there is no lock, or why its step could not be timed; empty when all went well."""
    overhead_s: float | None = None
    """The part of search and step tuning in which the compiler waited for no build, validation or timing; None where it
    was not measured."""
    overhead_share: float | None = None
    """The same as a share of `seconds`."""

    def step_after(self, trials: int) -> float:
        """Return the best step in ns that was known after so many trials; infinity before the first."""
        known = [one.step_ns for one in self.progress if one.trials <= trials and one.step_ns > 0]
        return min(known, default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiles:
    """The content of one result file."""

    kind: str = KIND
    format: int = FORMAT
    command: str
    version: str
    revision: str
    changed_since: bool
    machine: Target
    seconds: int
    """What each search and its step tuning may take; 0: no limit."""
    trials: int
    """What each search may try; 0: no limit but the default."""
    arms: tuple[str, ...]
    compiles: tuple[Compile, ...] = ()

    def of(self, model: str, arm: str) -> list[Compile]:
        """Return the compiles of a model under an arm, by seed."""
        return [one for one in self.compiles if (one.model, one.arm) == (model, arm)]

    @property
    def models(self) -> tuple[str, ...]:
        """The models, in the order in which they were compiled."""
        return tuple(dict.fromkeys(one.model for one in self.compiles))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An arm's compiles of one model, over seeds."""

    model: str
    arm: str
    compiles: int
    failed: int
    step_ns: float
    """The median of the final steps."""
    speedup: float
    """The geometric mean of the speed-ups over the first arm in the same rounds; 1 for the first arm itself."""
    low: float
    """The lower end of its 95 % interval over seeds; that of the rounds where there is one seed."""
    high: float
    trials: float
    """The median number of trials."""
    seconds: float
    """The median wall time of a compile."""
    calls: int
    """The requests to a language model, of all compiles together."""
    tokens: int
    after: tuple[float, ...]
    """The median best step in ns after each of `MARKS` trials; infinity where there was none yet."""
    overhead_share: float | None = None
    """The median share of a compile that its search's overhead took; None where no compile measured it."""
    break_even: float = math.nan
    """The tokens after which the first arm, whose compile was shorter, is overtaken by this arm's faster step: 0 where
    its compile was no longer, infinity where its step is no faster, NaN for the first arm and where it is not known."""


class TimedStep(NamedTuple):
    """The decode step of a lock, timed beside those of other arms."""

    ns: float
    """The median."""
    log_ratio: float | None
    """ln(time of the first arm ÷ time); None where the first arm has no step."""
    half_width: float | None
    """Half the width of the ratio's 95 % interval."""


def progress_of(events: Iterable[Event]) -> tuple[tuple[Progress, ...], Usage]:
    """Return the progress that a run's events report, without reports that say nothing new, and what advice used."""
    found: list[Progress] = []
    used = Usage()
    for event in events:
        if isinstance(event, AdviserReplied):
            used += event.used
        if isinstance(event, SearchProgress):
            step = Progress(
                trials=event.candidates, elapsed_s=event.elapsed_s, step_ns=event.step_ns, measured=event.measured
            )
            if not found or (found[-1].trials, found[-1].step_ns) != (step.trials, step.step_ns):
                found.append(step)
    return tuple(found), used


def overhead_of(events: Iterable[Event], seconds: float) -> tuple[float | None, float | None]:
    """Return the overhead of a run's search in s, and as a share of the `seconds` that its compile took in all."""
    told = [event.overhead_s for event in events if isinstance(event, SearchProgress)]
    found = told[-1] if told else None
    return found, None if found is None else round(found / seconds, 4)


def standings(result: Compiles) -> list[Standing]:
    """Return the standing of every arm on every model that has a compile of it."""
    rows: list[Standing] = []
    for model in result.models:
        group = [_standing(model, arm, found) for arm in result.arms if (found := result.of(model, arm))]
        first = group[0]
        rows += [first, *(replace(one, break_even=_break_even(one, first)) for one in group[1:])]
    return rows


def _break_even(one: Standing, first: Standing) -> float:
    """Return the tokens after which what `one` gains in each step has paid for its longer compile."""
    if math.isnan(one.speedup) or math.isnan(first.step_ns):
        return math.nan
    gained_ns = first.step_ns * (1 - 1 / one.speedup) if one.speedup > 1 else 0.0
    return max(0.0, one.seconds - first.seconds) * 1e9 / gained_ns if gained_ns else math.inf


def _standing(model: str, arm: str, found: Sequence[Compile]) -> Standing:
    steps = [one.step_ns for one in found if one.step_ns is not None]
    shares = [one.overhead_share for one in found if one.overhead_share is not None]
    speedup, low, high = _speedup(found)
    return Standing(
        model=model,
        arm=arm,
        compiles=len(found),
        failed=len(found) - len(steps),
        step_ns=statistics.median(steps) if steps else math.nan,
        speedup=speedup,
        low=low,
        high=high,
        trials=statistics.median(one.trials for one in found),
        seconds=statistics.median(one.seconds for one in found),
        calls=sum(one.used.calls for one in found),
        tokens=sum(one.used.tokens for one in found),
        after=tuple(statistics.median(one.step_after(mark) for one in found) for mark in MARKS),
        overhead_share=statistics.median(shares) if shares else None,
    )


def _speedup(found: Sequence[Compile]) -> tuple[float, float, float]:
    ratios = [(one.log_ratio, one.half_width or 0.0) for one in found if one.log_ratio is not None]
    if not ratios:
        return math.nan, math.nan, math.nan
    mean, half = ratios[0]
    if len(ratios) > 1:
        over_seeds = mean_of([log for log, _ in ratios])
        mean, half = over_seeds.value, over_seeds.half_width(POLICY.alpha)
    return _ratio(mean), _ratio(mean - half), _ratio(mean + half)


def _ratio(log: float) -> float:
    """Return e to the power of `log`; infinity where that is no float, as after rounds of which too few count."""
    return math.exp(log) if log < _MOST_LOG else math.inf


def timed_beside(group: Sequence[Compile], steps: Mapping[str, TimedStep]) -> list[Compile]:
    """Return a group with what `steps` has of each arm; an arm without a step keeps its failure, or gets one."""
    found = []
    for one in group:
        step = steps.get(one.arm)
        if step is None:
            found.append(replace(one, failure=one.failure or "its step could not be timed"))
        else:
            found.append(replace(one, step_ns=step.ns, log_ratio=step.log_ratio, half_width=step.half_width))
    return found
