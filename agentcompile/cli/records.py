"""The verbs on what is kept: runs, the store, settings; the code of each is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentcompile.cli import completing
from agentcompile.cli.flags import HELP, Json, Run, screen_of, verb
from agentcompile.cli.verbs import app

runs_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, context_settings=HELP, help="Past and present runs."
)
cache_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, context_settings=HELP, help="The store of sources and binaries."
)
config_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, context_settings=HELP, help="Settings and where they come from."
)


@runs_app.command("list")
@verb
def runs_list(json: Json = False) -> int:
    """Every run, oldest first."""
    from agentcompile.cli import looking

    return looking.runs_list({}, screen=screen_of(json))


@runs_app.command("status")
@verb
def runs_status(
    run: Run = "",
    every: Annotated[bool, typer.Option("--all", help="Every region, not the plan's alone.")] = False,
    json: Json = False,
) -> int:
    """How far a run is."""
    from agentcompile.cli import looking

    return looking.runs_status({}, run, every=every, screen=screen_of(json))


@runs_app.command("pack")
@verb
def runs_pack(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's name or folder, or latest; no compiler may hold it.",
            autocompletion=completing.runs,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The archive; none: RUN.run.tar.xz, here.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a run to one file of at most 16 MiB, to go on with it elsewhere.

    It holds the run's events with all finished trials, its options, and small facts: the machine's ceilings, times of
    PyTorch, which kernels passed every check. Binaries, captured graphs and weights are made or found again.
    """
    from agentcompile.cli import packing

    return packing.runs_pack({}, run, out, screen=screen_of(json))


@app.command()
@verb
def report(
    run: Run = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page; none: RUN.report.html, here.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a run as one HTML page that needs nothing beside it: plots, tables, kernel sources, advice."""
    from agentcompile.cli import reporting

    return reporting.report({}, run, out, screen=screen_of(json))


@runs_app.command("unpack")
@verb
def runs_unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `runs pack` wrote; one of your own.")],
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", metavar="DIR", help="The new run directory; none: among the runs.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Where the checkpoint is now; none: where it was.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="LOCK", help="Where the lock will be written; none: as in compile.")
    ] = None,
    templates: Annotated[
        list[str] | None, typer.Option("--templates", metavar="DIR", help="Where its own templates are now.")
    ] = None,
    json: Json = False,
) -> int:
    """Make a run directory of an archive, to go on with `compile --resume --run-dir DIR`.

    Finished trials are not repeated on a machine of the same kind; on another kind they count for nothing.
    """
    from agentcompile.cli import packing

    flags = {"run_dir": run_dir, "model": model, "out": out, "templates": templates or None}
    return packing.runs_unpack(flags, file, screen=screen_of(json))


@runs_app.command("rm")
@verb
def runs_remove(
    run: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Names or folders of runs, or latest.", autocompletion=completing.runs),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> int:
    """Delete runs with all that they hold; locks that they wrote stay."""
    from agentcompile.cli import looking

    return looking.runs_remove({}, run, sure=yes, screen=screen_of(json))


@cache_app.command("ls")
@verb
def cache_list(json: Json = False) -> int:
    """Show what the store, converted GGUF files, presets, the measurement database and the runs take."""
    from agentcompile.cli import looking

    return looking.cache_list({}, screen=screen_of(json))


@cache_app.command("prune")
@verb
def cache_prune(
    keep_mb: Annotated[int, typer.Option("--keep-mb", metavar="N", min=0, help="Megabytes that may remain.")] = 0,
    json: Json = False,
) -> int:
    """Delete the least recently used converted GGUF files and files of the store; both are made again when needed."""
    from agentcompile.cli import looking

    return looking.cache_prune({}, keep_mb=keep_mb, screen=screen_of(json))


@config_app.command("show")
@verb
def config_show(json: Json = False) -> int:
    """Every setting with its value and where that came from."""
    from agentcompile.cli import looking

    return looking.config_show({}, screen=screen_of(json))
