"""One built kernel of a task in a process of its own, and the course of its checks.

In: a task, a source, its binary. Out: a report with every check, or how the process ended. What is expected is known to
the task's process alone, and that one looks at the files which both map.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentcompile.backends import backend_of
from agentcompile.build import Toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Source, Template
from agentcompile.ir.timing import Interval
from agentcompile.ir.trial import Crashed, Disturbed, NumericReport, Stage, TimedOut
from agentcompile.sandbox import device_nodes
from agentcompile.system.store import Store
from agentcompile.tasks.arena import ArenaOwner, Side, close_all
from agentcompile.tasks.inputs import TaskCase, cases
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.process import Child
from agentcompile.tasks.stirring import Stirred, sizes_of, stirred
from agentcompile.tasks.tally import TaskTally
from agentcompile.tasks.wire import (
    ArenaFile,
    Attach,
    Bind,
    BindDevice,
    Done,
    Draw,
    Examine,
    Examined,
    KernelRequest,
    LaunchKernel,
    Order,
    Pattern,
    ProcessFault,
    Reply,
    Scratch,
    Spoil,
    Timed,
    TimeKernel,
)
from agentcompile.worker.process import Expired, Lost

MANY = 200
"""The launches in a row after which a result is checked once more."""
MANY_S = 2.0
"""The most seconds that these take."""
_SIDES: tuple[Side, ...] = ("after", "before")
_PASSES: tuple[tuple[Pattern, Order], ...] = (
    ("low", "threads"), ("nan", "forwards"), ("high", "backwards"), ("nan", "threads"),
)  # fmt: skip
"""What each case is launched with: another pattern in the outputs each time, the ranks at once and one by one."""
Death = Crashed | TimedOut | Disturbed


class KernelDeath(Exception):
    """The process of a kernel ended, or was killed at a limit."""

    def __init__(self, verdict: Death) -> None:
        super().__init__(verdict.kind)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What building and running kernels needs of a machine."""

    target: Target
    toolchain: Toolchain
    store: Store
    executor: Path | None
    """The executor of launch lists, built; None where a device has launches of its own."""
    ceiling: Ceiling
    attendants: Path
    """Kernels of our own in the process of a written one, built (`attending`)."""
    fenced: bool = True
    """Whether compilers and kernels run behind a fence (`agentcompile.sandbox`)."""
    device: str = "cpu"
    """PyTorch's name of the device on which kernels run."""

    @property
    def own_memory(self) -> bool:
        """Whether kernels run on a device with memory of its own, which no code of a kernel leaves."""
        return backend_of(self.device).own_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A kernel that was built for a task at one shape."""

    template: Template
    region: Region
    source: Source
    binary: Path
    shape: int

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """The workspaces."""
        return tuple(
            Scratch(name=name, dtype=dtype, elements=max(count, 1), zeroed=zeroed)
            for name, dtype, count, zeroed in self.source.workspaces
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of every buffer."""
        ports = {port.name: port.numel * ITEM_BYTES[port.dtype] for port in self.region.ports}
        return ports | {one.name: one.elements * ITEM_BYTES[one.dtype] for one in self.scratch}


