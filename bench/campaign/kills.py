"""Compiles killed at random moments, again and again, each resumed to a lock.

An attempt is one kill. A run of the tiny model is started, then killed and resumed several times (the compiler, its
whole process group, one of its workers, or the compiler as the lock appears), then left to end. Every acknowledged
event must still be there afterwards, in order and once; no trial may be made twice; no process may be left; the lock
must be whole whenever it exists, and at the end it must generate the tokens of an undisturbed run with equal choices.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import agentcompile
from agentcompile.catalog import default_root
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import Machine, evaluator_of, this_machine
from agentcompile.events import TrialFinished
from agentcompile.ir.codec import decode
from agentcompile.ir.digest import digest_files
from agentcompile.ir.trial import Measured
from agentcompile.lockfile.files import read_lock
from agentcompile.options import resolve
from agentcompile.runs.session import RunDirectory
from agentcompile.system.probe import ceiling, ceiling_key
from agentcompile.tuning.trial_database import disturbed

from ..harness.ledger import Ledger
from ..models.presets import materialise
from .report import Campaign, Figures, Report, Say, fresh_environment

DEFAULT = 500
CONTEXT = 48
THREADS = 2
SECONDS = 10
"""Seconds of search: one candidate for each region, so that many kills fall into what comes after the search."""
KILLS = 12
"""The most kills of one run, before it is left to end."""
RULES, TIMED = ("admitted", "first"), 8
"""The rules by which runs choose; one run in `TIMED` uses the rule that times the step."""
WAYS = ("compiler", "group", "worker", "lock")
_LIMIT_S = 600.0
_TOKENS = "tokens: "
_GENERATE = f"""
import sys, agentcompile
model = agentcompile.load(sys.argv[1], model=sys.argv[2])
print("{_TOKENS}", *model.generate([1, 2, 3], max_new_tokens=24, ignore_eos=True).tokens)
"""


@dataclass(slots=True, kw_only=True)
class _Bench:
    """The place where runs are made; `tokens` holds what locks generate, by the hash of their content."""

    root: Path
    model: Path
    home: Path
    run_s: dict[str, float] = field(default_factory=dict)
    """The time in seconds of an undisturbed run, by the rule that it chooses by."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    def start(self, *arguments: object, code: str = "") -> subprocess.Popen[bytes]:
        """Start a process of the command line, or of the Python code `code`, in its own process group."""
        with (self.root / "said").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, *(("-c", code) if code else ("-m", "agentcompile")), *map(str, arguments)],
                env=fresh_environment(self.home), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip

    def end(self, *arguments: object, code: str = "") -> tuple[int, str]:
        """Run a process to its end; return its exit code (-1 after the time limit) and the end of its output."""
        process = self.start(*arguments, code=code)
        try:
            status = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            _end(process)
            status = -1
        return status, (self.root / "said").read_text(errors="replace")[-300:]

    @property
    def here(self) -> Machine:
        """The machine as the runs see it."""
        return this_machine(resolve({"home": str(self.home), "target": "cpu", "threads": THREADS}).options)

    def forget(self) -> None:
        """Delete the machine's trials and roofline ceilings, so that they are measured again."""
        here = self.here
        for path in (*self.home.rglob("*.sqlite*"), here.store.path(ceiling_key(here.target.digest), ".json")):
            path.unlink(missing_ok=True)

    def generated(self, lock: Path) -> str:
        """Return the tokens that a lock generates; each lock runs once.

        Raises:
            AgentCompileError: the lock generates no tokens.
        """
        known = read_lock(lock).content_hash
        if known not in self.tokens:
            status, said = self.end(lock, self.model, code=_GENERATE)
            if status or not said.startswith(_TOKENS):
                raise AgentCompileError(f"{lock} generates nothing: exit code {status}: {said}")
            self.tokens[known] = said
        return self.tokens[known]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The result of one run that was killed again and again."""

    number: int
    ways: tuple[str, ...]
    """What was killed, an entry for each kill."""
    wrong: tuple[str, ...]
    lock: str
    """The hash of its lock's content; empty when its tokens were not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of one share; `run_s` is the time in seconds of an undisturbed run with a warm store."""

    courses: tuple[Course, ...]
    run_s: float
    locks: tuple[str, ...]
    """The content hashes of the undisturbed runs' locks."""
    seed: int


