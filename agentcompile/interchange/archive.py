"""A run as one file of at most 16 MiB, so that it can be resumed elsewhere: `pack`, `read`, `unpack`.

    archive.json   the version of this format, the run's name, and who packed it
    events.jsonl   every event: finished trials, choices, plans
    facts.json     what the run measured or validated besides its trials, by its key in the store
    options.json   the run's options

Trials are in the events, so a resumed run repeats none of them. The facts (the machine's ceilings, the time of regions
in PyTorch, which kernels passed the whole correctness suite) make it take the same steps as the run that was packed;
their keys name machine, toolchain and policy, so that they have no effect elsewhere. What is not packed is made again:
binaries, captured graphs, presets, weights. Trials of other runs, which lie in the measurement database, are not packed
either, and those of this run do not enter the database of another machine.

The file is a tar in xz: sorted names, no times, no owners, the same bytes for the same run. Only these four files are
taken from an archive, and they are trusted like a run directory: pack and unpack runs of your own.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import agentcompile
from agentcompile.advice.configure import FOLDER
from agentcompile.advice.exchange import Cassette, Exchange
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode, lean
from agentcompile.ir.digest import canonical
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Measured
from agentcompile.options import Options
from agentcompile.runs import progress
from agentcompile.runs.session import (
    EVENTS,
    OPTIONS,
    RunDirectory,
    environment_error,
    options_bytes,
    options_in,
    record_in,
)
from agentcompile.runs.tables import amount
from agentcompile.system import tarball
from agentcompile.system.notes import Notes
from agentcompile.system.plain_files import NotPlainError, read_plain, write_atomically
from agentcompile.system.store import Store
from agentcompile.system.tarball import TarballError, TarballLimits

VERSION = 1
"""The format of an archive; a greater one is refused."""
ENDING = ".run.tar.xz"
ABOUT, FACTS = "archive.json", "facts.json"
NAMES = (ABOUT, EVENTS, FACTS, OPTIONS)

_AGAIN = "fetch the file again, or pack the run again with `agentcompile runs pack`"


LIMITS = TarballLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What a run left in the store that is expensive to find again, by its key there."""

    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()
    """What a model was asked and answered, from the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRun:
    """An archive that was written: its size, and the sizes of its files before compression."""

    file: Path
    bytes: int
    files: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What an archive holds, checked and decoded; nothing was written yet."""

    name: str
    """The run's name, valid as that of a folder."""
    options: Options
    events: bytes
    state: progress.State
    facts: MachineFacts


def pack(run: RunDirectory, options: Options, out: Path, *, limits: TarballLimits = LIMITS) -> PackedRun:
    """Write the archive of a run that was started with `options` to `out`, atomically.

    Raises:
        AgentCompileError: a compiler holds the run, or `out` cannot be written (environment); the events are damaged,
            or the run is too large (usage).
    """  # noqa: DOC501
    if run.alive():
        raise AgentCompileError(
            f"{run.path}: a compiler runs here, so the run is not whole yet",
            exit_code=ExitCode.ENVIRONMENT,
            hint="wait for it, or stop it: a run that was stopped goes on with --resume",
        )
    state = run.state()
    name = re.sub(r"[^A-Za-z0-9._]+", "-", run.path.resolve().name).strip("-.")[:100] or "run"
    exchanges = tuple(one for _, one in sorted(Cassette(run.path / FOLDER).exchanges.items()))
    files = {
        ABOUT: canonical({"version": VERSION, "name": name, "agentcompile": agentcompile.__version__}) + b"\n",
        EVENTS: _read(run.path / EVENTS).rpartition(b"\n")[0],
        FACTS: canonical(lean(replace(_facts(state, options.store), exchanges=exchanges))) + b"\n",
        OPTIONS: _read(run.path / OPTIONS),
    }
    if files[EVENTS]:
        files[EVENTS] += b"\n"
    sizes = {name: len(data) for name, data in files.items()}
    _fits(run.path, sum(sizes.values()), limits.unpacked_bytes, "unpacked", sizes)
    packed = tarball.pack(files)
    _fits(run.path, len(packed), limits.packed_bytes, "packed", sizes)
    try:
        write_atomically(out, packed)
    except OSError as error:
        raise environment_error(error, out) from error
    return PackedRun(file=out, bytes=len(packed), files=sizes)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise environment_error(error, path) from error


def _fits(path: Path, size: int, most: int, how: str, sizes: Mapping[str, int]) -> None:
    if size > most:
        largest = max(sizes, key=lambda name: sizes[name])
        raise AgentCompileError(
            f"{path}: {amount(size)} {how}, and an archive holds at most {amount(most)}; "
            f"what is large is {largest}, {amount(sizes[largest])}",
            hint="copy the run's folder instead, or compile with a smaller --budget",
        )


def _facts(state: progress.State, store: Path) -> MachineFacts:
    if not store.is_dir():
        return MachineFacts()
    kept, notes = Store(store), Notes(Store(store))
    ceilings, keys = _keys(state)
    found = MachineFacts(notes={key: value for key in sorted(keys) if (value := notes.get(key)) is not None})
    for key in sorted(ceilings):
        path = kept.get(key, ".json")
        try:
            if path is not None:
                found.ceilings[key] = decode(Ceiling, json.loads(path.read_bytes()))
        except (CodecError, ValueError, OSError):
            continue  # a cache: a damaged entry is measured again
    return found


