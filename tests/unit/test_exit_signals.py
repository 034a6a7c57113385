"""A signal ends a command wherever it finds the interpreter, also where an exception cannot be raised."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from agentcompile.cli.exits import guarded


class Held:
    """Its finaliser takes the signal: what is raised there goes nowhere."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_a_finaliser_swallows_still_ends_the_command(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    after = []

    def call() -> int:
        held = Held(number)
        del held
        after.append("went on")
        time.sleep(20)
        return 0

    before, begin = sys.unraisablehook, time.monotonic()
    assert guarded(call) == 128 + number
    assert time.monotonic() - begin < 10
    assert after == ["went on"]
    assert sys.unraisablehook is before
    assert "signal" in (said := capsys.readouterr().err) or "interrupted" in said