def find(campaign: Campaign, say: Say) -> Findings:
    """Make the kills of one share, in a home and folder of its own.

    Results in the ledger are reused if the same program made them.
    """
    ledger = Ledger(campaign.partial, (_package_digest(), campaign.seed, "kills"))
    courses, kills = list[Course](), 0
    with tempfile.TemporaryDirectory(prefix="kills") as folder:
        root = Path(folder)
        bench = _Bench(root=root, model=materialise("tiny-qwen3", root / "model", dtype="fp32"), home=root / "home")
        quiet = {rule: root / f"quiet-{rule}.lock.toml" for rule in RULES}
        try:
            while kills < campaign.quota:
                number = len(courses) * campaign.shares + campaign.share
                told = ledger.known(str(number))
                if told is None and campaign.over:
                    break
                if told is None:
                    rule = rule_of(number)
                    if rule not in bench.run_s:
                        _undisturbed(bench, quiet[rule], rule)
                    course = _course(bench, quiet[rule], number, campaign.seed, min(KILLS, campaign.quota - kills))
                    ledger.keep(str(number), asdict(course))
                else:
                    course = decode(Course, told)
                courses.append(course)
                kills += len(course.ways)
                wrong = sum(len(one.wrong) for one in courses)
                say(f"{kills} kills, {len(courses)} runs to a lock, {wrong} failures")
            locks = tuple(read_lock(lock).content_hash for lock in quiet.values() if lock.exists())
        finally:  # stopping the campaign stops all processes that it started
            for pid in _processes(bench.home):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    run_s = max(bench.run_s.values(), default=0.0)
    return Findings(courses=tuple(courses), run_s=run_s, locks=locks, seed=campaign.seed)


def _package_digest() -> str:
    """Return the digest of the whole compiler with its templates; results under another digest do not count."""
    roots = (Path(agentcompile.__file__).resolve().parent, default_root())
    files = [path for root in roots for path in sorted(root.rglob("*")) if path.is_file()]
    return digest_files("package/1", [path for path in files if "__pycache__" not in path.parts])


def _undisturbed(bench: _Bench, lock: Path, rule: str) -> None:
    """Make the lock that those of killed runs are compared with, and time a run with a warm store.

    Raises:
        AgentCompileError: the undisturbed run fails.
    """
    directory = bench.root / rule
    code, said = bench.end(*_compile(bench, lock, directory, rule))
    if code:
        raise AgentCompileError(f"the undisturbed run ended with exit code {code}: {said}")
    begin_run = time.monotonic()
    shutil.rmtree(directory)
    bench.end(*_compile(bench, lock, directory, rule))
    bench.run_s[rule] = time.monotonic() - begin_run
    bench.generated(lock)
    here = bench.here
    with evaluator_of(here, 0) as evaluator:  # ceilings as a calm machine's: a busy one would measure them in every run
        ceiling(here.target, here.store, lambda: replace(evaluator.ceiling(), calm=True))


def rule_of(number: int) -> str:
    """Return the rule that a run chooses by; most runs do not time the step, so that more of them fit the time."""
    return RULES[number % TIMED != 0]


def report(found: Sequence[Findings]) -> Report:
    """Merge the results of all shares into one report, with the time of the longest undisturbed run."""
    courses = sorted((course for one in found for course in one.courses), key=lambda course: course.number)
    ways = Counter(way for course in courses for way in course.ways)
    locks = {lock for one in found for lock in one.locks} | {course.lock for course in courses if course.lock}
    figures: Figures = {
        "runs resumed to a lock": len(courses),
        **{f"runs that choose by {rule}": sum(rule_of(c.number) == rule for c in courses) for rule in RULES},
        "undisturbed run with a warm store, s": round(max(one.run_s for one in found), 1),
        "different locks": len(locks),
        **{f"kills of the {way}": ways[way] for way in WAYS},
    }
    failures = [f"run {course.number} (seed {found[0].seed}): {one}" for course in courses for one in course.wrong]
    return Report(kind="kills", tried=sum(ways.values()), failures=tuple(failures), figures=figures)


def _course(bench: _Bench, quiet: Path, number: int, seed: int, most: int) -> Course:
    """Kill one run up to `most` times, resume it to its lock, and compare that lock with the undisturbed one."""
    lock, directory, ways = bench.root / f"{number}.lock.toml", bench.root / f"run{number}", list[str]()
    wrong, asked = _killed(bench, lock, directory, rule_of(number), random.Random(f"{seed}/{number}"), most, ways), ""
    if lock.exists() and not any(_torn(lock)) and read_lock(lock).plan == read_lock(quiet).plan:
        asked = read_lock(lock).content_hash
        try:
            if bench.generated(lock) != bench.generated(quiet):
                wrong.append("it generates other tokens than the undisturbed one")
        except AgentCompileError as error:
            wrong.append(error.message)
    shutil.rmtree(directory, ignore_errors=True)
    return Course(number=number, ways=tuple(ways), wrong=tuple(wrong), lock=asked)