def _keys(state: progress.State) -> tuple[set[str], set[str]]:
    """Return the keys of the ceilings and of the notes that a run with these events reads and leaves behind.

    They are those under which `probe.ceiling` and `tuner.Tuner` keep each fact.
    """
    from agentcompile.evaluation.step_clock import policy_digest
    from agentcompile.system.probe import ceiling_key
    from agentcompile.tuning.trial_database import accepted_key, fallback_key, missing_key

    if state.target is None:
        return set(), set()
    target = state.target.digest
    policies = [policy_digest("cache"), policy_digest("dram")]
    fallback = {fallback_key(row.region, target, policy) for row in state.rows for policy in policies}
    passed = {(t.source, t.candidate.region) for t in state.trials if isinstance(t.verdict, Measured)}
    accepted = {accepted_key(source, region, target) for source, region in passed}
    return {ceiling_key(target)}, fallback | accepted | {missing_key(key) for key in accepted}


def read(file: Path, *, limits: TarballLimits = LIMITS) -> Contents:
    """Read and check an archive; nothing is written.

    Raises:
        AgentCompileError: it is damaged, too large, of a newer version, has a name that leads elsewhere or something
            that is not a plain file, or its content is no run (usage); names the file and what is wrong with it.
    """  # noqa: DOC501
    try:
        return _contents(file, tarball.unpack(_archived(file, limits), limits))
    except TarballError as error:
        raise _refused(file, str(error)) from error
    except RecursionError as error:
        raise _refused(file, "nested deeper than any run is") from error


def _archived(file: Path, limits: TarballLimits) -> bytes:
    hint = "name an archive that `agentcompile runs pack` wrote"
    try:
        return read_plain(file, limits.packed_bytes)
    except NotPlainError as error:
        raise _refused(file, str(error.strerror), hint=hint) from error
    except FileNotFoundError as error:
        raise _refused(file, "no such file", hint=hint) from error
    except OSError as error:
        raise environment_error(error, file) from error


def _contents(file: Path, files: Mapping[str, bytes]) -> Contents:
    try:
        about = json.loads(files.get(ABOUT, b""))
    except ValueError as error:
        raise _refused(file, f"no archive of a run: {ABOUT}: {error}") from error
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, int):
        raise _refused(file, f"no archive of a run: {ABOUT} has no version")
    if version > VERSION:
        hint = "install the agentcompile that packed it"
        raise _refused(file, f"version: {version} is newer than the {VERSION} that this agentcompile reads", hint=hint)
    name = about.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise _refused(file, f"{ABOUT}: name: {str(name)[:100]!r} is no name of a run")
    if set(files) != set(NAMES):
        odd = sorted(set(files) ^ set(NAMES))[0]
        raise _refused(file, f"{odd[:100]!r}: {'not of a packed run' if odd in files else 'missing'}")
    if files[EVENTS] and not files[EVENTS].endswith(b"\n"):
        raise _refused(file, f"{EVENTS}: cut off")
    try:
        options: Options = decode(Options, options_in(files[OPTIONS], file / OPTIONS), OPTIONS)
        facts: MachineFacts = decode(MachineFacts, json.loads(files[FACTS]), FACTS)
    except (CodecError, ValueError) as error:
        hint = "install the agentcompile that packed it, or pack the run again"
        raise _refused(file, str(error), hint=hint) from error
    _plausible(file, facts)
    lines = files[EVENTS].splitlines(keepends=True)
    state = progress.fold(record_in(line, file / EVENTS).event for line in lines)
    return Contents(name=name, options=options, events=files[EVENTS], state=state, facts=facts)


def _plausible(file: Path, facts: MachineFacts) -> None:
    for key, ceiling in facts.ceilings.items():
        rates = (ceiling.dram_bytes_per_s, ceiling.cache_bytes_per_s, ceiling.flops_per_s)
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise _refused(file, f"{FACTS}: ceilings.{key[:12]}: {rates} are no rates")
    for key, value in facts.notes.items():
        if value <= 0:
            raise _refused(file, f"{FACTS}: notes.{key[:12]}: {value} is not positive")


def _refused(file: Path, what: str, *, hint: str = _AGAIN) -> AgentCompileError:
    return AgentCompileError(f"{file}: {what}", hint=hint)


def unpack(contents: Contents, path: Path, options: Options) -> RunDirectory:
    """Make the run directory `path`, whole or not at all; `options` are the run's with the paths of this machine.

    Facts of the run enter the store of `options`; what is known there already stays.

    Raises:
        AgentCompileError: something is at `path` already (usage), or it cannot be written (environment).
    """  # noqa: DOC501
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise AgentCompileError(
                f"{path}: {'already holds a run' if (path / OPTIONS).exists() else 'is in use'}",
                hint="name another folder with --run-dir",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        try:
            _keep(contents, Store(options.store))
            advice = Cassette(part / FOLDER)
            for exchange in contents.facts.exchanges:
                advice.keep(exchange)
            write_atomically(part / EVENTS, contents.events)
            write_atomically(part / OPTIONS, options_bytes(encode(options)))  # last: it makes the folder a run
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    except OSError as error:
        raise environment_error(error, path) from error
    return RunDirectory(path)


def _keep(contents: Contents, store: Store) -> None:
    """Put the facts of the run's own regions and sources into the store, and no others."""
    ceilings, keys = _keys(contents.state)
    for key, ceiling in contents.facts.ceilings.items():
        if key in ceilings:
            store.write(key, canonical(encode(ceiling)), ".json")
    for key, value in contents.facts.notes.items():
        if key in keys:
            Notes(store).put(key, value)
