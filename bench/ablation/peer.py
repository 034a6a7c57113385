"""Kernel Tuner on recorded spaces: its strategies, in its own simulation mode, counted as ours are.

An arm `kernel-tuner:NAME` is the strategy that Kernel Tuner calls NAME, with its default settings. It searches the
points of the recorded space, failed ones too: these are legal for it, it gets a failure for them, and each counts as an
evaluation the first time that it is asked for. What it asks for outside the space it gets back as illegal, which is no
evaluation, as in Kernel Tuner itself. Its seconds are those of the strategy with its simulated runner; building its
search space is left out.

Kernel Tuner is optional (`agentcompile[ablation]`); tested with version 1.5.0.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.digest import Json
from agentcompile.ir.template import ParamValue

from .documents import NS_PER_MS, Failure
from .simulate import Curve
from .spaces import RecordedSpace

PREFIX = "kernel-tuner:"
_KERNEL, _ALONE = "kernel", "point"
_ERRORS = {"compile": "CompilationFailedConfig", "constraints": "InvalidConfig"}
"""Kernel Tuner's texts for failures; every other is `RuntimeFailedConfig`."""


def is_peer(arm: str) -> bool:
    """Return whether an arm is a strategy of a peer."""
    return arm.startswith(PREFIX)


def source_of(arm: str) -> str:
    """Return the identity of the code behind a peer's arm: its version.

    Raises:
        AgentCompileError: the arm names no known peer or no strategy of it (usage), or the peer is not installed
            (environment).
    """
    if not is_peer(arm):
        raise AgentCompileError(f"--peer {arm[:80]}: no such peer", hint=f"--peer {PREFIX}genetic_algorithm")
    names = sorted(_interface().strategy_map)
    if arm.removeprefix(PREFIX) not in names:
        raise AgentCompileError(f"--peer {arm[:80]}: no such strategy", hint=f"strategies: {', '.join(names)}")
    return f"kernel-tuner {metadata.version('kernel-tuner')}"


def simulate_peer(space: RecordedSpace, arm: str, budget: int, seed: int) -> Curve:
    """Run a strategy of Kernel Tuner on `space`, until `budget` evaluations or until it ends by itself.

    Raises:
        AgentCompileError: it is not installed, fails, or the space has parameters that it cannot take.
    """
    kernel_tuner = _interface()
    if len({candidate.template for candidate in space.candidates}) > 1:
        hint = "leave the space or the peer out"
        raise AgentCompileError(f"{space.name}: several templates, and Kernel Tuner has one kernel", hint=hint)
    spent = importlib.import_module("kernel_tuner.util").StopCriterionReached
    recording = Recording(space, kernel_tuner.strategy_map[arm.removeprefix(PREFIX)], spent)
    try:
        with tempfile.TemporaryDirectory() as folder, _quiet(), _seeded(seed):
            cache = Path(folder) / "cache.json"
            cache.write_text(json.dumps(recording.document()), encoding="utf-8")
            kernel_tuner.tune_kernel(
                _KERNEL, f"void {_KERNEL}() {{}}", 1, [], recording.domains, lang="C", cache=str(cache), quiet=True,
                simulation_mode=True, strategy=recording, strategy_options={"max_fevals": budget}, seed=seed,
                restrictions=recording.restrictions(),
            )  # fmt: skip
    except Exception as error:
        raise AgentCompileError(
            f"{arm} on {space.name}, seed {seed}: {type(error).__name__}: {str(error)[:300]}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="Kernel Tuner failed: leave this peer out, or give it another budget",
        ) from error
    return recording.curve(arm, budget, seed)


class Recording:
    """A strategy for Kernel Tuner that runs one of its own, and records what that evaluates, in its order."""

    def __init__(self, space: RecordedSpace, strategy: Any, spent: type[Exception]) -> None:
        self._space, self._strategy, self._spent = space, strategy, spent
        self._points = {
            tuple(value for _, value in candidate.params) or (0,): candidate.id for candidate in space.candidates
        }
        self._order = dict[str, None]()
        self._seconds = 0.0
        # A space of one point has no parameter that varies, and Kernel Tuner wants one.
        self.domains: dict[str, list[ParamValue]] = {domain.name: list(domain.values) for domain in space.domains} or {
            _ALONE: [0]
        }

    def document(self) -> dict[str, Json]:
        """Return the space as a cache of Kernel Tuner."""
        cache, domains = dict[str, Json](), dict[str, Json]()
        for values, id in self._points.items():
            entry: dict[str, Json] = {"time": _recorded(self._space.outcomes[id])}
            cache[",".join(map(str, values))] = entry | dict(zip(self.domains, values, strict=True))
        for name, domain in self.domains.items():
            domains[name] = [*domain]
        return {
            "device_name": "recorded", "kernel_name": _KERNEL, "problem_size": 1,
            "tune_params_keys": [*self.domains], "tune_params": domains, "cache": cache,
        }  # fmt: skip

    def restrictions(self) -> list[Any]:
        """Return what makes the points of the space the legal ones: Kernel Tuner starts from all combinations."""
        constraint = importlib.import_module("constraint")
        return [constraint.FunctionConstraint(lambda *values: values in self._points)]

    def tune(self, searchspace: Any, runner: Any, options: Any) -> list[Any]:
        """Run the strategy, as Kernel Tuner calls it; return nothing, because all that counts was recorded."""
        run = runner.run

        def recorded(elements: Any, *rest: Any) -> Any:
            asked = [tuple(element) for element in elements]
            results = run(asked, *rest)
            for values, result in zip(asked, results, strict=True):
                if result is not None and values in self._points:  # None: the budget was spent before
                    self._order.setdefault(self._points[values])
            return results

        runner.run = recorded
        begun = time.process_time()
        with contextlib.suppress(self._spent):  # some strategies let through that the budget is spent
            self._strategy.tune(searchspace, runner, options)
        self._seconds = time.process_time() - begun
        return []

    def curve(self, arm: str, budget: int, seed: int) -> Curve:
        """Return the curve of what was recorded."""
        steps, failed = list[tuple[int, float]](), 0
        for at, id in enumerate(list(self._order)[:budget], 1):
            outcome = self._space.outcomes[id]
            if isinstance(outcome, Failure):
                failed += 1
            elif not steps or outcome < steps[-1][1]:
                steps.append((at, outcome))
        done = min(len(self._order), budget)
        whole = done == len(self._points)
        return Curve(
            space=self._space.name, strategy=arm, seed=seed, budget=budget, evaluations=done, failed=failed,
            optimum_ns=self._space.best_ns, steps=tuple(steps), seconds=self._seconds,
            ended="budget" if done == budget else "space" if whole else "strategy",
        )  # fmt: skip


def _recorded(outcome: float | Failure) -> Json:
    """Return a time in ms, or Kernel Tuner's text for a failure."""
    if isinstance(outcome, Failure):
        return _ERRORS.get(outcome.kind, "RuntimeFailedConfig")
    return outcome / NS_PER_MS


def _interface() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("kernel_tuner.interface")
    except ImportError as error:
        hint = "pip install 'agentcompile[ablation]', or leave --peer out"
        raise AgentCompileError(
            f"--peer {PREFIX}…: Kernel Tuner is not installed: {error}", exit_code=ExitCode.ENVIRONMENT, hint=hint
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Kernel Tuner prints and warns of away from the report."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed both global generators, which Kernel Tuner's strategies draw from, and put their states back."""
    import numpy as np

    ours, numpys = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