def _compile(bench: _Bench, lock: Path, directory: Path, rule: str) -> tuple[object, ...]:
    flags = ("--context", CONTEXT, "--threads", THREADS, "--budget", 1, "--seconds", SECONDS, "--choose", rule)
    return ("compile", bench.model, *flags, "--out", lock, "--run-dir", directory)


def _killed(
    bench: _Bench, lock: Path, directory: Path, rule: str, rng: random.Random, most: int, ways: list[str]
) -> list[str]:
    """Kill a run up to `most` times and resume it to its lock; return what is wrong with it.

    What was killed is appended to `ways`.
    """
    wrong, before = list[str](), b""
    if rng.random() < 0.5:
        bench.forget()
    for _ in range(most):
        begun = (directory / "options.json").exists() and (directory / "events.jsonl").exists()
        resume = ("compile", "--resume", "--run-dir", directory)
        if not begun:
            shutil.rmtree(directory, ignore_errors=True)
        process = bench.start(*(resume if begun else _compile(bench, lock, directory, rule)))
        way = rng.choice(WAYS)
        if not _kill(process, way, bench, lock, bench.run_s[rule], rng):
            _end(process)
            break
        ways.append(way)
        wrong += _left(bench)
        now = _whole_lines(directory)
        if not now.startswith(before):
            wrong.append(f"after kill {len(ways)} ({way}) acknowledged events are gone")
        before = now
        wrong += _torn(lock)
    code, said = 0, ""
    if not (directory / "events.jsonl").exists():
        shutil.rmtree(directory, ignore_errors=True)
        code, said = bench.end(*_compile(bench, lock, directory, rule))
    elif not lock.exists() or b'"kind":"run-finished"' not in _whole_lines(directory).replace(b'": "', b'":"'):
        code, said = bench.end("compile", "--resume", "--run-dir", directory)
    if code or not lock.exists():
        return [*wrong, f"it did not reach a lock: exit code {code}: {said}"]
    if not _whole_lines(directory).startswith(before):
        wrong.append("acknowledged events are gone from the run that reached its lock")
    return [*wrong, *_torn(lock), *_repeated(directory), *_left(bench)]


def _kill(
    process: subprocess.Popen[bytes], way: str, bench: _Bench, lock: Path, run_s: float, rng: random.Random
) -> bool:
    """Kill something at a random moment; return False when the process ended before that.

    Early moments are likelier, because a resumed run has less to do than one that begins.
    """
    until = time.monotonic() + rng.random() * rng.uniform(0.0, 1.1) * run_s
    end = time.monotonic() + (_LIMIT_S if way == "lock" else 0.0)
    while process.poll() is None and time.monotonic() < max(until, end):
        if way == "lock" and any(lock.parent.glob(f"*{lock.name}*")):
            break  # it is there, or its temporary file
        time.sleep(0.0005 if way == "lock" else 0.01)
    if process.poll() is not None:
        return False
    if way == "worker":
        workers = [pid for pid in _processes(bench.home) if os.getpgid(pid) != process.pid]
        if not workers:
            return False
        os.kill(rng.choice(workers), signal.SIGKILL)
        if rng.random() < 0.5:  # kill the compiler too, soon after, while it replaces the worker
            time.sleep(rng.uniform(0.0, 0.5))
        else:
            return process.wait(_LIMIT_S) is not None
    if way == "group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _processes(home: Path) -> tuple[int, ...]:
    """Return every process whose environment names `home`: the compiler, its workers, their compilers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"AGENTCOMPILE_HOME={home}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return tuple(found)


def _left(bench: _Bench) -> Iterator[str]:
    until = time.monotonic() + 15.0
    while (left := _processes(bench.home)) and time.monotonic() < until:
        time.sleep(0.01)
    if left:
        yield f"{len(left)} processes were left"


def _whole_lines(directory: Path) -> bytes:
    path = directory / "events.jsonl"
    return path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""


def _torn(lock: Path) -> Iterator[str]:
    if lock.exists():
        try:
            read_lock(lock)
        except AgentCompileError as error:
            yield f"a lock that cannot be read: {error.message}"


def _repeated(directory: Path) -> Iterator[str]:
    """Yield whether events were lost and whether trials were made twice, a sentence for each defect."""
    records = list(RunDirectory.open(directory).records())
    if [record.seq for record, _ in records] != list(range(len(records))):
        yield "the numbers of its events do not rise by one"
    asked = Counter[tuple[str, str, int]]()
    for record, _ in records:
        if isinstance(record.event, TrialFinished) and not disturbed(record.event.trial):
            trial = record.event.trial
            m = trial.verdict.measurement if isinstance(trial.verdict, Measured) else None
            asked[trial.candidate.id, trial.fidelity, m.rounds + m.dropped if m else 0] += 1
    if again := [key for key, times in asked.items() if times > 1]:
        yield f"{len(again)} trials were made again"
