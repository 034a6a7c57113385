"""How a process ends: every exception becomes an exit code and at most two lines, in this one place."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from agentcompile.cli import stdout
from agentcompile.cli.render import Screen, complain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Event, RunFailed, clean
from agentcompile.ir.cleaning import redacted
from agentcompile.ir.digest import Json
from agentcompile.runs.session import Journal

_AGAIN_S = 0.05
"""Seconds after which the interpreter has left the code that swallowed a signal."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; code that cleans up after Ctrl-C cleans up after this too."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stopped(Exception):
    """A signal ended a run in good order; `hint` says how to resume it."""

    def __init__(self, number: int, hint: str) -> None:
        super().__init__(number)
        self.number = number
        self.hint = hint


class WaitsError(AgentCompileError):
    """A run ended in good order and waits for a person (undecided, exit 7): nothing is wrong."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message, exit_code=ExitCode.UNDECIDED, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How a command that failed ends; the label says whether that is an error."""

    code: int
    message: str
    hint: str = ""
    label: str = "error"
    facts: Mapping[str, Json] = field(default_factory=dict)


def guarded(call: Callable[[], int], *, json: bool = False) -> int:
    """Run a command and return its exit code; nothing is raised, and no traceback is shown.

    With `json` a failure is one JSON value on stdout as well: "error" (for a run that waits, "review") with message,
    hint and exit code, beside the facts of the exception.
    """
    try:
        with _signals():
            return int(call())
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - a short message instead of a traceback
        if isinstance(error, BrokenPipeError):
            stdout.forget()
            return 128 + signal.SIGPIPE
        if isinstance(error, OSError) and (failure := stdout.unwritten()):
            return failure
        ending = _ending(error)
    complain(ending.message, ending.hint, label=ending.label)
    if json:
        failed(ending.message, ending.hint, ending.code, label=ending.label, facts=ending.facts)
    return ending.code


def failed(
    message: str, hint: str, code: int, *, label: str = "error", facts: Mapping[str, Json] | None = None
) -> None:
    """Write to stdout, for programs, why a command failed; a stdout that takes nothing is ignored.

    It is one line, so that it ends the lines of a verb that writes one for each change.
    """
    told: dict[str, Json] = {"message": clean(message, lines=True), "hint": clean(hint, lines=True), "exit_code": code}
    with suppress(OSError, ValueError, AgentCompileError):
        Screen.standard("json").line({**(facts or {}), label: told})


def _ending(error: BaseException) -> _Ending:
    match error:
        case AgentCompileError(message=message, hint=hint):
            label = "review" if isinstance(error, WaitsError) else "error"
            return _Ending(code=int(error.exit_code), message=message, hint=hint, label=label, facts=error.facts)
        case Stopped(number=number, hint=hint):
            return _Ending(code=128 + number, message=_stopped(number), hint=hint)
        case KeyboardInterrupt():
            return _Ending(code=128 + _number(error), message=_stopped(_number(error)))
        case _:
            hint = "this is a fault of agentcompile; please report it"
            return _Ending(code=ExitCode.INTERNAL, message=_internal(error), hint=hint)


def _stopped(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "stopped by a signal"


@contextmanager
def recorded(
    journal: Journal, emit: Callable[[Event], None], resume: str, secrets: tuple[str, ...] = ()
) -> Iterator[None]:
    """Record how a run ends: an error or a signal becomes the run's last event. A context manager around the run.

    `resume` is the command that continues it; `secrets` are removed from all messages. An unexpected exception leaves
    its traceback in the run directory.

    Raises:
        AgentCompileError: the run raised one, or an unexpected exception (exit 1).
        Stopped: a signal ended the run.
        BrokenPipeError: the reader of stdout is gone; passed through unchanged.
    """
    goes_on = f"nothing is lost; resume with: {resume}"
    try:
        yield
    except AgentCompileError as error:
        if error.exit_code is ExitCode.UNDECIDED:  # the run stays open: its last event says what it waits for
            raise
        said, hint = redacted(error.message, secrets), redacted(error.hint, secrets)
        _last_word(emit, RunFailed(exit_code=int(error.exit_code), message=said, hint=hint))
        raise AgentCompileError(said, exit_code=error.exit_code, hint=hint) from error
    except KeyboardInterrupt as error:
        number = _number(error)
        _last_word(emit, RunFailed(exit_code=128 + number, message="stopped by a signal", hint=goes_on))
        raise Stopped(number, goes_on) from None
    except BrokenPipeError:
        raise
    except Exception as error:
        report = journal.run.crash_report(redacted("".join(traceback.format_exception(error)), secrets))
        said = redacted(_internal(error), secrets)
        hint = f"this is a fault of agentcompile; a report is in {report}" if report else "please report it"
        _last_word(emit, RunFailed(exit_code=ExitCode.INTERNAL, message=said, hint=hint))
        raise AgentCompileError(said, exit_code=ExitCode.INTERNAL, hint=hint) from error


def _last_word(emit: Callable[[Event], None], event: Event) -> None:
    """Emit how a run ended; an error is ignored, because a full disk was already reported."""
    try:
        emit(event)
    except (AgentCompileError, OSError):
        return


def _internal(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"internal error: {type(error).__name__}: {error}{where}"


def _number(error: KeyboardInterrupt) -> int:
    return error.number if isinstance(error, Terminated) else int(signal.SIGINT)


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process as Ctrl-C does: in order, with the run's last event written.

    A signal may arrive while the interpreter is in a finaliser or in a callback from another language, for instance
    during the import of a library. What the handler raises there goes to `sys.unraisablehook` and is lost, so it is
    raised again a moment later.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Terminated(number)

    def unraisable(lost: sys.UnraisableHookArgs, /) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            again = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, _number(lost.exc_value)))
            again.daemon = True
            again.start()
        else:
            hook(lost)

    hook, main = sys.unraisablehook, threading.get_ident()
    try:
        old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not in the main thread: a test, or a program that calls us
        yield
        return
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in old.items():
            signal.signal(number, handler)
