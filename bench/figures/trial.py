"""One checkpoint's arms: started, checked against fp32, timed in rounds over several fresh processes each."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .rates import Round, agrees, run_round
from .serving import Arm, ArmFailed, foreign_command, own_command
from .times import Build
from .workload import Workload

LOAD_LIMIT_S = 2400.0
"""Compiling 28 layers takes PyTorch minutes on two cores; the second time its cache has them."""
TOPS = 5
LLAMA = "llama.cpp"
OURS = "agentcompile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all arms of a run share."""

    threads: int
    device: str
    """``cpu`` or ``cuda:0``."""
    rounds: int
    processes: int
    seed: int
    cache: Path
    """Holds what can be made again: compiled artefacts of PyTorch, GGUF files."""
    logs: Path
    llama_python: Path | None
    quiet: Callable[[], AbstractContextManager[object]]
    bandwidth: Callable[[], float]
    say: Callable[[str], None]

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """Of the device."""
        return "cpu" if self.device == "cpu" else "cuda"


@dataclass(slots=True)
class Outcome:
    """What became of every arm, and the rounds of those that lived."""

    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    load_s: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why an arm has no row, or not all of its rounds."""
    agreement: dict[str, str] = field(default_factory=dict)
    """By arm: empty when its tokens hold the mutual top-5 rule against fp32, else what is wrong."""
    rounds: list[Round] = field(default_factory=list)


def run_trial(names: Sequence[str], workload: Workload, build: Build | None, least_s: float, setup: Setup) -> Outcome:
    """Time `names` on `workload`; what fails becomes a reason, never an exception."""
    outcome = Outcome()
    reference = _reference(workload, setup, outcome)
    generator = random.Random(setup.seed)
    for process in range(setup.processes):
        arms: list[Arm] = []
        try:
            for name in names:
                if name not in outcome.reasons:
                    _start(name, workload, build, setup, outcome, arms)
            if process == 0 and reference is not None:
                arms = _check(arms, reference, workload, setup, outcome)
            for number in range(setup.rounds):
                timed, failed = run_round(
                    process,
                    arms,
                    workload,
                    least_s=least_s,
                    generator=generator,
                    quiet=setup.quiet,
                    bandwidth=setup.bandwidth,
                    beside=OURS,
                )
                outcome.rounds.append(timed)
                outcome.reasons |= failed
                arms = _without(arms, failed)
                setup.say(_line(workload, process, number, timed))
        finally:
            for arm in arms:
                arm.close()
    return outcome


def request_for(name: str, workload: Workload, build: Build | None, setup: Setup) -> dict[str, Any]:
    """What an arm's process must know to load."""
    return {
        "arm": name,
        "model": str(workload.model),
        "threads": setup.threads,
        "device": setup.device,
        "context": workload.context,
        "prompts": [len(workload.ids)],
        "gguf": str(setup.cache / f"{workload.name}.gguf"),
        "lock": str(build.lock) if build else "",
    }


def _start(name: str, workload: Workload, build: Build | None, setup: Setup, outcome: Outcome, arms: list[Arm]) -> None:
    if name == LLAMA and setup.llama_python is None:
        outcome.reasons[name] = "no interpreter with llama_cpp was named (--llama-python)"
        return
    if name == OURS and build is None:
        outcome.reasons[name] = "there is no lock"
        return
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(setup.cache / "inductor"),
        "OMP_NUM_THREADS": str(setup.threads),
        # A peer that asks the network for a newer checkpoint would wait for nothing.
        "HF_HUB_OFFLINE": "1",
    }
    if name == LLAMA and setup.llama_python is not None:
        command = foreign_command(setup.llama_python, "llama_engine", settings)
    else:
        command = own_command("engines", {**settings, **(build.settings if build and name == OURS else {})})
    arm = Arm(name, command, setup.logs / f"{workload.name}-{name}.log")
    arms.append(arm)
    try:
        took = arm.load(request_for(name, workload, build, setup), LOAD_LIMIT_S)
    except ArmFailed as failure:
        outcome.reasons[name] = str(failure)
        arms.remove(arm)
        arm.close()
        return
    outcome.facts[name] = arm.facts
    outcome.load_s.setdefault(name, []).append(took)
    setup.say(f"{workload.name}: {name} loaded in {took:.1f} s")


Tops = tuple[list[int], list[list[int]]]


def _reference(workload: Workload, setup: Setup, outcome: Outcome) -> Tops | None:
    """fp32's tokens and their nearest rivals, from a process that is gone before anything is timed."""
    arms: list[Arm] = []
    _start("fp32", workload, None, setup, outcome, arms)
    for arm in arms:
        try:
            return _tops(arm, workload)
        except ArmFailed as failure:
            outcome.reasons["fp32"] = str(failure)
        finally:
            arm.close()
    return None


def _check(arms: list[Arm], reference: Tops, workload: Workload, setup: Setup, outcome: Outcome) -> list[Arm]:
    failed: dict[str, str] = {}
    for arm in arms:
        try:
            wrong = agrees(reference, _tops(arm, workload))
        except ArmFailed as failure:
            failed[arm.name] = str(failure)
            continue
        outcome.agreement[arm.name] = wrong
        if wrong:
            setup.say(f"{workload.name}: {arm.name}: {wrong}")
    outcome.reasons |= failed
    return _without(arms, failed)


def _tops(arm: Arm, workload: Workload) -> Tops:
    reply = arm.ask({"do": "tops", "ids": workload.ids, "new": workload.new, "count": TOPS}, 600)
    return reply["tokens"], reply["tops"]


def _without(arms: list[Arm], failed: Mapping[str, str]) -> list[Arm]:
    for arm in arms:
        if arm.name in failed:
            arm.close()
    return [arm for arm in arms if arm.name not in failed]


def _line(workload: Workload, process: int, number: int, timed: Round) -> str:
    rates = "  ".join(f"{name} {1 / timed.token_s(name):.1f}" for name in sorted(timed.visits))
    read = f"read {timed.read_bytes_per_s / 1e9:.1f} GB/s"
    state = "  contended: dropped" if timed.contended else ""
    return f"{workload.name}: process {process + 1} round {number + 1}: {rates} tokens/s  {read}{state}"
