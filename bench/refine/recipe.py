"""`agentcompile bench refine [TASK.py …]`: arms of agents that write kernels, compared at equal attempts and tokens.

In: task files in KernelBench's format, arms, limits, who answers. Out: FILE with a row for each task, arm and seed and
what follows from them, tables on the terminal, and FILE.png and FILE.svg with the share of sessions by speed-up. A run
that was stopped at any moment goes on with the same command: finished sessions are in FILE.partial.jsonl, a session
that was cut is in FILE.sessions, and no question that was answered is asked again. --replay opens no socket.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentcompile.advice.exchange import Cassette
from agentcompile.agents.arms import ARMS, models_of
from agentcompile.agents.folder import EXCHANGES, Asked
from agentcompile.agents.policies import POLICIES, policy_of
from agentcompile.agents.refining import Asks
from agentcompile.agents.teams import team_of
from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import silent
from agentcompile.ir.advice import Usage
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.target import Target
from agentcompile.options import Options, resolve
from agentcompile.runs.session import environment_error
from agentcompile.system.plain_files import write_atomically
from agentcompile.tasks.timing import COMPILED

from ..harness.course import say
from ..harness.ledger import Ledger
from ..harness.numbers import at_least
from ..harness.records import revision, say_next, write_record
from .gates import Opens, opener
from .plot import draw
from .result import FORMAT, KIND, Study
from .sessions import Limits, Runner, terms
from .summary import summaries
from .tables import report

TASKS = Path(__file__).resolve().parents[1] / "tasks"
"""The tasks where none is named."""
_MANY_CALLS, _MANY_TOKENS, _DAY_S = 1000, 100_000_000, 86_400
"""Limits of the ledger of requests, beyond those of a session."""


def run(arguments: Sequence[str], opens: Opens | None = None) -> int:
    """Run the study, write and show it; return an exit code. `opens` opens tasks, by default on this machine.

    Raises:
        AgentCompileError: a flag, a task or a result file is wrong (usage); nobody answers (environment).
    """
    asked = _parser().parse_args(list(arguments))
    if asked.show is not None:
        return _show(read(asked.show), asked.show if asked.plot else None)
    begun = revision()
    options, tasks, arms = _options(asked), _tasks(asked.tasks), _arms(asked.arms)
    limits = Limits(attempts=asked.attempts, tokens=asked.tokens, strategy=asked.strategy)
    target = this_machine(options).target
    seeds = tuple(range(asked.seed, asked.seed + asked.seeds))
    teams = _Teams(options, asked, arms)
    teams.check()
    compiled = tuple(name for name in COMPILED if not asked.eager)
    runner = Runner(
        opens=opens or opener(options, compiled, fenced=not asked.unsafe),
        teams=teams.team,
        folder=asked.out.with_suffix(".sessions"),
        ledger=Ledger(_prepared(asked.out), terms(limits, (*teams.names, *compiled), target.digest)),
        limits=limits,
        say=say,
        goes_on=shlex.join(["agentcompile", "bench", "refine", *arguments]),
        replays=bool(asked.replay),
    )
    study = Study(
        arms=arms,
        seeds=seeds,
        attempts=limits.attempts,
        tokens=limits.tokens,
        strategy=limits.strategy,
        models=(),
        device=target.device,
        threads=target.threads,
        unit=backend_of(target.kind).unit,
        tasks=(),
        rows=(),
    )
    for facts, rows in runner.run(tasks, arms, seeds):
        study = replace(study, tasks=(*study.tasks, facts), rows=(*study.rows, *rows), models=teams.models)
        _write(asked.out, ["refine", *arguments], begun, target, study)
    return _show(study, asked.out)


def read(path: Path) -> Study:
    """Return the study in a result file.

    Raises:
        AgentCompileError: it cannot be read, is no such result, or is of a newer format (usage).
    """
    hint = "name a file that `agentcompile bench refine --out FILE` wrote"
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise AgentCompileError(f"{path}: no result of {KIND}", hint=hint)
        if found["format"] > FORMAT:
            raise AgentCompileError(f"{path}: format: {found['format']} is newer than {FORMAT}", hint="upgrade it")
        study: Study = decode(Study, found["study"], "study")
    except OSError as error:
        raise AgentCompileError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except (CodecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise AgentCompileError(f"{path}: no result of {KIND}: {str(error)[:200]}", hint=hint) from error
    return study


@dataclass(frozen=True, slots=True)
class _Teams:
    """Who answers in each session: a model, or the recorded exchanges of that session."""

    options: Options
    asked: argparse.Namespace
    arms: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What names the answers: the model, or the folder of recorded ones."""
        return (f"replay:{self.asked.replay.name}",) if self.asked.replay else (self.options.advisor,)

    @property
    def models(self) -> tuple[str, ...]:
        """Who answered, as the recorded exchanges say."""
        folder = self.asked.replay or self.asked.record or self.asked.out.with_suffix(".sessions")
        places = [place for place in sorted(folder.glob(f"*/{'' if self._apart else EXCHANGES}")) if place.is_dir()]
        found = (one for place in places for one in Cassette(place).exchanges.values())
        return tuple(sorted({one.answered_by or one.model for one in found}))

    @property
    def _apart(self) -> bool:
        """Whether exchanges lie in a folder of their own, and not with the trees of sessions."""
        return bool(self.asked.replay or self.asked.record)

    def check(self) -> None:
        """Refuse what no session could be run with."""
        for arm in self.arms:
            models_of(self.options, self._of(arm, ""))

    @contextmanager
    def team(self, arm: str, name: str) -> Iterator[Asks]:
        """Make the agents of a session of an arm, which is called `name`."""
        folder = self.asked.out.with_suffix(".sessions") / name
        with closing(team_of(self.options, self._of(arm, name), folder, silent, Usage())) as team:
            yield team

    def _of(self, arm: str, name: str) -> Asked:
        record, replay = (str(one / name) if one else "" for one in (self.asked.record, self.asked.replay))
        return Asked(region="", arm=arm, record=record, replay=replay, answered_by=self.asked.answered_by)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentcompile bench refine", description=__doc__)
    add = parser.add_argument
    add("tasks", type=Path, nargs="*", metavar="TASK.py", help="task files; default: those of the package")
    add("--arms", default=",".join(ARMS), help="arms, separated by commas; default: all of %(default)s")
    add("--strategy", default=next(iter(POLICIES)), help="which node is worked on, in arms that search")
    add("--attempts", type=at_least(1), default=8, help="most attempts of a session; default: %(default)s")
    add("--tokens", type=at_least(0), default=200_000, help="tokens after which a session asks nothing (0 = no limit)")
    add("--seeds", type=at_least(1), default=1, help="sessions of each task and arm")
    add("--seed", type=at_least(0), default=0, help="the first of their seeds")
    add("--advisor", default="", help="who answers: openai:MODEL[@BASE_URL]")
    add("--advisor-key", default=None, help="the variable with the model's key")
    add("--advisor-price", default=None, help="dollars for a million tokens of prompt and of answer: IN,OUT")
    add("--answered-by", default="", help="who answered, in place of the name that the server reports")
    add("--record", type=Path, default=None, metavar="DIR", help="keep exchanges in DIR/TASK-ARM-SEED")
    add("--replay", type=Path, default=None, metavar="DIR", help="answer from DIR/TASK-ARM-SEED and ask nobody")
    add("--eager", action="store_true", help="the baseline is PyTorch eager alone; torch.compile is not timed")
    add(
        "--target", default="cpu", metavar="DEVICE", help="where kernels run: cpu, cuda:N or auto; default: %(default)s"
    )
    add("--threads", type=at_least(1), default=None, help="threads of kernels and of PyTorch, on a CPU")
    add("--unsafe", action="store_true", help="run written code without confining it")
    add("--out", type=Path, default=Path("refine.json"), metavar="FILE", help="the result; default: %(default)s")
    add("--show", type=Path, default=None, metavar="FILE", help="show a result and do nothing else")
    add("--plot", action="store_true", help="with --show: draw its figure again")
    return parser


