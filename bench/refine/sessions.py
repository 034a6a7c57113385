"""The sessions of a study, one after another: those that a ledger has are left alone, one that was cut goes on.

In: tasks, arms and seeds, limits, who answers, a folder. Out: a row for each session. Every arm has the same two
limits: a number of attempts, and a ceiling on tokens that is looked at before every question, also when recorded
answers are replayed, so that a replay ends where the session did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.advice.client import Unanswered
from agentcompile.agents import views
from agentcompile.agents.agents import Said
from agentcompile.agents.journal import Entry, SessionJournal, attempts_of, spent_of
from agentcompile.agents.principles import library
from agentcompile.agents.prompts import VERSION, RolePrompt
from agentcompile.agents.refining import Asks, Outcome, Settings, refine
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.advice import Usage
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import SHORT, digest

from ..harness.ledger import Ledger
from .gates import Gates, Opens, Untimed
from .result import Ended, Row, TaskFacts, attempts_in, counts

JOURNAL = "refine.jsonl"
_LINE = 400

Teams = Callable[[str, str], AbstractContextManager[Asks]]
"""Makes who answers: the arm, and the name of the session's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far each session goes."""

    attempts: int
    tokens: int
    """No question is asked once so many are spent; 0: no ceiling."""
    strategy: str


@dataclass(slots=True)
class Metered:
    """Who answers, until so many tokens are spent."""

    team: Asks
    most: int
    spent: int
    full: bool = False
    silence: Unanswered | None = None
    """Why the last question had no answer."""

    def ask(self, prompt: RolePrompt) -> Said | Unanswered:
        """Ask, unless the ceiling is reached."""
        self.full = 0 < self.most <= self.spent
        if self.full:
            text = f"a ceiling is reached: {self.spent} of the session's {self.most} tokens are spent"
            return Unanswered(reason=text, final=True)
        found = self.team.ask(prompt)
        self.silence = found if isinstance(found, Unanswered) else None
        if isinstance(found, Said):
            self.spent += found.usage.tokens
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs sessions; nothing of it is shared by two processes."""

    opens: Opens
    teams: Teams
    folder: Path
    """Where the trees of sessions lie, each in a folder of its own."""
    ledger: Ledger
    limits: Limits
    say: Callable[[str], None]
    goes_on: str
    """The command that goes on with the study."""
    replays: bool = False
    clock: Callable[[], float] = time.monotonic

    def run(
        self, tasks: Sequence[Path], arms: Sequence[str], seeds: Sequence[int]
    ) -> Iterator[tuple[TaskFacts, tuple[Row, ...]]]:
        """Yield each task with its rows; what the ledger has is not run again.

        Raises:
            AgentCompileError: a file is no sound task (usage), nobody answers (environment), or the machine fails.
        """
        for path in tasks:
            yield self._task(path, arms, seeds)

    def _task(self, path: Path, arms: Sequence[str], seeds: Sequence[int]) -> tuple[TaskFacts, tuple[Row, ...]]:
        text = text_digest(path)
        name, rows = f"{path.stem} {text[:SHORT]}", list[Row]()
        with ExitStack() as open:
            gates: Gates | None = None
            for seed in seeds:
                for arm in arms:
                    key = f"{name} {arm} {seed}"
                    if (known := self.ledger.known(key)) is not None:
                        rows.append(decode(Row, known, "row"))
                        continue
                    if gates is None:
                        self.say(f"{path.stem}: loads, and is timed in PyTorch")
                        gates = open.enter_context(self.opens(path, text))
                        self.ledger.keep(name, _plain(gates.facts))
                    row = self._session(path.stem, arm, seed, gates)
                    self.ledger.keep(key, _plain(row))
                    rows.append(row)
        facts = self.ledger.known(name)
        assert facts is not None, "it is kept before its first row"
        return decode(TaskFacts, facts, "task"), tuple(rows)

    def _session(self, task: str, arm: str, seed: int, gates: Gates) -> Row:
        """Run one session to its end, from where it was cut."""  # noqa: DOC501
        name, begin, limits = f"{task}-{arm}-{seed}", self.clock(), self.limits
        with SessionJournal(self.folder / name / JOURNAL) as journal, self.teams(arm, name) as team:
            record = _Told(journal, limits.attempts, lambda line: self.say(f"{name}  {line}"))
            asks = Metered(team, limits.tokens, spent_of(journal.entries).tokens)
            settings = Settings(
                arm=arm, strategy=limits.strategy, attempts=limits.attempts, seed=seed, device=gates.device
            )
            outcome = refine(gates.contract, gates.evaluator, asks, record, settings, principles=library())
        ended = _ended(outcome, asks, limits)
        if ended == "unanswered" and not self.replays:
            raise AgentCompileError(
                f"{name}: nobody answers: {clean(outcome.stopped, _LINE)}",
                exit_code=ExitCode.ENVIRONMENT,
                hint=f"go on with: {self.goes_on}",
            )
        row = _row(task, arm, seed, outcome, ended, gates)
        row = replace(row, seconds=round(self.clock() - begin, 1))
        self.say(f"{name}  {_about(row)}")
        return row


class _Told:
    """A journal that also says what became of each attempt."""

    def __init__(self, journal: SessionJournal, attempts: int, say: Callable[[str], None]) -> None:
        self._journal, self._attempts, self._say = journal, attempts, say
        if made := attempts_of(journal.entries):
            say(f"goes on after attempt {made}")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in their order."""
        return self._journal.entries

    def append(self, entry: Entry) -> None:
        """Keep an entry, and say what it is."""
        self._journal.append(entry)
        if entry.kind in ("node", "refused"):
            tokens = spent_of(self.entries).tokens
            self._say(clean(views.attempt_line(self.entries, self._attempts, tokens), _LINE))


