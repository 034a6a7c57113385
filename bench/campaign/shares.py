"""A campaign in shares: processes on CPUs of their own and on the GPUs in turn, whose results make one report.

In: a kind that has shares (`report.py`), a campaign of several shares. Out: the report of all their results. A share
that ends without a result is a failure in the report, and what it found until then is in its ledger. Each share is a
process of this module: its order comes as JSON on the command line, its result goes to a file, its progress to its
output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.options import visible_devices
from agentcompile.system.probe import cpus_at_once, default_threads

from .report import Campaign, Report, Say

LAST_WORDS = 5
"""The last lines of output of a dead share that its failure quotes."""
_ENDING_S = 30.0
"""The time in seconds that a share may take to remove its files when it is asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The work of one share.

    `cpus` are those that it and its child processes may use; `findings` is the file for its result; `partial` is the
    file of its ledger, empty for none, and stands in for `campaign.partial`, which is not set.
    """

    module: str
    campaign: Campaign
    cpus: tuple[int, ...]
    partial: str
    findings: str


def threads_of(jobs: int) -> int:
    """Return the threads of a kernel where `jobs` shares run: their part of the cores, but at least two.

    With two, ranks have others to wait for. Where a share has fewer CPUs than that, its threads take turns.
    """
    return max(2, default_threads() // jobs)


def cpus_of(share: int, shares: int, cpus: Sequence[int], at_once: int) -> tuple[int, ...]:
    """Return the share's own part of `cpus`, of which `at_once` may be busy.

    With more shares than CPUs, each has one, in turn.
    """
    each = max(1, min(at_once, len(cpus)) // shares)
    return tuple(cpus[(share * each + i) % len(cpus)] for i in range(each))


def gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; empty where there is none."""
    visible = visible_devices()
    if visible is not None:
        return tuple(name for name in visible.split(",") if name)
    import torch

    return tuple(str(index) for index in range(torch.cuda.device_count()))


def environment_of(share: int, devices: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a share, which sees one of `devices`, in turn, as its only one."""
    return {**environ, "CUDA_VISIBLE_DEVICES": devices[share % len(devices)]} if devices else dict(environ)


def side_by_side(kind: ModuleType, name: str, campaign: Campaign, say: Say) -> Report:
    """Run every share of `campaign` in a process of its own, and report what all of them found together."""
    cpus, at_once, devices, partial = sorted(os.sched_getaffinity(0)), cpus_at_once(), gpus(), campaign.partial
    stem = partial.name.removesuffix(".partial.jsonl") if partial is not None else ""
    with tempfile.TemporaryDirectory(prefix="shares") as folder:
        shares = [
            _Share(
                Order(
                    module=kind.__name__,
                    campaign=replace(campaign, share=index, partial=None),
                    cpus=cpus_of(index, campaign.shares, cpus, at_once),
                    partial=str(partial.with_name(f"{stem}.{index + 1}-of-{campaign.shares}.partial.jsonl").absolute())
                    if partial is not None
                    else "",
                    findings=str(Path(folder) / f"{index}.json"),
                ),
                environment_of(index, devices, os.environ),  # noqa: TID251
                say,
            )
            for index in range(campaign.shares)
        ]
        try:
            ends = [share.end(kind) for share in shares]
        finally:
            for share in shares:
                share.dismiss()
            for share in shares:
                share.close()
    found, died = [end for end in ends if not isinstance(end, str)], [end for end in ends if isinstance(end, str)]
    report: Report = kind.report(found) if found else Report(kind=name, tried=0, failures=(), figures={})
    figures = {"shares": campaign.shares, "threads of a share": campaign.threads, **report.figures}
    return replace(report, failures=(*died, *report.failures), figures=figures)


class _Share:
    """The process of one share; its lines of output go to `say` as they come."""

    def __init__(self, order: Order, environ: Mapping[str, str], say: Say) -> None:
        self._name, self._order, self._say = f"share {order.campaign.share + 1} of {order.campaign.shares}", order, say
        self._last = deque[str](maxlen=LAST_WORDS)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(encode(order))],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last.append(line.rstrip())
            self._say(f"{self._name}: {line.rstrip()}")

    def end(self, kind: ModuleType) -> Any:
        """Wait for the share to end; return its result, or a sentence when it died without one."""
        code = self._process.wait()
        self._listening.join(_ENDING_S)
        try:
            text = Path(self._order.findings).read_text(encoding="utf-8")
            if code == 0:
                return decode(kind.Findings, json.loads(text))
            why = ""
        except (OSError, ValueError, CodecError) as error:
            why = f", {type(error).__name__}: {error}" if code == 0 else ""
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"{self._name} ended {how}{why}: {' / '.join(self._last)[-600:]}"

    def dismiss(self) -> None:
        """Tell the share to end, if it still runs."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """Wait until the share has ended; kill it after `_ENDING_S`."""
        with self._process:
            try:
                self._process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._listening.join(_ENDING_S)


def _end_with_the_parent() -> None:
    """Interrupt this process when its parent has gone, so that it removes its files."""
    main = threading.main_thread()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background jobs

    def watch() -> None:
        while os.read(0, 1):  # not `sys.stdin`, whose lock would keep this process from ending
            pass
        if main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def main(text: str) -> int:
    """Do one share; return an exit code."""
    order: Order = decode(Order, json.loads(text))
    os.sched_setaffinity(0, order.cpus)
    _end_with_the_parent()
    kind = import_module(order.module)
    campaign = replace(order.campaign, partial=Path(order.partial) if order.partial else None)
    try:
        found = kind.find(campaign, lambda line: print(line, flush=True))
    except AgentCompileError as error:
        print(error.message, flush=True)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    Path(order.findings).write_text(json.dumps(encode(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
