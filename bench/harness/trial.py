"""One checkpoint's arms: they are started, checked against fp32, and timed in rounds over several fresh processes.

A trial continues from the outcome of an interrupted one: finished rounds and facts are kept, and a fresh process takes
the rounds that are missing.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from agentcompile.ir.codec import decode

from .looks import Looked
from .rates import LIMIT_S, Round, Tops, Visit, agrees, bearable_on, visit, wait_for_calm
from .serving import LOAD_LIMIT_S, ArmFailed, LiveArm, foreign_command, own_command
from .times import Build
from .twins import kind_of, slower
from .workload import Workload

LEAST_S = 0.3
"""The shortest time in seconds that a visit generates, unless a recipe says otherwise."""
TOPS = 5
CHECKED_TOKENS = 256
"""The most tokens of a generation that are compared with fp32's: the rule needs only the first difference."""
LLAMA = "llama.cpp"
NO_LLAMA = "no interpreter with llama_cpp was named (--llama-python)"
VLLM = "vllm"
_VLLM_SETTINGS = {
    # One process: its use of the processors then counts as the arm's, and SIGSTOP stops all of it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
OURS = "agentcompile"
FP32 = "fp32"
"""The reference that the arms' tokens are checked against; not an arm itself."""

Fact = str | int | float | bool | None


def vllm_lacks(device: str, python: Path | None) -> str:
    """Return why vLLM cannot run on this device with this interpreter (None: our own); empty when it can."""
    if device != "cuda:0":
        return f"vLLM runs on cuda:0, not on {device}: --target cuda:0, with CUDA_VISIBLE_DEVICES naming the GPU"
    if python is None and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed: name an interpreter that has it with --vllm-python"
    return ""


def command_of(name: str, build: Build | None, setup: Setup) -> list[str]:
    """Return the command that starts the process of an arm or of the reference."""
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(setup.cache / "inductor"),
        "OMP_NUM_THREADS": str(setup.threads),
        # Without it, a peer would wait for the network to look for a newer checkpoint.
        "HF_HUB_OFFLINE": "1",
    }
    kind = kind_of(name)
    if kind == LLAMA and setup.llama_python is not None:
        return foreign_command(setup.llama_python, "llama_engine", settings)
    if kind == VLLM:
        settings |= _VLLM_SETTINGS
        if setup.vllm_python is not None:
            return foreign_command(setup.vllm_python, "vllm_engine", settings)
        return own_command("harness.vllm_engine", settings)
    return own_command("harness.engines", {**settings, **(build.settings if build and kind == OURS else {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that all arms of a run share."""

    threads: int
    device: str
    """The device, ``cpu`` or ``cuda:0``."""
    rounds: int
    processes: int
    seed: int
    cache: Path
    """The folder of files that can be made again: PyTorch's compiled artefacts, GGUF files."""
    logs: Path
    llama_python: Path | None
    vllm_python: Path | None = None
    """The interpreter with vLLM; None for our own, if it has it."""
    quiet: Callable[[], AbstractContextManager[object]]
    bandwidth: Callable[[], float]
    say: Callable[[str], None]
    keep: Callable[[], None]
    """Called after every new result, which is in the outcome by then, to store it."""
    pause: Callable[[], None]
    """Called before anything that takes long; it raises when the run should stop."""
    command: Callable[[str, Build | None, Setup], list[str]] = command_of
    calm: Callable[[float], None] = wait_for_calm
    """Waits until other processes take at most the given share of all processors."""
    joules: Callable[[], float | None] = lambda: None
    """Returns the energy that the device has drawn until now, or None where it is not measured."""
    load_limit_s: float = LOAD_LIMIT_S
    """The time limit of loading, compiling included."""
    limit_s: float = LIMIT_S
    """The time limit of one request; twice as long for likeliest tokens and for looks at the step."""
    builds: Mapping[str, Build] = field(default_factory=dict)
    """Locks by name of arm, for arms with a lock of their own."""
    machine: str = ""
    """A short digest of this machine, whose rounds are not pooled with another machine's."""
    looks: bool = False
    """Whether every arm is asked once where its decode step spends its time."""

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """The kind of the device."""
        return "cpu" if self.device == "cpu" else "cuda"

    def steady(self, name: str) -> bool:
        """Return whether an arm must give the same tokens for a prompt every time: arms that run a lock must."""
        return kind_of(name) == OURS or name in self.builds


@dataclass(slots=True)
class Outcome:
    """The state of every arm, and the rounds of the live ones."""

    facts: dict[str, dict[str, Fact]] = field(default_factory=dict)
    load_s: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Load times of all processes that loaded alone, also of one that was stopped before its first round."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why an arm has no row, or not all of its rounds."""
    agreement: dict[str, str] = field(default_factory=dict)
    """By arm: empty when its tokens hold the mutual top-5 rule against fp32, else what is wrong."""
    reference: Tops | None = None
    looked: dict[str, Looked] = field(default_factory=dict)
    """By arm: where its decode step spends its time."""
    rounds: tuple[Round, ...] = ()
    """All rounds in the order they were timed, process after process."""

    def done(self, process: int) -> int:
        """Return the number of finished rounds of a process."""
        return sum(timed.process == process for timed in self.rounds)


class Part(NamedTuple):
    """One of the two ways in which a trial's processes generate from their prompt: greedily or with sampling."""

    workload: Workload
    outcome: Outcome


def run_trial(
    names: Sequence[str], workload: Workload, build: Build | None, least_s: float, setup: Setup, outcome: Outcome
) -> Outcome:
    """Call `run_trials` with one part, and return its outcome."""
    run_trials(names, [Part(workload=workload, outcome=outcome)], build, least_s, setup)
    return outcome


def run_trials(names: Sequence[str], parts: Sequence[Part], build: Build | None, least_s: float, setup: Setup) -> None:
    """Time the arms `names` on all of `parts` until every process has its rounds, continuing from their outcomes.

    All parts have one prompt and one context, so a loaded process serves them one after another; an arm that failed
    in one part is loaded again for the next. A failure becomes a reason, never an exception; what `setup.keep` and
    `setup.pause` raise ends the trial, with all processes ended and the outcomes as they were last kept.
    """
    drawn = next((part.workload.sampling for part in parts if part.workload.sampling), None)
    for process in range(setup.processes):
        left = [part for part in parts if part.outcome.done(process) < setup.rounds]
        arms: list[LiveArm] = []
        try:
            for part in left:
                setup.pause()
                _share(part, parts)
                reference = _reference(part.workload, setup, part.outcome)
                arms = _without(arms, part.outcome.reasons)
                running = {arm.name for arm in arms}
                wanted = [name for name in names if name not in part.outcome.reasons and name not in running]
                _start(wanted, replace(part.workload, sampling=drawn), build, setup, part.outcome, arms)
                arms.sort(key=lambda arm: names.index(arm.name))
                _share(part, parts)
                if reference is not None:
                    arms = _check(arms, reference, part.workload, setup, part.outcome)
                if setup.looks:
                    arms = _look(arms, part.workload, setup, part.outcome)
                arms = _rounds(process, arms, part, least_s, setup)
        finally:
            for arm in arms:
                arm.close()


def _share(part: Part, parts: Sequence[Part]) -> None:
    """Copy `part`'s facts to the other parts, and share references, agreements and load times: all have one prompt."""
    own = part.outcome
    for other in (one.outcome for one in parts):
        other.facts |= own.facts
        for to, of in ((own, other), (other, own)):
            to.reference = to.reference or of.reference
            to.agreement = {**of.agreement, **to.agreement}
            for name, took in of.load_s.items():
                to.load_s[name] = max(to.load_s.get(name, ()), took, key=len)


def _rounds(process: int, arms: list[LiveArm], part: Part, least_s: float, setup: Setup) -> list[LiveArm]:
    workload, outcome = part
    first = outcome.done(process)
    for number in range(first, setup.rounds):
        if number > first:  # arms that took minutes to load have a round before the run may stop
            setup.pause()
        # A generator for each round: where a run was interrupted does not change the order of later rounds.
        generator = random.Random(f"{setup.seed}/{process}/{number}")
        timed, failed = run_round(process, arms, workload, least_s, generator, setup)
        outcome.rounds += (timed,)
        outcome.reasons |= failed
        setup.keep()
        arms = _without(arms, failed)
        rates = "  ".join(f"{name} {1 / timed.token_s(name):.1f}" for name in sorted(timed.visits))
        read = f"read {timed.read_bytes_per_s / 1e9:.1f} GB/s" + ("  contended: dropped" if timed.contended else "")
        setup.say(f"{workload.name}: process {process + 1} round {number + 1}: {rates} tokens/s  {read}")
    return arms


def run_round(
    process: int, arms: Sequence[LiveArm], workload: Workload, least_s: float, generator: random.Random, setup: Setup
) -> tuple[Round, dict[str, str]]:
    """Time one round, and return it with the reasons of arms that failed, by name; these are not in the round.

    The bandwidth of a shared host changes within minutes, so it is measured right before each visit to our own arm, or
    once when that arm is absent.
    """
    order = list(arms)
    generator.shuffle(order)
    seen: dict[str, list[Visit]] = {arm.name: [] for arm in arms}
    failed: dict[str, str] = {}
    with setup.quiet():
        reads = [] if any(arm.name == OURS for arm in arms) else [setup.bandwidth()]
        for arm in [*order, *reversed(order)]:
            if arm.name in failed or any(one.long for one in seen[arm.name]):
                continue
            if arm.name == OURS:
                reads.append(setup.bandwidth())
            try:
                how: dict[str, Any] = {"limit_s": setup.limit_s, "bearable": bearable_on(setup.device)}
                steady = setup.steady(arm.name)
                seen[arm.name].append(visit(arm, workload, least_s, setup.calm, setup.joules, steady=steady, **how))
            except ArmFailed as failure:
                failed[arm.name] = str(failure)
                arm.close()  # a hanging arm would disturb the others for the rest of the round
    visits = {name: tuple(done) for name, done in seen.items() if name not in failed}
    return Round(process=process, visits=visits, read_bytes_per_s=fmean(reads), machine=setup.machine), failed


def request_for(name: str, workload: Workload, build: Build | None, setup: Setup) -> dict[str, Any]:
    """Return the first request to an arm's process, from which it loads."""
    build = setup.builds.get(name, build)
    return {
        "arm": kind_of(name),
        "slower": slower(name),
        "model": str(workload.model),
        "threads": setup.threads,
        "device": setup.device,
        "context": workload.context,
        "prompts": [len(workload.ids)],
        "sampling": workload.sampling,
        "weight_bytes": workload.weight_bytes,
        "gguf": str(setup.cache / f"{workload.model.name}.gguf"),
        "lock": str(build.lock) if build else "",
    }


def _start(
    names: Sequence[str], workload: Workload, build: Build | None, setup: Setup, outcome: Outcome, arms: list[LiveArm]
) -> None:
    """Start and load the arms `names`; loaded ones are added to `arms`, the others get a reason.

    They load one after another, so that their load times count; on a GPU, once each has loaded alone and its compiled
    code is cached, they load side by side, since a load takes minutes of one core.
    """
    chosen = list[str]()
    for name in names:
        if kind_of(name) == LLAMA and setup.llama_python is None:
            outcome.reasons[name] = NO_LLAMA
        elif kind_of(name) == OURS and setup.builds.get(name, build) is None:
            outcome.reasons[name] = "there is no lock"
        else:
            chosen.append(name)

    def begin(name: str) -> LiveArm:
        arms.append(
            LiveArm(
                name,
                setup.command(name, setup.builds.get(name, build), setup),
                setup.logs / f"{workload.name}-{name}.log",
            )
        )
        return arms[-1]

    def load(arm: LiveArm) -> float | ArmFailed:
        try:
            return arm.load(request_for(arm.name, workload, build, setup), setup.load_limit_s)
        except ArmFailed as failure:
            return failure

    together = setup.kind == "cuda" and all(name in outcome.load_s for name in chosen)
    # Processes start in this thread, as they die with their parent thread; timed loads start one at a time.
    begun = [begin(name) for name in chosen] if together else map(begin, chosen)
    with ThreadPoolExecutor(max(len(chosen), 1)) as loading:
        try:
            loads = (
                zip(begun, loading.map(load, begun), strict=True) if together else ((arm, load(arm)) for arm in begun)
            )
            for arm, took in loads:
                if isinstance(took, ArmFailed):
                    outcome.reasons[arm.name] = str(took)
                    arms.remove(arm)
                    arm.close()
                else:
                    outcome.facts[arm.name] = dict(arm.facts)
                    if not together:
                        outcome.load_s[arm.name] = (*outcome.load_s.get(arm.name, ()), took)
                    how = "beside the others" if together else f"in {took:.1f} s"
                    setup.say(f"{workload.name}: {arm.name} loaded {how}")
                setup.keep()
        except BaseException:
            for arm in arms:
                arm.close()  # so that leaving the pool waits for no load
            raise


def _reference(workload: Workload, setup: Setup, outcome: Outcome) -> Tops | None:
    """Return fp32's tokens and likeliest tokens, asked once of a process that ends before anything is timed."""
    if outcome.reference is not None or FP32 in outcome.reasons:
        return outcome.reference
    arms: list[LiveArm] = []
    try:
        _start([FP32], workload, None, setup, outcome, arms)
        for arm in arms:
            outcome.reference = _tops(arm, workload, setup)
    except ArmFailed as failure:
        outcome.reasons[FP32] = str(failure)
    finally:
        for arm in arms:
            arm.close()
    setup.keep()
    return outcome.reference


def _check(arms: list[LiveArm], reference: Tops, workload: Workload, setup: Setup, outcome: Outcome) -> list[LiveArm]:
    """Compare every arm's tokens with the reference's, once, as its processes give the same; return the live arms."""
    failed: dict[str, str] = {}
    for arm in arms:
        if arm.name in outcome.agreement:
            continue
        try:
            wrong = agrees(reference, _tops(arm, workload, setup))
        except ArmFailed as failure:
            failed[arm.name] = str(failure)
            continue
        outcome.agreement[arm.name] = wrong
        if wrong:
            setup.say(f"{workload.name}: {arm.name}: {wrong}")
    outcome.reasons |= failed
    setup.keep()
    return _without(arms, failed)


def _look(arms: list[LiveArm], workload: Workload, setup: Setup, outcome: Outcome) -> list[LiveArm]:
    """Ask every arm once where its step spends its time; one that fails at it has no rounds in this process only."""
    failed: dict[str, str] = {}
    for arm in arms:
        if arm.name not in outcome.looked:
            try:
                setup.calm(bearable_on(setup.device))
                reply = arm.ask({"do": "look", "ids": workload.ids, "new": workload.new}, 2 * setup.limit_s)
                outcome.looked[arm.name] = decode(Looked, reply)
            except ArmFailed as failure:
                failed[arm.name] = str(failure)
                outcome.looked[arm.name] = Looked(reason=str(failure))
                setup.say(f"{workload.name}: {arm.name} did not say where its time goes: {failure}")
    setup.keep()
    return _without(arms, failed)


def _tops(arm: LiveArm, workload: Workload, setup: Setup) -> Tops:
    new = min(workload.new, CHECKED_TOKENS)
    reply = arm.ask({"do": "tops", "ids": workload.ids, "new": new, "count": TOPS}, 2 * setup.limit_s)
    if not len(reply["tokens"]) == len(reply["tops"]) == new:
        raise ArmFailed(
            f"made {len(reply['tokens'])} tokens, {len(reply['tops'])} with alternatives, where {new} were asked for"
        )
    return tuple(reply["tokens"]), tuple(tuple(row) for row in reply["tops"])


def _without(arms: list[LiveArm], failed: Mapping[str, str]) -> list[LiveArm]:
    for arm in arms:
        if arm.name in failed:
            arm.close()
    return [arm for arm in arms if arm.name not in failed]
