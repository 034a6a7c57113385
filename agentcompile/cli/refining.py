"""The verb `refine`: agents write kernels for a region or a task, in a session that can be killed and goes on."""

from __future__ import annotations

import fcntl
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import get_args

from agentcompile import __version__, arguments
from agentcompile.agents import views
from agentcompile.agents.arms import models_of, replayed
from agentcompile.agents.folder import JOURNAL, Asked, SessionFolder, Subject, sessions_in
from agentcompile.agents.journal import Entry, SessionJournal, attempts_of, spent_of
from agentcompile.agents.policies import policy_of
from agentcompile.agents.principles import Principle, learnt, library, library_text, merged
from agentcompile.agents.refining import Outcome, Settings
from agentcompile.agents.refining import refine as run_session
from agentcompile.agents.sessions import resume_command
from agentcompile.agents.steering import SteeredSession
from agentcompile.agents.teams import Listener, secrets_of, team_of, temperatures_of
from agentcompile.agents.tree import Node
from agentcompile.cli.exits import recorded
from agentcompile.cli.flags import SESSION
from agentcompile.cli.flow import REAL, Flow, OpenRegion
from agentcompile.cli.render import Reporter, Screen, tee
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, RunFinished, RunStarted, silent
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import WrittenLanguage
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import SHORT
from agentcompile.options import Options, resolve
from agentcompile.runs import session
from agentcompile.runs.session import environment_error
from agentcompile.runs.stages import shared
from agentcompile.runs.status import was_asked
from agentcompile.runs.tables import duration
from agentcompile.system.plain_files import write_atomically
from agentcompile.tasks.files import digest_of, names_task

MAY_CHANGE = frozenset(
    {
        "run_dir", "advisor", "advisor_key", "advisor_calls", "advisor_tokens", "advisor_cents", "advisor_price",
        "advisor_context", "advisor_seconds", "seconds", "attempts", "patience", "plan", "code", "debug",
        "plan_temperature", "code_temperature", "debug_temperature", "plan_key", "code_key", "debug_key",
        "plan_price", "code_price", "debug_price", "record", "replay", "answered_by", "promote", "unsafe",
    }
)  # fmt: skip
"""Settings that a session may go on with other values of: they change no question and no verdict that is there."""
OF_CHECKPOINTS = ("context", "templates", "user_templates")
"""Settings that say nothing about a task."""
PRINCIPLES = "principles.toml"
_LINE = 400


def refine(
    flags: Mapping[str, object], given: Mapping[str, object], *, resume: bool, screen: Screen, flow: Flow = REAL
) -> int:
    """Let agents write kernels for a region or a task, in a session's folder that is new or begun.

    `flags` are settings, `given` the fields of `Asked`; None for what was not given.

    Raises:
        AgentCompileError: an error that the user can fix; nobody answers (environment).
    """
    options, asked, path = (_resumed if resume else _new)(flags, given)
    _checked(options, asked, path)
    folder = SessionFolder(path) if resume else SessionFolder.create(path, encode(options), asked)
    screen.say(f"session    {path}")
    for name in OF_CHECKPOINTS if asked.task else ():
        if flags.get(name) is not None:
            screen.say(f"warning: --{name.replace('_', '-')} says nothing about a task, and is left out")
    goes_on = resume_command(path)
    with session.Journal(folder.run) as events, Reporter(replace(screen, redraws=False), folder.run.state()) as told:
        spent = told.state.spent
        emit, _ = shared(tee(events.append, told))
        with recorded(events, emit, goes_on, _secrets(options, asked)):
            if resume:
                _settled(folder, options, asked)
            outcome, team = _worked(flow, options, asked, folder, emit, spent, screen)
            reason = _silence(team, outcome)
            if reason and not replayed(options, asked):
                raise AgentCompileError(
                    f"nobody answers: {reason}", exit_code=ExitCode.ENVIRONMENT, hint=f"resume with: {goes_on}"
                )
            emit(RunFinished(detail=outcome.stopped))
    if was_asked(outcome.stopped):
        screen.say(f"resume with: {goes_on}")
    return 0


