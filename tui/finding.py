"""What can be opened here: model directories, presets, past runs and locks; and what an argument means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from agentcompile.agents.folder import SETTINGS as SETTINGS_FILE
from agentcompile.agents.folder import SessionFolder, sessions_in
from agentcompile.checkpoint.names import ENDING, gguf_at, is_gguf, parts_of
from agentcompile.errors import AgentCompileError
from agentcompile.events import clean
from agentcompile.options import SETTINGS, Options
from agentcompile.runs import session
from agentcompile.runs.folders import started
from agentcompile.runs.status import glance

from .start import FIELDS, Found, Start

DEPTH = 3
"""Folders below the working directory that are looked into."""
MOST = 200
"""Entries of a kind that are named."""
SKIPPED = ("node_modules", "__pycache__", "site-packages", "build", "dist")
LOCKS = ".lock.toml"

What = Literal["model", "run", "refine", "lock"]


def meaning(argument: str, runs: Path) -> tuple[What, Path]:
    """Return what `argument` names: a checkpoint or GGUF file, a run or a session of `refine`, or a lock.

    Runs and sessions are named by folder, by name among `runs`, or by `latest`: the run that was started last, as for
    the other verbs, and where there is no run the session.

    Raises:
        AgentCompileError: it names none of these (usage).
    """
    if argument.startswith("preset:"):
        return "model", Path(argument)
    path = Path(argument).expanduser()
    if gguf_at(path) is not None:
        return "model", path.absolute()
    for folder in (path, _among(runs, argument)):
        if (folder / session.OPTIONS).exists():
            return "run", folder.absolute()
        if (folder / SETTINGS_FILE).is_file():
            return "refine", folder.absolute()
    if path.is_file():
        return "lock", path.absolute()
    if (path / "config.json").exists():
        return "model", path.absolute()
    if argument == session.LATEST:
        raise AgentCompileError(f"{runs}: no runs", hint="`agentcompile compile MODEL` makes one")
    hint = "give a checkpoint directory, a GGUF file, preset:NAME, a run of `agentcompile runs list`, or a lock"
    raise AgentCompileError(f"{argument}: no model, run or lock", hint=hint)


def _among(runs: Path, name: str) -> Path:
    """Return the folder that `name` means among `runs`; it need not exist."""
    newest = sessions_in(runs)[-1:] if name == session.LATEST and not session.runs_in(runs) else ()
    return next(iter(newest), session.named(runs, name))


def start_of(options: Options, cwd: Path) -> Start:
    """Return the start page for this folder: everything found, and the settings as they stand."""
    found = [
        *_models(options, cwd),
        *_presets(),
        *_newest([*_runs(options.runs), *_sessions(options.runs)]),
        *_locks(cwd),
    ]
    values = {name: str(getattr(options, name)) for name in FIELDS}
    defaults = {setting.name: str(setting.default) for setting in SETTINGS if setting.name in FIELDS}
    defaults["out"] = str(cwd / defaults["out"])
    return Start(
        found=tuple({one.argument: one for one in found}.values()),
        settings=tuple((name, values[name]) for name in FIELDS),
        defaults=tuple((name, defaults[name]) for name in FIELDS),
    )


def _below(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth == 0:
        return
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    for path in inner:
        if not path.name.startswith(".") and path.name not in SKIPPED:
            yield from _below(path, depth - 1)


def _models(options: Options, cwd: Path) -> list[Found]:
    wanted = [Path(options.model)] if options.model and not options.model.startswith("preset:") else []
    found = []
    for folder in [*wanted, *_below(cwd, DEPTH)]:
        config = folder / "config.json"
        if config.is_file() and any(folder.glob("*.safetensors")):
            found.append(
                Found(kind="model", name=_shown(folder, cwd), argument=_shown(folder, cwd), about=_about(config))
            )
        elif not config.is_file():
            files = [folder] if folder.is_file() else sorted(folder.glob(f"*{ENDING}"))
            firsts = dict.fromkeys(parts_of(file)[0] for file in files)
            found += [
                Found(
                    kind="model",
                    name=_shown(file, cwd),
                    argument=_shown(file, cwd),
                    about="GGUF, converted on first use",
                )
                for file in firsts
                if is_gguf(file)
            ]
    return found[:MOST]


def _shown(path: Path, cwd: Path) -> str:
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) and path != cwd else str(path)


def _about(config: Path) -> str:
    try:
        data = json.loads(config.read_text(encoding="utf-8"))
        names = data.get("architectures") or [data.get("model_type", "")]
        layers = data.get("num_hidden_layers")
    except (OSError, ValueError, AttributeError):
        return "config.json is unreadable"
    return clean(f"{names[0]}{f', {layers} layers' if isinstance(layers, int) else ''}", 80)


def _newest(found: list[Found]) -> list[Found]:
    """Return runs and sessions in one row, the one that was started last first."""
    return sorted(found, key=lambda one: started(Path(one.argument)), reverse=True)


def _presets() -> list[Found]:
    names: list[str] = []
    for entry in entry_points(group="agentcompile.models"):
        names += list(entry.load())
    about = "a published shape, random weights, made on first use"
    return [
        Found(
            kind="preset", name=f"preset:{name}", argument=f"preset:{name}",
            about="the trained checkpoint that ships" if name == "sample" else about,
        )
        for name in names
    ]  # fmt: skip


def _runs(runs: Path) -> list[Found]:
    found = []
    for path in reversed(session.runs_in(runs)[-MOST:]):
        run = session.RunDirectory(path)
        try:
            options = run.options()
        except AgentCompileError as error:
            found.append(Found(kind="run", name=path.name, argument=str(path), about=error.message))
            continue
        model = str(options.get("model", "")) if isinstance(options, dict) else ""
        word = _word(run)
        about = clean(f"{word}, {model.rstrip('/').rpartition('/')[2]}", 80)
        found.append(Found(kind="run", name=path.name, argument=str(path), about=about))
    return found


def _sessions(runs: Path) -> list[Found]:
    found = []
    for path in reversed(sessions_in(runs)[-MOST:]):
        try:
            options, asked = SessionFolder.open(path).settings()
        except AgentCompileError as error:
            found.append(Found(kind="refine", name=path.name, argument=str(path), about=error.message))
            continue
        model = str(options.get("model", "")) if isinstance(options, dict) else ""
        word = _word(session.RunDirectory(path))
        about = clean(f"{word}, {asked.region or 'task'} of {model.rstrip('/').rpartition('/')[2]}", 80)
        found.append(Found(kind="refine", name=path.name, argument=str(path), about=about))
    return found


def _word(run: session.RunDirectory) -> str:
    """Return how a run stands, or why that cannot be read."""
    try:
        return glance(run)
    except AgentCompileError as error:
        return error.message


def _locks(cwd: Path) -> list[Found]:
    found = []
    for folder in _below(cwd, DEPTH):
        for path in sorted(folder.glob(f"*{LOCKS}")):
            found.append(Found(kind="lock", name=_shown(path, cwd), argument=_shown(path, cwd)))
    return found[:MOST]
