"""The gates in front of written kernels, as tests of cheats use them: reasons in one form, and what is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentcompile.build import nvrtc_toolchain
from agentcompile.evaluation.jobs import Evaluator
from agentcompile.evaluation.machine import Machine
from agentcompile.ir.attempt import AttemptEvaluator, Evaluated, Written, WrittenLanguage
from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Rejected, TimedOut
from agentcompile.refine.calling import manifest as manifest_of
from agentcompile.refine.contract import contract_of as region_contract_of
from agentcompile.refine.evaluating import RegionEvaluator
from agentcompile.refine.incumbent import Bar
from agentcompile.system.store import Store
from agentcompile.tasks.contract import contract_of, region_of
from agentcompile.tasks.evaluating import TaskEvaluator
from agentcompile.tasks.kernel import Workshop
from agentcompile.tasks.load import LoadedTask, TaskLimits
from agentcompile.tasks.open import gated
from agentcompile.tasks.timing import EAGER, Baselines
from agentcompile.tasks.wire import Loaded, Signature, TensorFact
from tests.adversarial.cheats import Cheat, Gate, text
from tests.cpu import tasked
from tests.cpu.written import CEILING, MANIFEST, SLOW, contract, task
from tests.unit.fakes import target

TASK = tasked.SCALED.replace("torch.randn(6, 50)", "torch.rand(6, 50)")
"""A rectifier and a factor that is 1 at first; its own inputs are positive and at most 1."""
LIMITS = TaskLimits(launch_s=4.0, memory_bytes=4 << 30)
H100 = target(
    kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, cache_bytes=(228 << 10, 50 << 20),
    line_bytes=128, toolchain="nvrtc 13.0",
)  # fmt: skip


def reason(evaluated: Evaluated) -> tuple[str, str]:
    """The kind of a verdict, and everything that it says of its reason."""
    verdict = evaluated.verdict
    match verdict:
        case Rejected(findings=findings):
            words = " ".join(f"{one.rule}: {one.text}" for one in findings)
        case BuildFailed(log=log):
            words = log
        case Incorrect(report=report):
            words = " ".join(f"{one.name}: {one.detail}" for one in report.checks if not one.ok)
        case Crashed(stage=stage, detail=detail):
            words = f"{stage}: {detail}"
        case TimedOut(stage=stage):
            words = stage
        case _:
            words = ""
    return verdict.kind, words


class Unused:
    """An evaluator that nobody may ask: what is refused before it costs no build and no process."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked to {name}")


class Untimed:
    """A real evaluator that builds and validates; its times are made up, each kernel twice as fast as PyTorch."""

    def __init__(self, real: Evaluator) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def ceiling(self) -> Any:
        """Return more than any machine has."""
        return CEILING

    def time(self, region: Any, arms: Any, *, residency: Any, **_: Any) -> Timing:
        """Return times that are alike in every round."""
        each = tuple((1_000_000, 1_000_000) if at else (2_000_000, 2_000_000) for at in range(len(arms)))
        rounds = tuple(Round(intervals_ns=each, waited_ns=(0,) * len(arms)) for _ in range(5))
        samples = Samples(batch=10, clock=Clock(quantum_ns=50, doubling=(2.0,) * len(arms)), rounds=rounds)
        live = tuple(range(len(arms)))
        return Timing(arms=tuple(map(str, live)), live=live, processes=(samples,), residency=residency)


def region_evaluator(evaluator: Any, *, confirms: bool = False) -> AttemptEvaluator:
    """The gates of a matrix-vector product of 32 rows of 64 numbers."""
    asked = task()
    return RegionEvaluator(asked, contract(asked), evaluator, Bar(times=SLOW), confirms=confirms)


@dataclass(frozen=True, kw_only=True)
class Gates:
    """The gates of one kind, and the manifest to which a kernel is written."""

    gate: Gate
    evaluator: AttemptEvaluator
    manifest: str

    def written(self, cheat: Cheat) -> Written:
        """The template of a cheat."""
        return Written(manifest=cheat.over(self.manifest), kernel=cheat.kernel(self.gate))

    def evaluated(self, cheat: Cheat) -> tuple[str, str]:
        """What becomes of a cheat, and why."""
        return reason(self.evaluator.evaluate(self.written(cheat)))

    def kernel(self, code: str) -> Evaluated:
        """What becomes of a kernel."""
        return self.evaluator.evaluate(Written(manifest=self.manifest, kernel=text(self.gate, code)))


def region_gates(evaluator: Any, *, confirms: bool = False) -> Gates:
    """The gates of a region."""
    return Gates(gate="region", evaluator=region_evaluator(evaluator, confirms=confirms), manifest=MANIFEST)


def _fact(name: str, role: Any, shape: tuple[int, ...]) -> TensorFact:
    return TensorFact(name=name, role=role, dtype="fp32", shape=shape)


def device_region_gates(language: WrittenLanguage) -> Gates:
    """The gates of the same region on a GPU up to the build, which nobody may ask for."""
    asked = task(target=H100)
    bar, contract = Bar(times=SLOW), region_contract_of(asked, language, CEILING, SLOW)
    evaluator = RegionEvaluator(asked, contract, Unused(), bar, confirms=False)
    return Gates(gate="region", evaluator=evaluator, manifest=str(manifest_of(asked.region, language)["example"]))


def device_task_gates(folder: Path, language: WrittenLanguage) -> Gates:
    """The gates of a task on a GPU up to the build: no GPU is needed."""
    store = Store(folder / "store")
    here = Machine(target=H100, toolchain=nvrtc_toolchain(), store=store, hashes=folder / "hashes.json")
    return task_gates_without_a_process(folder, here=here, language=language)


def task_gates_without_a_process(
    folder: Path, limits: TaskLimits = LIMITS, *, here: Machine | None = None, language: WrittenLanguage = "cpp"
) -> Gates:
    """The gates of a task up to the build: what a process would say of the file is given."""
    tensors = (_fact("in0", "input", (6, 50)), _fact("weight", "parameter", (50,)), _fact("out0", "output", (6, 50)))
    loaded = Loaded(text=TASK, signatures=(Signature(tensors=tensors),), flops=600, touched_bytes=2600, wide=True)
    held: Any = SimpleNamespace(told=loaded, kind="task-cheated", path=folder / "cheated.py", limits=limits)
    here = here or tasked.here(folder)
    asked = contract_of(held, language, here.target, CEILING, SLOW, None)
    shop = Workshop(
        target=here.target,
        toolchain=here.toolchain,
        store=here.store,
        executor=folder,
        ceiling=CEILING,
        attendants=folder,
        device="cpu" if language == "cpp" else "cuda:0",
    )
    bar = Baselines(name=EAGER, us={EAGER: SLOW.reference_ns / 1e3}, failed={})
    evaluator = TaskEvaluator(held, asked, bar, shop, seed=3, confirms=False)
    return Gates(gate="task", evaluator=evaluator, manifest=str(manifest_of(region_of(held), language)["example"]))


@contextmanager
def task_gates(folder: Path) -> Iterator[Gates]:
    """The gates of a task, with its process."""
    path = folder / "cheated.py"
    path.write_text(TASK)
    with LoadedTask(path, threads=2, seed=7, limits=LIMITS) as loaded:
        made = gated(tasked.here(folder), loaded, CEILING, 7, compiled=(), confirms=False)
        yield Gates(gate="task", evaluator=made.evaluator, manifest=tasked.manifest(made))