def _worked(
    flow: Flow, options: Options, asked: Asked, folder: SessionFolder, emit: Emit, spent: Usage, screen: Screen
) -> tuple[Outcome, Listener]:
    """Open the region or the task, make the attempts, and show what came of them."""
    if asked.task:
        screen.say(f"opens      {options.model}: loads it, and times PyTorch and torch.compile")
    with (
        closing(team_of(options, asked, folder.path, emit, spent)) as agents,
        _opened(flow, options, asked, emit) as region,
    ):
        team = Listener(agents)
        target = region.target
        emit(RunStarted(model=options.model, target=target, options=options.digest, version=__version__))
        if folder.subject() is None:
            folder.introduce(region.subject, region.contract)
        screen.say(_asked_line(region, options))
        settings = Settings(
            arm=asked.arm,
            strategy=asked.strategy,
            attempts=asked.attempts,
            seed=options.seed,
            patience=asked.patience,
            seconds=options.seconds or math.inf,
            device=target.device,
        )
        steered = SteeredSession(folder, emit)
        with SessionJournal(folder.path / JOURNAL) as journal, steered:
            record = _ShownRecord(journal, folder, region.subject, asked.attempts, screen)
            outcome = run_session(
                region.contract,
                region.evaluator,
                team,
                record,
                settings,
                principles=_principles(folder, options),
                clock=steered.clock,
                spent_s=steered.spent_s,
                steer=steered.steer,
            )
        ideas = learnt(outcome.nodes, region.contract, target.device)
    _shown(outcome, options, asked, folder, screen, team)
    _learn(options, ideas)
    return outcome, team


def _opened(flow: Flow, options: Options, asked: Asked, emit: Emit) -> AbstractContextManager[OpenRegion]:
    language, fenced = _language(asked.language), not asked.unsafe
    if asked.task:
        return flow.task(options, Path(options.model), language, fenced=fenced)
    return flow.region(options, asked.region, language, emit, fenced=fenced)