def _options(asked: argparse.Namespace) -> Options:
    """Return the settings of the machine and of the model."""  # noqa: DOC501
    if bool(asked.advisor) == bool(asked.replay):
        raise AgentCompileError(
            "bench refine: name who answers, one of --advisor and --replay",
            hint="--advisor openai:MODEL@http://HOST:PORT/v1, or --replay DIR with recorded answers",
        )
    if asked.record and asked.replay:
        raise AgentCompileError("--record and --replay: nothing new is asked in a replay", hint="give one of them")
    policy_of(asked.strategy)
    flags: dict[str, object] = {
        "target": asked.target,
        "advisor_calls": _MANY_CALLS,
        "advisor_tokens": _MANY_TOKENS,
        "advisor_seconds": _DAY_S,
    }
    given = {"advisor": asked.advisor or None, "threads": asked.threads}
    given |= {"advisor_key": asked.advisor_key, "advisor_price": asked.advisor_price}
    return resolve(flags | {name: value for name, value in given.items() if value is not None}).options


def _tasks(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the task files in their order."""  # noqa: DOC501
    found = tuple(paths) or tuple(sorted(TASKS.glob("*.py")))
    names = [path.stem for path in found]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), ""):
        raise AgentCompileError(f"bench refine: two tasks are called {twice}", hint="give files other names")
    return found


def _arms(text: str) -> tuple[str, ...]:
    """Return the arms that a list names."""  # noqa: DOC501
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    wrong = [name for name in found if name not in ARMS]
    if wrong or not found:
        text = f"--arms: {wrong[0][:80]!r} is no arm" if wrong else "--arms: names no arm"
        raise AgentCompileError(text, hint=f"arms: {', '.join(ARMS)}")
    return found


def _prepared(out: Path) -> Path:
    """Return the file of finished sessions, in a folder that exists."""  # noqa: DOC501
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise environment_error(error, out.parent) from error
    return out.with_suffix(".partial.jsonl")


def _write(out: Path, words: Sequence[str], begun: dict[str, Any], target: Target, study: Study) -> None:
    """Write what a study has found so far."""  # noqa: DOC501
    found = {
        "kind": KIND,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "agentcompile")},
        },
        "summaries": encode(summaries(study)),
        "study": encode(study),
    }
    try:
        write_record(out, words, begun, target, found)
    except OSError as error:
        raise environment_error(error, out) from error


def _show(study: Study, out: Path | None) -> int:
    """Print a study, and draw its figure beside `out` where that is given."""  # noqa: DOC501
    for line in report(study):
        print(line)
    if out is None:
        return ExitCode.OK
    try:
        png, svg = draw(study)
        for suffix, content in ((".png", png), (".svg", svg.encode())):
            write_atomically(out.with_suffix(suffix), content)
    except ImportError as error:
        say(f"no figure: {error}; pip install 'agentcompile[bench]'")
    except OSError as error:
        raise environment_error(error, out) from error
    else:
        say_next(f"open {shlex.quote(str(out.with_suffix('.svg')))}, its figure")
    return ExitCode.OK
