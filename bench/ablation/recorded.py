"""`agentcompile ablate --space FILE --strategies "random;halving"`: search strategies rerun on recorded spaces.

In: recorded spaces, names of strategies, the number of seeds and the budget. Out: a table, and with `--out` the result
as JSON with FILE.csv, FILE.md, FILE.png and FILE.svg beside it. The JSON is written as searches finish, and the same
command takes finished searches over from it, unless the code of a strategy or the space changed. No network, no device.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import agentcompile
from agentcompile import advice, search
from agentcompile.advice.exchange import ENDING
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import digest_files
from agentcompile.system.probe import cpus_at_once, probe

from ..harness.records import nameless, revision, say_next
from . import advising, peer, tables
from .files import figure, read_result, write_beside, write_result
from .pool import Cell, curves
from .simulate import Curve
from .spaces import RecordedSpace, read_space
from .study import FORMAT, Study, facts_of, overall_of, percents_of, standing_of

_WRITE_S, _TELL_S = 1.0, 5.0
"""Seconds between two writes of the result, and between two lines of progress: what a line counts is on disk."""
_MOST_SEEDS, _MOST_BUDGET = 10_000, 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a study compares."""

    spaces: tuple[Path, ...]
    strategies: tuple[str, ...]
    """Names of strategies, and lists of them separated by `;`."""
    peers: tuple[str, ...] = ()
    """`kernel-tuner:NAME`."""
    seeds: int
    budget: int
    within: float
    jobs: int = 0
    """Processes; 0 is one for every processor."""
    out: Path | None = None
    record: Path | None = None
    """The folder that keeps what a model answers."""
    words: tuple[str, ...] = field(default=())
    """The words of the command line, for the record."""


def study_of(request: Request) -> Study:
    """Run the searches that `request.out` does not hold yet, and return the finished study.

    Raises:
        AgentCompileError: an argument is wrong, a space cannot be read or has no point that ran, a strategy misbehaves,
            a process died, or the result cannot be written.
    """
    begun, spaces = _begun(request)
    kept = _resumed(begun, request.out)
    found = {_cell(curve): curve for curve in kept}
    cells = [
        Cell(space=facts.name, arm=arm, seed=seed, budget=begun.budget, record=str(request.record or ""))
        for facts in begun.spaces
        for arm in begun.arms
        for seed in range(begun.seeds)
    ]
    missing = [cell for cell in cells if cell not in found]
    jobs = request.jobs or cpus_at_once()
    written = told = time.monotonic()
    try:
        for curve in curves(missing, spaces, jobs):
            found[_cell(curve)] = curve
            if (now := time.monotonic()) - written >= _WRITE_S:
                _write(_with(begun, cells, found), request.out)
                written = now
                if now - told >= _TELL_S:
                    _say(f"{len(found)} of {len(cells)} searches, {curve.strategy} on {curve.space}")
                    told = now
    finally:
        if len(found) < len(cells):
            _write(_with(begun, cells, found), request.out)
            if request.out is not None:
                _say(f"{request.out} has {len(found)} of {len(cells)} searches; the same command goes on from it")
    return _finished(_with(begun, cells, found))


def _with(begun: Study, cells: Sequence[Cell], found: Mapping[Cell, Curve]) -> Study:
    return replace(begun, curves=tuple(found[cell] for cell in cells if cell in found))


def _cell(curve: Curve) -> Cell:
    return Cell(space=curve.space, arm=curve.strategy, seed=curve.seed, budget=curve.budget)


def _begun(request: Request) -> tuple[Study, dict[str, RecordedSpace]]:
    for name, value, most in (
        ("--seeds", request.seeds, _MOST_SEEDS),
        ("--budget", request.budget, _MOST_BUDGET),
    ):
        if not 1 <= value <= most:
            raise AgentCompileError(f"{name}: {value} is not between 1 and {most}", hint=f"{name} 15 is a number")
    if not 0 <= request.within <= 1000:
        raise AgentCompileError(f"--within: {request.within:g} is not between 0 and 1000", hint="--within 5 is 5 %")
    if request.jobs < 0:
        raise AgentCompileError(f"--jobs: {request.jobs} is below 0", hint="0 takes every processor")
    arms = _arms(request)
    spaces = dict[str, RecordedSpace]()
    for path in request.spaces:
        space = read_space(path)
        if space.best is None:
            hint = "name a space in which at least one point ran"
            raise AgentCompileError(f"{path}: all {len(space.candidates)} points failed: nothing to find", hint=hint)
        if space.name in spaces:
            raise AgentCompileError(f"--space {path}: a second space called {space.name}", hint="rename the file")
        spaces[space.name] = space
    percents = percents_of(request.within)
    about = revision()
    return Study(
        command=" ".join(["agentcompile", "ablate", *nameless(request.words)]),
        version=agentcompile.__version__,
        revision=about["revision"],
        changed_since=about["changed_since"],
        machine=probe(toolchain=""),
        budget=request.budget,
        seeds=request.seeds,
        percents=percents,
        arms=arms,
        sources={arm: peer.source_of(arm) if peer.is_peer(arm) else _sources(arm) for arm in arms},
        spaces=tuple(facts_of(space, percents) for space in spaces.values()),
    ), spaces