class KernelProcess:
    """A kernel bound to arenas in a process of its own, which ends with the block."""

    def __init__(self, task: LoadedTask, built: Built, shop: Workshop, *, sets: int, timed: bool) -> None:
        """Start it; where it is `timed`, parameters are those of the first arena everywhere, as in PyTorch's arm.

        Raises:
            KernelDeath: the process ends when the kernel is loaded.
        """
        self._task, self.built, self._shop = task, built, shop
        self.on_device, self._given = shop.own_memory, False
        """Whether code of the kernel runs on a device alone, so that this process and its clock are ours."""
        self.changed, self.took_ns = "", 0
        """What the kernel left changed in its process, and what the last timed launches took of a core, or there."""
        self._stage: Stage = "measure" if timed else "validate"
        signature = task.told.signatures[built.shape]
        self.stirred = stirred(signature, built.scratch, whole=not task.told.nudges) if timed else Stirred()
        """What is changed between timed launches."""
        sizes = built.sizes | (sizes_of(signature, self.stirred) if timed else {})
        self._owners = [ArenaOwner(sizes, _side(at, timed=timed, on_device=self.on_device)) for at in range(sets)]
        try:
            files = tuple(owner.file for owner in self._owners)
            deterministic = built.template.deterministic
            scratch = built.scratch
            attach = Attach(arenas=files, scratch=scratch, shape=built.shape, deterministic=deterministic)
            task.ask(attach, task.limits.check_s)
            self._child = Child("device" if self.on_device else "kernel")
        except BaseException:
            close_all(self._owners)
            raise
        shared = [one.name for one in built.region.ports if one.role == "weight"] if timed else []
        bind = self._binding(files, tuple(shared))
        try:
            self._ask(bind, task.limits.bind_s)
        except BaseException:
            self.close()
            raise

    def _binding(self, files: tuple[ArenaFile, ...], shared: tuple[str, ...]) -> Bind | BindDevice:
        built, shop = self.built, self._shop
        if self.on_device:
            return BindDevice(
                binary=str(built.binary),
                source=built.source,
                region=built.region,
                arch=shop.target.arch,
                device=shop.device,
                nodes=device_nodes(),
                arenas=files,
                shared=shared,
                fenced=shop.fenced,
                attendants=str(shop.attendants),
                stirred=self.stirred.elements,
                swapped=self.stirred.swapped,
            )
        assert shop.executor is not None, "kernels for a host need one"
        return Bind(
            binary=str(built.binary),
            executor=str(shop.executor),
            threads=shop.target.threads,
            launches=tuple((launch.entry, launch.arguments) for launch in built.source.launches),
            arenas=files,
            shared=shared,
            memory_bytes=self._task.limits.memory_bytes,
            fenced=shop.fenced,
            attendants=str(shop.attendants),
            stirred=self.stirred.elements,
            swapped=self.stirred.swapped,
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    def launch(self, arena: int, *, repeat: int = 1, order: Order = "threads") -> None:
        """Launch it; `KernelDeath` when that hangs or crashes."""
        self._ask(LaunchKernel(arena=arena, repeat=repeat, order=order), self._task.limits.launch_s)

    def interval(self, batch: int, *, stirred: bool = False, launched: bool = True, shown: bool = False) -> Interval:
        """Time a batch, with buffers changed before each launch where `stirred`; `KernelDeath` as in `launch`.

        Without `launched` these changes are made alone. `shown`: its results are looked at. A device's copies of the
        inputs stay as they are otherwise.
        """
        request = TimeKernel(batch=batch, stirred=stirred, launched=launched, shown=shown or not self._given)
        told = self._ask(request, self._task.limits.measure_s)
        self._given = True
        assert isinstance(told, Timed)
        self.took_ns = told.took_ns
        return told.interval

    def close(self) -> None:
        """End the process and free the arenas; calling it again does nothing."""
        self._child.close()
        close_all(self._owners)

    def _ask(self, request: KernelRequest, limit_s: float) -> Reply:
        outcome, stage = self._child.ask(request, limit_s=limit_s), self._stage
        match outcome:
            case Lost(outside=True):
                raise KernelDeath(Disturbed(stage=stage, detail=outcome.detail))
            case Lost():
                raise KernelDeath(Crashed(stage=stage, signal=outcome.signal, detail=outcome.detail))
            case Expired():
                raise KernelDeath(TimedOut(stage=stage, limit_s=outcome.limit_s))
            case ProcessFault(environment=True):
                hint = "agentcompile doctor says what devices are there; end what else uses this one"
                raise AgentCompileError(outcome.error, exit_code=ExitCode.ENVIRONMENT, hint=hint)
            case ProcessFault():
                raise KernelDeath(Crashed(stage=stage, signal=0, detail=outcome.error))
            case Done() | Timed():
                self.changed = self.changed or outcome.changed
                return outcome
            case _:
                return outcome


def _side(at: int, *, timed: bool, on_device: bool) -> Side:
    """Return where the arena number `at` ends next to nothing; what is timed on a device begins at whole lines."""
    return _SIDES[int(on_device) if timed else at % 2]


@contextmanager
def running(
    task: LoadedTask, built: Built, shop: Workshop, *, sets: int, timed: bool = False
) -> Iterator[KernelProcess]:
    """Run a kernel in a process of its own while the block is open.

    Raises:
        KernelDeath: the process ends when the kernel is loaded.
    """
    process = KernelProcess(task, built, shop, sets=sets, timed=timed)
    try:
        yield process
    finally:
        process.close()


def validate(task: LoadedTask, built: Built, shop: Workshop, seed: int) -> NumericReport | Death:
    """Check a kernel on every case of its shape, until one fails."""
    tally, planned, done = TaskTally(), list(cases(seed, built.shape, task.told.scales, nudges=task.told.nudges)), 0
    try:
        with running(task, built, shop, sets=2) as kernel:
            while done < len(planned) and tally.ok:
                _checked(task, kernel, planned[done], tally)
                done += 1
            if tally.ok:
                _many(task, kernel, planned[-1], tally)
    except KernelDeath as death:
        return death.verdict
    return tally.report(cases=done, repeats=len(_PASSES))


def _checked(task: LoadedTask, kernel: KernelProcess, case: TaskCase, tally: TaskTally) -> None:
    draw_into(task, case)
    for pattern, order in _PASSES:
        task.ask(Spoil(arena=case.arena, pattern=pattern), task.limits.check_s)
        kernel.launch(case.arena, order=order)
        examine(task, case.arena, tally)
        still(kernel, tally)
        if not tally.ok:
            return


def _many(task: LoadedTask, kernel: KernelProcess, case: TaskCase, tally: TaskTally) -> None:
    """Launch it many times in a row, and check the last result."""
    begin = time.monotonic()
    kernel.launch(case.arena)
    least = min(MANY_S, task.limits.launch_s / 4)
    repeat = max(2, min(MANY, int(least / max(time.monotonic() - begin, 1e-6))))
    task.ask(Spoil(arena=case.arena, pattern="nan"), task.limits.check_s)
    kernel.launch(case.arena, repeat=repeat)
    examine(task, case.arena, tally)


def still(kernel: KernelProcess, tally: TaskTally) -> None:
    """Add whether a kernel left its process as it was."""
    tally.claim("process-state", not kernel.changed, f"left changed: {kernel.changed}")


def draw_into(task: LoadedTask, case: TaskCase) -> None:
    """Draw a case into its arena."""
    draw = Draw(
        arena=case.arena,
        label=case.label,
        seed=case.seed,
        scale=case.scale,
        randomised=case.randomised,
        nudged=case.nudged,
    )
    task.ask(draw, task.limits.check_s)


def examine(task: LoadedTask, arena: int, tally: TaskTally) -> None:
    """Add what the task's process sees in an arena."""
    told = task.ask(Examine(arena=arena), task.limits.check_s)
    assert isinstance(told, Examined)
    for check in told.checks:
        tally.add(check.name, check.measured, check.allowed, check.detail)
    tally.error_ratio = max(tally.error_ratio, told.error_ratio)