def text_digest(path: Path) -> str:
    """Return the digest of a task's text.

    Raises:
        AgentCompileError: there is no such file, or it cannot be read (usage).
    """
    try:
        return digest("task/1", path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        hint = "name .py files in KernelBench's format: Model, get_inputs, get_init_inputs"
        raise AgentCompileError(f"{path}: {error.strerror}", hint=hint) from error


def terms(limits: Limits, models: Sequence[str], machine: str) -> tuple[str | int, ...]:
    """Return what a session's result depends on beside its task, arm and seed: rows under other terms do not count."""
    return ("refine/1", VERSION, limits.attempts, limits.tokens, limits.strategy, *models, machine)


def _ended(outcome: Outcome, asks: Metered, limits: Limits) -> Ended:
    if asks.full:
        return "tokens"
    if asks.silence is not None and asks.silence.reason == outcome.stopped:
        return "unanswered"
    return "attempts" if outcome.attempts >= limits.attempts else "floor"


def _row(task: str, arm: str, seed: int, outcome: Outcome, ended: Ended, gates: Gates) -> Row:
    best = views.best_admissible(outcome.nodes) or outcome.best
    beside = gates.again(best) if best is not None else ()
    untimed = beside if isinstance(beside, Untimed) else None
    if untimed is not None and untimed.wrong:
        best = None
    compiled, correct = counts(outcome.nodes)
    used: Usage = outcome.usage
    return Row(
        task=task,
        arm=arm,
        seed=seed,
        device=gates.device,
        attempts=attempts_in(outcome.entries),
        ended=ended,
        stopped=clean(outcome.stopped, _LINE),
        best=best.id if best is not None else 0,
        us=round(best.ns / 1e3, 3) if best is not None else 0.0,
        beside=beside if not isinstance(beside, Untimed) else (),
        untimed=clean(untimed.reason, _LINE) if untimed is not None else "",
        compiled=compiled,
        correct=correct,
        calls=used.calls,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        cents=round(used.microdollars / 1e4, 4),
        asked_s=round(used.seconds, 1),
    )


def _about(row: Row) -> str:
    made = f"{len(row.attempts)} attempts, {row.tokens} tokens, ended by {row.ended}"
    if row.least is None:
        return f"{made}: {row.untimed or 'no kernel passed every gate'}"
    one = row.least
    note = ", contended" if row.contended else ""
    return f"{made}: {one.speedup:.2f}× over {one.arm} ({one.low:.2f}–{one.high:.2f}{note})"


def _plain(value: Row | TaskFacts) -> dict[str, object]:
    found = encode(value)
    assert isinstance(found, dict)
    return dict(found)