def _arms(request: Request) -> tuple[str, ...]:
    # Every name is looked up before anything runs.
    named = [name.strip() for text in request.strategies for name in text.split(";")]
    ours = list(dict.fromkeys(name for name in named if name))
    for name in ours:
        each = advising.arm_of(name)
        search.strategy_of(each.strategy)
        advising.check(each.adviser, request.record)
    arms = (*ours, *dict.fromkeys(request.peers))
    for arm in request.peers:
        peer.source_of(arm)
    if not arms:
        raise AgentCompileError("--strategies: names no strategy", hint='--strategies "random;halving"')
    return arms


def _sources(arm: str) -> str:
    """Return the identity of what a curve of ours depends on: strategies, simulation, and advice with its answers."""
    adviser = advising.arm_of(arm).adviser
    strategies = sorted(Path(search.__file__).parent.glob("*.py"))
    here = [Path(__file__).with_name(name) for name in ("documents.py", "spaces.py", "simulate.py")]
    if adviser == advising.NOBODY:
        return digest_files("simulated-search/1", [*strategies, *here])
    advisers = sorted(Path(advice.__file__).parent.glob("*.py"))
    folder = advising.folder_of(adviser)
    answers = sorted(folder.glob(f"*{ENDING}")) if folder is not None else []
    return digest_files("simulated-search/1", [*strategies, *here, *advisers, *answers])


def _resumed(begun: Study, out: Path | None) -> list[Curve]:
    """Return the finished curves that the file of an earlier run has of this study."""
    if out is None or not out.exists():
        return []
    old = read_study(out)
    digests = {facts.name: facts.digest for facts in begun.spaces}
    same = {facts.name for facts in old.spaces if digests.get(facts.name) == facts.digest}
    arms = {arm for arm in begun.arms if old.sources.get(arm) == begun.sources[arm]}
    kept = [
        curve
        for curve in old.curves
        if curve.space in same and curve.strategy in arms and curve.seed < begun.seeds and curve.budget == begun.budget
    ]
    lost = len(old.curves) - len(kept)
    why = f"; {lost} of other settings, spaces or code are replaced" if lost else ""
    _say(f"{out}: {len(kept)} finished searches are taken over{why}")
    return kept


def _finished(study: Study) -> Study:
    standings = tuple(
        standing_of(facts, arm, study.of(facts.name, arm), study.percents)
        for facts in study.spaces
        for arm in study.arms
    )
    by_arm = {arm: [one for one in standings if one.arm == arm] for arm in study.arms}
    return replace(study, standings=standings, overall=tuple(overall_of(arm, found) for arm, found in by_arm.items()))


def show(study: Study, out: Path | None, *, as_json: bool) -> int:
    """Write a finished study with everything beside it, if `out` is given, and print it; return an exit code.

    Raises:
        AgentCompileError: a file cannot be written (environment).
    """
    if out is not None:
        _write(study, out)
        _write_beside(study, out)
    print(json.dumps(encode(study), indent=1) if as_json else "\n".join(tables.report(study)))
    if out is not None and not as_json:
        say_next(f"open {shlex.quote(str(out.with_suffix('.md')))}, the same with its figure")
    return ExitCode.OK


def shown(path: Path) -> Study:
    """Read the result of a finished study.

    Raises:
        AgentCompileError: it cannot be read, or was stopped before its searches were finished (usage).
    """
    study = read_study(path)
    if not study.standings:
        want = len(study.spaces) * len(study.arms) * study.seeds
        hint = f"finish it: {study.command}"
        raise AgentCompileError(f"{path}: stopped after {len(study.curves)} of {want} searches", hint=hint)
    return study


def read_study(path: Path) -> Study:
    """Read a result file.

    Raises:
        AgentCompileError: it cannot be read, is no result of a study, or has a newer format (usage).
    """
    hint = "name a file that `agentcompile ablate --space … --out` wrote, or one that does not exist yet"
    return read_result(path, Study, "a study", newest=FORMAT, hint=hint)


def _write(study: Study, out: Path | None) -> None:
    if out is not None:
        write_result(study, out)


def _write_beside(study: Study, out: Path) -> None:
    from .curves import draw

    pictures = figure(lambda: draw(study), _say)
    page = tables.as_markdown(study, out.with_suffix(".svg").name if pictures else "")
    write_beside(out, {".csv": tables.as_csv(study).encode(), **pictures, ".md": page.encode()})


def _say(text: str) -> None:
    print(f"ablate: {text}", file=sys.stderr, flush=True)


def run(request: Request, *, as_json: bool) -> int:
    """Make a study and show it; return an exit code.

    Raises:
        AgentCompileError: see `study_of`.
    """
    _check_out(request.out)
    return show(study_of(request), request.out, as_json=as_json)


def _check_out(out: Path | None) -> None:
    if out is not None and out.suffix in (".csv", ".md", ".png", ".svg"):
        raise AgentCompileError(f"--out {out}: this suffix is that of a file beside the result", hint="--out FILE.json")


def words(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command's words quoted for a shell where they need it."""
    return tuple(shlex.quote(word) for word in arguments)