class _ShownRecord:
    """The journal of a session that also writes each kernel for people, and says what became of it."""

    def __init__(
        self, journal: SessionJournal, folder: SessionFolder, subject: Subject, attempts: int, screen: Screen
    ) -> None:
        self._journal, self._folder, self._subject = journal, folder, subject
        self._attempts, self._screen = attempts, screen
        for entry in journal.entries:  # what a killed process had no time for
            if isinstance(entry, Node):
                folder.show_kernel(entry, subject.language)
        if len(journal.entries) > 1:
            screen.say(f"resumed after attempt {attempts_of(journal.entries)}")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in their order."""
        return self._journal.entries

    def append(self, entry: Entry) -> None:
        """Keep an entry, and show it."""
        self._journal.append(entry)
        self._screen.record(encode(entry))
        if isinstance(entry, Node):
            self._folder.show_kernel(entry, self._subject.language)
        if entry.kind in ("node", "refused"):
            tokens = spent_of(self.entries).tokens
            line = views.attempt_line(self.entries, self._attempts, tokens, self._subject.bar)
            self._screen.say(clean(line, _LINE))
        elif entry.kind == "pruned":
            self._screen.say(f"closed the branch of node {entry.node}")


def _shown(
    outcome: Outcome, options: Options, asked: Asked, folder: SessionFolder, screen: Screen, team: Listener
) -> None:
    """Show the leaderboard, why the session ended and what it cost, and promote the best kernel or say how."""
    subject = folder.subject()
    assert subject is not None, "the region or the task was opened"
    bar = f"{subject.bar}, {subject.incumbent}"
    screen.table(views.board(outcome.entries, bar=subject.bar))
    evaluated = outcome.attempts - outcome.refused - outcome.repeated
    screen.text(f"stopped: {clean(outcome.stopped, _LINE)}")
    screen.text(
        f"{outcome.attempts} attempts: {evaluated} evaluated, {outcome.refused} refused, {outcome.repeated} repeated"
    )
    again = replayed(options, asked)
    spent = outcome.usage if again else folder.run.state().spent
    screen.text(f"{'recorded' if again else 'asked'}: {views.cost(spent)}")
    best, promoted = views.best_admissible(outcome.nodes), ""
    if best is None:
        screen.text(f"no kernel is surely faster than the {bar}")
    else:
        ratio = views.faster(best, subject.incumbent_ns)
        screen.text(f"node {best.id} passed every gate: {ratio} of the {bar}")
        if views.contended(best):
            later = "session" if subject.task else "compile"
            screen.text(f"contended: other processes disturbed the timing; a {later} on a quiet machine times it again")
        if asked.promote:
            from agentcompile.refine.nodes import promote_node

            promoted = str(promote_node(outcome.nodes, best.id, subject, options.written))
            screen.text(f"promoted: {promoted}; {views.promoted(subject)}")
    found = views.summary(outcome.entries, subject, stopped=outcome.stopped, spent=spent)
    found |= {"run": str(folder.path), "promoted": promoted or None, "silence": _silence(team, outcome) or None}
    folder.keep_summary(found)
    screen.json(found)
    if best is None:
        screen.next(f"agentcompile refine show {quote(str(folder.path))}")
    elif not promoted:
        screen.next(f"agentcompile refine promote {quote(str(folder.path))} {best.id}")
    elif not subject.task:
        screen.next(f"agentcompile compile {quote(options.model)}")


def _silence(team: Listener, outcome: Outcome) -> str:
    """Return why the session ended without an answer; empty where it ended otherwise, or at one of its limits."""
    last = team.silence
    if last is None or last.reason != outcome.stopped or last.reason.startswith("a ceiling is reached"):
        return ""
    return clean(last.reason, _LINE)


def _asked_line(region: OpenRegion, options: Options) -> str:
    subject = region.subject
    times = f"pytorch {duration(subject.reference_ns)}, to beat {duration(subject.incumbent_ns)} ({subject.incumbent})"
    times += f", roofline {duration(subject.floor_ns)}" if subject.floor_ns > 0 else ""
    if subject.task:
        return f"task       {subject.region} in {subject.language}: {times}"
    return f"region     {subject.region} of {Path(options.model).name} in {subject.language}: {times}"


def _principles(folder: SessionFolder, options: Options) -> Sequence[Principle]:
    """Return the principles that every question of the session shows, the same when it goes on."""
    own = options.data / PRINCIPLES
    known = merged(library(), library(own)) if own.exists() else library()
    return library(folder.principles(library_text(known)))


def _learn(options: Options, ideas: Sequence[Principle]) -> None:
    """Add what a session learnt to the file of this machine."""  # noqa: DOC501
    if not ideas:
        return
    own = options.data / PRINCIPLES
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        with own.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = library(own) if own.exists() else ()
            write_atomically(own, library_text(merged(known, ideas)).encode())
    except OSError as error:
        raise environment_error(error, own) from error


def _language(text: str) -> WrittenLanguage | None:
    allowed: tuple[WrittenLanguage, ...] = get_args(WrittenLanguage)
    for one in allowed:
        if text == one:
            return one
    if text:
        raise AgentCompileError(f"--language: {text[:80]!r} is not allowed", hint=f"allowed: {', '.join(allowed)}")
    return None


def _checked(options: Options, asked: Asked, path: Path) -> None:
    """Refuse what is wrong before a folder is made or a model is captured."""  # noqa: DOC501
    if not options.model:
        hint = "agentcompile refine MODEL --region R, a checkpoint, a GGUF file or preset:NAME; or refine TASK.py"
        raise AgentCompileError("no model was named", hint=hint)
    if names_task(options.model):
        _task_checked(options, asked)
    elif not asked.region:
        hint = "--region R, a region's name, kind or id; `agentcompile inspect MODEL` lists them; a task is a .py file"
        raise AgentCompileError("no region was named", hint=hint)
    for name, value, least in (("attempts", asked.attempts, 1), ("patience", asked.patience, 0)):
        arguments.whole(f"--{name}", value, least, 100_000)
    if asked.record and replayed(options, asked):
        raise AgentCompileError("--record and --replay: nothing new is asked in a replay", hint="give one of them")
    _language(asked.language)
    policy_of(asked.strategy)
    models_of(options, asked)
    temperatures_of(asked)
    team_of(options, asked, path, silent, Usage())


def _task_checked(options: Options, asked: Asked) -> None:
    if asked.region:
        text = f"--region: {asked.region[:80]!r}, but {options.model} is a task, which has no regions"
        raise AgentCompileError(text, hint="leave --region out, or name a checkpoint")


def _secrets(options: Options, asked: Asked) -> tuple[str, ...]:
    with suppress(AgentCompileError):
        return secrets_of(options, asked)
    return ()


def _new(flags: Mapping[str, object], given: Mapping[str, object]) -> tuple[Options, Asked, Path]:
    found = resolve(flags)
    usual = {name: SESSION[name] for name, source in found.sources if name in SESSION and source == "default"}
    options = replace(found.options, **usual)  # type: ignore[arg-type] # they are all int
    asked = replace(Asked(region=""), **_named(given))  # type: ignore[arg-type] # checked by Typer
    about = f"{options.model}-{asked.region}"
    if names_task(options.model) and not asked.region:
        asked, about = replace(asked, task=digest_of(Path(options.model))), Path(options.model).stem
    path = Path(options.run_dir) if options.run_dir else session.new_name(options.runs, about)
    return replace(options, run_dir=str(path)), asked, path


def _resumed(flags: Mapping[str, object], given: Mapping[str, object]) -> tuple[Options, Asked, Path]:
    """Return what the session was begun with, and with what else it goes on."""  # noqa: DOC501
    asks = resolve(flags).options
    path = session.standing(asks.runs, asks.run_dir) if asks.run_dir else _unfinished(asks)
    found, asked = SessionFolder.open(path).settings()
    try:
        options: Options = decode(Options, found, "options")
    except CodecError as error:
        text = f"{path}: its settings cannot be read: {error}"
        raise AgentCompileError(text, hint="begin a session in another folder") from error
    new = {name: getattr(asks, name) for name, value in flags.items() if value is not None}
    own = _named(given)
    for name, value in (*new.items(), *own.items()):
        old = getattr(asked if name in own else options, name)
        if name not in MAY_CHANGE and value != old:
            text = f"--{name.replace('_', '-')}: {value!r}, but the session was begun with {old!r}"
            raise AgentCompileError(text, hint="leave it out, or begin a session in another folder")
    changed = {**new, "run_dir": str(path)}
    options, asked = replace(options, **changed), replace(asked, **own)  # type: ignore[arg-type] # checked above
    return options, _unchanged(Path(options.model), asked, path) if asked.task else asked, path


def _unchanged(file: Path, asked: Asked, path: Path) -> Asked:
    """Return what a session was asked to do; a task that changed since it was opened is refused."""  # noqa: DOC501
    now = digest_of(file)
    if now != asked.task and SessionFolder(path).subject() is not None:
        text = f"{file}: the task changed since the session began: SHA-256 {asked.task[:SHORT]}, and now {now[:SHORT]}"
        raise AgentCompileError(text, hint="restore the file, or begin a session in another folder")
    return replace(asked, task=now)


def _named(given: Mapping[str, object]) -> dict[str, object]:
    """Return what was given, with folders made absolute."""
    found = {name: value for name, value in given.items() if value is not None}
    for name in ("record", "replay"):
        if name in found:
            found[name] = arguments.located(f"--{name}", str(found[name]), Path.cwd())
    return found


def _unfinished(options: Options) -> Path:
    """Return the newest session that has not ended."""  # noqa: DOC501
    for path in reversed(sessions_in(options.runs)):
        run = session.RunDirectory(path)
        with suppress(AgentCompileError):
            if run.state().status != "finished" and not run.alive():
                return path
    raise AgentCompileError("--resume: no unfinished session", hint="--run-dir takes one; `agentcompile runs list`")


def _settled(folder: SessionFolder, options: Options, asked: Asked) -> None:
    try:
        folder.settle(encode(options), asked)
    except OSError as error:
        raise environment_error(error, folder.path) from error
