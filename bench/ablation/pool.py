"""Runs simulations side by side, each in one of a few processes that hold the spaces.

A process that dies is an error, never a wait without end, and when the caller stops (also by Ctrl-C) all processes are
killed at once. A process whose parent is gone ends by itself.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from agentcompile.errors import AgentCompileError, ExitCode

from .peer import is_peer, simulate_peer
from .simulate import Curve, simulate
from .spaces import RecordedSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One search: an arm on a space with a seed."""

    space: str
    arm: str
    seed: int
    budget: int
    record: str = field(default="", compare=False)
    """The folder that keeps what a model answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """Why a cell has no curve."""

    message: str
    hint: str
    exit_code: int


def curve_of(cell: Cell, space: RecordedSpace) -> Curve:
    """Run one search: of one of our strategies, or of a peer.

    Raises:
        AgentCompileError: there is no such strategy or peer, or it misbehaves.
    """
    if is_peer(cell.arm):
        return simulate_peer(space, cell.arm, cell.budget, cell.seed)
    return simulate(space, cell.arm, cell.budget, cell.seed, record=cell.record)


def curves(cells: Sequence[Cell], spaces: Mapping[str, RecordedSpace], jobs: int) -> Iterator[Curve]:
    """Yield the curve of every cell as it is finished, by `jobs` processes; with one job, in this process.

    Raises:
        AgentCompileError: a strategy misbehaves, or a process died.
    """
    if jobs <= 1 or len(cells) <= 1:
        yield from (curve_of(cell, spaces[cell.space]) for cell in cells)
        return
    workers = list[_Worker]()
    left = list(reversed(cells))
    try:
        for _ in range(min(jobs, len(cells))):
            workers.append(_Worker(spaces))
            workers[-1].give(left.pop())
        busy = {worker.answers: worker for worker in workers}
        while busy:
            for source in wait(list(busy)):
                worker = busy[source]  # type: ignore[index] # only what was waited for comes back
                yield worker.take()
                if left:
                    worker.give(left.pop())
                else:
                    del busy[worker.answers]
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """A process, with a pipe for cells and one for curves: plain pipes, because `Pipe(duplex=True)` is a socket."""

    def __init__(self, spaces: Mapping[str, RecordedSpace]) -> None:
        # Not forked: threads of libraries that are loaded here would be missing there.
        context = multiprocessing.get_context("spawn")
        inbox, self._cells = context.Pipe(duplex=False)
        self.answers, outbox = context.Pipe(duplex=False)
        self._cell: Cell | None = None
        self._process: SpawnProcess = context.Process(target=_serve, args=(dict(spaces), inbox, outbox), daemon=True)
        try:
            self._process.start()
        except OSError as error:
            raise self._died() from error
        finally:
            # Only the process has these ends now, so that its death ends what is read here.
            inbox.close()
            outbox.close()

    def give(self, cell: Cell) -> None:
        """Send the next cell."""
        self._cell = cell
        try:
            self._cells.send(cell)
        except OSError as error:
            raise self._died() from error

    def take(self) -> Curve:
        """Return the curve of the cell that was sent.

        Raises:
            AgentCompileError: it has none, or the process died.
        """
        try:
            answer = self.answers.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(answer, _Lost):
            raise AgentCompileError(answer.message, exit_code=ExitCode(answer.exit_code), hint=answer.hint)
        assert isinstance(answer, Curve)
        return answer

    def _died(self) -> AgentCompileError:
        self._process.join(1)
        code = self._process.exitcode
        how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
        at = f" at {self._cell.arm} on {self._cell.space}, seed {self._cell.seed}" if self._cell is not None else ""
        hint = "the same command goes on from the file of --out; --jobs 1 needs the least memory"
        return AgentCompileError(f"a simulation process died{how}{at}", exit_code=ExitCode.ENVIRONMENT, hint=hint)

    def kill(self) -> None:
        """End the process at once."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self._cells.close()
        self.answers.close()


def _serve(spaces: Mapping[str, RecordedSpace], cells: Connection, answers: Connection) -> None:
    """Answer cells until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        while True:
            cell = cells.recv()
            answers.send(_answer(cell, spaces[cell.space]))
    except (EOFError, OSError):
        return


def _answer(cell: Cell, space: RecordedSpace) -> Curve | _Lost:
    try:
        return curve_of(cell, space)
    except AgentCompileError as error:
        return _Lost(message=error.message, hint=error.hint, exit_code=int(error.exit_code))
    except Exception as error:  # noqa: BLE001 # a strategy's fault must reach the parent with its place
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{cell.arm} on {cell.space}, seed {cell.seed}: {type(error).__name__}: {error}"
        hint = f"at {place.filename}:{place.lineno}; leave the strategy out with --strategies, or mend it"
        return _Lost(message=said, hint=hint, exit_code=int(ExitCode.INTERNAL))
