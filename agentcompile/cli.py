"""The command line: flags become plain values, a verb is called, its exit code is the process's.

The verbs live in `commands/`, and are imported when they are called, so that `--help` and completion stay quick.
Verbs of front ends come from the entry points of the group ``agentcompile.verbs``.
"""

from __future__ import annotations

import functools
import gc
import io
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from agentcompile import __version__
from agentcompile.errors import AgentCompileError
from agentcompile.exits import guarded
from agentcompile.options import terminal
from agentcompile.render import Format, Screen

P = ParamSpec("P")

app = typer.Typer(
    name="agentcompile",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="An inference compiler: specialises a checkpoint's regions, judges them, and locks what is faster.",
)
runs_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Past and present runs.")
cache_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The store of sources and binaries.")
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Settings and where they come from.")
app.add_typer(runs_app, name="runs")
app.add_typer(cache_app, name="cache")
app.add_typer(config_app, name="config")

Checkpoint = Annotated[str | None, typer.Argument(metavar="MODEL", help="A checkpoint directory, or preset:NAME.")]
Model = Annotated[str | None, typer.Option("--model", help="The checkpoint, when the lock does not find it.")]
LockFile = Annotated[Path, typer.Argument(metavar="LOCK", help="A lock that `compile` wrote.")]
Target = Annotated[str | None, typer.Option("--target", help="auto, cpu or cuda:N.")]
Context = Annotated[str | None, typer.Option("--context", metavar="N", help="Tokens that the cache holds.")]
Batch = Annotated[str | None, typer.Option("--batch", metavar="N,…", help="Sequences in a step: 1,2,4,8; CUDA alone.")]
Threads = Annotated[str | None, typer.Option("--threads", metavar="N", help="Worker threads; 0: one a physical core.")]
Advisor = Annotated[str | None, typer.Option("--advisor", help="heuristic, none or random:SEED.")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="N", help="Trials the search may spend on each batch.")]
Seconds = Annotated[str | None, typer.Option("--seconds", metavar="S", help="Time that the search may spend; 0: any.")]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Seed of inputs, rounds and ties.")]
Out = Annotated[str | None, typer.Option("--out", metavar="LOCK", help="Where the lock is written.")]
RunDir = Annotated[str | None, typer.Option("--run-dir", metavar="DIR", help="Where the run's events lie.")]
Templates = Annotated[list[str] | None, typer.Option("--templates", metavar="DIR", help="More templates; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
Events = Annotated[str, typer.Option("--events", metavar="jsonl", help="A line of JSON an event on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # Graphs and programs are hundreds of thousands of small objects that live on: looking for garbage among them takes
    # a third of the time that making them does.
    gc.set_threshold(100_000, 20, 50)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    _add_verbs()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="agentcompile")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _verb(function: Callable[P, int]) -> Callable[P, None]:
    """A verb's exit code, or its exception's, becomes the process's."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(guarded(lambda: function(*args, **kwargs)))

    return run


def _screen(json: bool = False, events: str = "", quiet: bool = False) -> Screen:
    if events not in ("", "jsonl"):
        raise AgentCompileError(f"--events: {events!r} is not allowed", hint="allowed: jsonl")
    if json and events:
        raise AgentCompileError("--json and --events share stdout", hint="give one of them")
    format: Format = "json" if json else "events" if events else "text"
    redraws, colour = terminal()
    return Screen.standard(format, quiet=quiet, redraws=redraws, colour=colour)


def _version(asked: bool) -> None:
    if asked:
        Screen.standard().text(f"agentcompile {__version__}")
        raise typer.Exit(0)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Flags of no verb."""


@app.command()
@_verb
def compile(
    model: Checkpoint = None,
    target: Target = None,
    context: Context = None,
    batch: Batch = None,
    threads: Threads = None,
    advisor: Advisor = None,
    budget: Budget = None,
    seconds: Seconds = None,
    seed: Seed = None,
    out: Out = None,
    run_dir: RunDir = None,
    templates: Templates = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --run-dir, or the newest unfinished run.")
    ] = False,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Compile a checkpoint: capture, search, judge, and write its lock."""
    from agentcompile.commands import compiling

    flags = {
        "model": model,
        "target": target,
        "context": context,
        "batch": batch,
        "threads": threads,
        "advisor": advisor,
        "budget": budget,
        "seconds": seconds,
        "seed": seed,
        "out": out,
        "run_dir": run_dir,
        "templates": templates or None,
    }
    return compiling.compile(flags, resume=resume, screen=_screen(json, events, quiet))


@app.command()
@_verb
def inspect(
    model: Checkpoint = None,
    context: Context = None,
    threads: Threads = None,
    templates: Templates = None,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Show a checkpoint's regions: sites, FLOPs, bytes, floors, shares, and how many candidates each has."""
    from agentcompile.commands import compiling

    flags = {"model": model, "context": context, "threads": threads, "templates": templates or None}
    return compiling.inspect(flags, screen=_screen(json, events, quiet))


@app.command()
@_verb
def replay(
    lock: LockFile,
    model: Model = None,
    threads: Threads = None,
    templates: Templates = None,
    locked: Annotated[bool, typer.Option("--locked", help="Any drift is exit 3.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare only; build nothing.")] = False,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Rebuild and validate a lock on this machine, without an adviser or a network."""
    from agentcompile.commands import running

    flags = {"model": model, "threads": threads, "templates": templates or None}
    return running.replay(flags, lock, locked=locked, check=check, screen=_screen(json, events, quiet))


@app.command()
@_verb
def generate(
    lock: LockFile,
    prompt: Annotated[str, typer.Option("--prompt", help="The text to go on from.")],
    model: Model = None,
    threads: Threads = None,
    templates: Templates = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="0: all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="A text that ends it; repeatable.")] = None,
    beside_eager: Annotated[bool, typer.Option("--beside-eager", help="Time PyTorch eager on the same.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Stream text from a lock."""
    from agentcompile.commands import running
    from agentcompile.commands.flow import Request

    request = Request(
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
    )
    flags = {"model": model, "threads": threads, "templates": templates or None}
    return running.generate(flags, lock, request, beside_eager=beside_eager, screen=_screen(json, "", quiet))


@app.command()
@_verb
def verify(
    lock: LockFile,
    prompts: Annotated[Path, typer.Option("--prompts", metavar="FILE", help="Your prompts, one a line.")],
    model: Model = None,
    threads: Threads = None,
    templates: Templates = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure a lock's end-to-end accuracy on your own prompts."""
    from agentcompile.commands import running

    flags = {"model": model, "threads": threads, "templates": templates or None}
    return running.verify(flags, lock, prompts, screen=_screen(json, "", quiet))


@app.command()
@_verb
def explain(
    region: Annotated[str, typer.Argument(metavar="REGION", help="A region's name, kind or id.")],
    run_dir: RunDir = None,
    json: Json = False,
) -> int:
    """Say why a region's winner won: findings, errors and times of every candidate."""
    from agentcompile.commands import looking

    return looking.explain({"run_dir": run_dir}, region, screen=_screen(json))


@app.command()
@_verb
def export(
    format: Annotated[str, typer.Option("--format", metavar="t4|flashinfer", help="Who is to read it.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder; for T4 of one region, FILE.json.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder; none: the newest.")] = "",
    model: Annotated[str | None, typer.Option("--model", help="Where the run's checkpoint lies now.")] = None,
    json: Json = False,
) -> int:
    """Write a run's trials as Kernel Tuner's T4 results or as a FlashInfer-Bench trace set."""
    from agentcompile.commands import exporting

    return exporting.export({"model": model}, run, format, out, screen=_screen(json))


@app.command()
@_verb
def doctor(threads: Threads = None, json: Json = False) -> int:
    """Check what compiling needs on this machine: software, folders, and for CUDA driver, NVRTC, PyTorch and GPUs."""
    from agentcompile.commands import doctor as check

    return check.doctor({"threads": threads}, screen=_screen(json))


@runs_app.command("list")
@_verb
def runs_list(json: Json = False) -> int:
    """Every run, oldest first."""
    from agentcompile.commands import looking

    return looking.runs_list({}, screen=_screen(json))


@runs_app.command("status")
@_verb
def runs_status(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder; none: the newest.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Every region, not the plan's alone.")] = False,
    json: Json = False,
) -> int:
    """How far a run is."""
    from agentcompile.commands import looking

    return looking.runs_status({}, run, every=every, screen=_screen(json))


@runs_app.command("pack")
@_verb
def runs_pack(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder; no compiler may hold it.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The archive; none: RUN.run.tar.xz, here.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a run to one file of at most 16 MiB, to go on with it elsewhere.

    It holds the run's events with all finished trials, its options, and small facts: the machine's ceilings, times of
    PyTorch, which kernels passed every check. Binaries, captured graphs and weights are made or found again.
    """
    from agentcompile.commands import packing

    return packing.runs_pack({}, run, out, screen=_screen(json))


@runs_app.command("unpack")
@_verb
def runs_unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `runs pack` wrote; one of your own.")],
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", metavar="DIR", help="The new run directory; none: among the runs.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Where the checkpoint lies now; none: where it was.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="LOCK", help="Where the lock will be written; none: as in compile.")
    ] = None,
    templates: Annotated[
        list[str] | None, typer.Option("--templates", metavar="DIR", help="Where its own templates lie now.")
    ] = None,
    json: Json = False,
) -> int:
    """Make a run directory of an archive, to go on with `compile --resume --run-dir DIR`.

    Finished trials are not repeated on a machine of the same kind; on another kind they count for nothing.
    """
    from agentcompile.commands import packing

    flags = {"run_dir": run_dir, "model": model, "out": out, "templates": templates or None}
    return packing.runs_unpack(flags, file, screen=_screen(json))


@cache_app.command("ls")
@_verb
def cache_list(json: Json = False) -> int:
    """What the store, the measurement database and the runs take."""
    from agentcompile.commands import looking

    return looking.cache_list({}, screen=_screen(json))


@cache_app.command("prune")
@_verb
def cache_prune(
    keep_mb: Annotated[int, typer.Option("--keep-mb", min=0, help="Megabytes that may remain.")] = 0,
    json: Json = False,
) -> int:
    """Delete the least recently written files of the store; they are made again when they are needed."""
    from agentcompile.commands import looking

    return looking.cache_prune({}, keep_mb=keep_mb, screen=_screen(json))


@config_app.command("show")
@_verb
def config_show(json: Json = False) -> int:
    """Every setting with its value and where that came from."""
    from agentcompile.commands import looking

    return looking.config_show({}, screen=_screen(json))


def _add_verbs() -> None:
    """Front ends' verbs: each takes the rest of the line as it is."""
    known = {command.name for command in app.registered_commands}
    for entry in sorted(entry_points(group="agentcompile.verbs"), key=lambda entry: entry.name):
        if entry.name in known:
            continue

        def verb(context: typer.Context, entry: EntryPoint = entry) -> int:
            run: Callable[[Sequence[str]], int] = entry.load()
            return run(context.args)

        raw = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(entry.name, context_settings=raw, help=f"See `agentcompile {entry.name} --help`.")(_plain(verb))


def _plain(verb: Callable[[typer.Context], int]) -> Callable[[typer.Context], None]:
    """The same verb with a signature that holds nothing but the context."""

    def run(context: typer.Context) -> None:
        raise typer.Exit(guarded(lambda: verb(context)))

    return run
