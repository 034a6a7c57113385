"""`agentcompile bench spaces MODEL --kind KIND --out FOLDER`: record the whole space of regions of a model.

In: a checkpoint or preset, and the kinds of its regions. Every candidate of the largest region of each kind is built,
validated and timed on this machine, the promising ones twice. Out: in FOLDER, for each region, NAME.json.gz (a T4
results document) for `agentcompile ablate --space`, and NAME.question.json.gz, what an adviser is asked about it.
FOLDER/NAME.partial.jsonl keeps what is done, so that the same command goes on after a stop; it is removed at the end.
A region whose files are there is not recorded again. The exit code is 7 when a region is not finished.
With --twice every region is recorded a second time, in FOLDER/second, by the same processes in another order.
--build-only builds the candidates on all cores that it may use and times none; the recording itself may then be bound
to a few cores (`taskset`) and finds every binary.
--card FOLDER prints the table of a data card instead, --agreement FIRST SECOND how far two recordings agree.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from agentcompile.cli.paragraphs import Paragraphs
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.jobs import Prepared
from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.events import silent
from agentcompile.interchange import t4
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.trial import Measured
from agentcompile.options import resolve
from agentcompile.system.plain_files import write_atomically
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.prepared import PreparedModel, prepare
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import evaluation_digest

from ..harness.ledger import Ledger
from ..harness.numbers import seconds
from ..harness.records import nameless, revision, say_next
from .agreement import agreement
from .card import card
from .measuring import Recorder, Whole
from .questions import ENDING, RecordedQuestion, question_bytes
from .spaces import read_space


def run(arguments: Sequence[str]) -> int:
    """Record the spaces that are asked for; return an exit code.

    Raises:
        AgentCompileError: a kind has no region in the model (usage), or the machine fails (environment).
    """
    asked = _parser().parse_args(list(arguments))
    if asked.card is not None:
        print("\n".join(card(asked.card)))
        return ExitCode.OK
    if asked.agreement:
        print(agreement(*[read_space(path) for path in asked.agreement]))
        return ExitCode.OK
    if not (asked.model and asked.kind and asked.out):
        hint = "agentcompile bench spaces MODEL --kind KIND --out FOLDER"
        raise AgentCompileError("bench spaces: needs MODEL, --kind and --out, or --card FOLDER", hint=hint)
    flags = {"model": asked.model, "context": asked.context, "threads": asked.threads, "target": asked.target}
    options = resolve({name: value for name, value in flags.items() if value}).options
    here, begun = this_machine(options), time.monotonic()
    asked.out.mkdir(parents=True, exist_ok=True)
    left_over = False
    with evaluator_of(here, asked.seed) as evaluator:
        prepared = prepare(options, here, evaluator, silent)
        tasks = [task_of(prepared, kind) for kind in asked.kind]
        for task in tasks:
            name = f"{Path(asked.model.removeprefix('preset:')).name}-{task.region.kind}-{asked.name}"
            ready = dict[str, Prepared]()
            for folder, seed in _recordings(asked.out, asked.seed, twice=asked.twice):
                if (folder / f"{name}.json.gz").exists():
                    _say(f"{folder / name}: recorded already; remove its files to record it again")
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                part = folder / f"{name}.partial.jsonl"
                recorder = Recorder(
                    task=task,
                    evaluator=evaluator,
                    jobs=JobMaker(here.target),
                    ledger=Ledger(part, ("record/1", evaluation_digest(), task.region.id)),
                    say=_say,
                    over=_limit(asked.seconds, begun),
                    seed=seed,
                    ready=ready,
                )
                if asked.build_only:
                    recorder.build(list(task.space))
                    break
                whole = recorder.record()
                if whole is None:
                    _say(f"{folder / name}: time is up, or nothing is correct; the same command goes on")
                    left_over = True
                    break
                write(folder, name, prepared, task, whole, arguments)
                part.unlink(missing_ok=True)
    if left_over:
        return ExitCode.UNDECIDED
    if not asked.build_only:
        say_next(f"agentcompile ablate --space {quote(str(asked.out))}/NAME.json.gz --out study.json")
    return ExitCode.OK


def _recordings(folder: Path, seed: int, *, twice: bool) -> Sequence[tuple[Path, int]]:
    """Return the folders that a space is recorded in, each with the seed of its order."""
    return [(folder, seed), (folder / "second", seed + 1)][: 2 if twice else 1]


def task_of(prepared: PreparedModel, kind: str) -> TuneTask:
    """Return the task of a kind whose region has the largest share of the decode step at the longest context.

    Raises:
        AgentCompileError: the model has no such region (usage); the hint names the kinds that it has.
    """
    last = max(task.region.regime.context for task in prepared.tasks)
    own = [task for task in prepared.tasks if task.region.kind == kind]
    # A region that does not depend on the context has the first regime's.
    longest = [task for task in own if task.region.regime.context == last] or own
    if not longest:
        kinds = ", ".join(dict.fromkeys(task.region.kind for task in prepared.tasks))
        raise AgentCompileError(f"--kind: {kind!r} is no kind of region of this model", hint=f"kinds: {kinds}")
    return max(longest, key=lambda task: task.region.cost.bytes * len(task.region.sites))


def write(folder: Path, name: str, prepared: PreparedModel, task: TuneTask, whole: Whole, words: Sequence[str]) -> None:
    """Write the space and the question about it."""
    document = t4.results(task.region.name, whole.tried, prepared.here.target)
    about: dict[str, Json] = {
        "command": " ".join(["agentcompile bench spaces", *nameless(words)]),
        **revision(),
        "machine": encode(prepared.here.target),
        "ceiling": encode(prepared.ceiling),
        "residency": task.residency,
        "floor_ms": task.floor_ns / 1e6,
        "anchor": whole.anchor,
        "anchor_ms": whole.anchor_ns / 1e6,
        "timed_again": whole.again,
    }
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    document["metadata"] = {**metadata, "recording": about}
    info = prepared.model.captured.info
    question = RecordedQuestion(
        model=f"{name}: {info.architecture}, context {info.context}",
        region=task.region,
        target=prepared.here.target,
        ceiling=prepared.ceiling,
        residency=task.residency,
        templates=task.space.templates,
    )
    write_atomically(folder / f"{name}{ENDING}", question_bytes(question))
    write_atomically(folder / f"{name}.json.gz", gzip.compress(canonical(document), mtime=0))
    verdicts = [one.trial.verdict for one in whole.tried]
    times = [verdict.measurement.median_ns for verdict in verdicts if isinstance(verdict, Measured)]
    near = sum(ns <= 1.05 * min(times) for ns in times)
    _say(
        f"{folder / name}.json.gz: {len(whole.tried)} points, {len(whole.tried) - len(times)} failed, "
        f"{near} within 5 % of the best"
    )


def _limit(limit_s: float, begun: float) -> Callable[[], bool]:
    return lambda: bool(limit_s) and time.monotonic() - begun > limit_s


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentcompile bench spaces", description=__doc__, formatter_class=Paragraphs)
    add = parser.add_argument
    add("model", nargs="?", default="", metavar="MODEL", help="a checkpoint directory, or preset:NAME")
    add("--kind", action="append", default=[], metavar="KIND", help="a kind of region; may be repeated")
    add("--out", type=Path, default=None, metavar="FOLDER", help="where the files go")
    add("--card", type=Path, default=None, metavar="FOLDER", help="print the table of the spaces in FOLDER instead")
    add("--agreement", type=Path, nargs=2, default=[], metavar="SPACE", help="say how far two recordings agree instead")
    add("--twice", action="store_true", help="record each space a second time, in FOLDER/second")
    add("--build-only", action="store_true", help="build the candidates on all cores, and time none")
    add("--name", default="here", help="a word for this machine, the end of each file's name (here)")
    add("--target", default="", help="cpu, or cuda:N; the default is that of `compile`")
    add("--threads", default="", help="worker threads; 0: one a physical core")
    add("--context", default="", help="maximum context length in tokens")
    add("--seconds", type=seconds, default=0.0, help="no batch begins after so long; 0: no limit")
    add("--seed", type=int, default=0, help="of the order and of the inputs")
    return parser
