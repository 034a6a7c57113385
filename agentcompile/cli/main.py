"""The command line: flags become plain values, a verb is called, its exit code is the process's.

The code of a verb lies in a module beside this one, imported when it is called, so that `--help` and completion stay
quick. Verbs of front ends come from the entry points of the group ``agentcompile.verbs``.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer
from typer.main import get_command

from agentcompile import __version__
from agentcompile.cli import completing, examples, stdout
from agentcompile.cli.flags import sound
from agentcompile.cli.records import cache_app, config_app, runs_app
from agentcompile.cli.refine_verbs import app

app.add_typer(runs_app, name="runs")
app.add_typer(cache_app, name="cache")
app.add_typer(config_app, name="config")
examples.shown_by(app)

_FRONT_ENDS = {
    "ablate": "Measure what an adviser's order or a strategy is worth.",
    "bench": "Run, compare and show benchmarks.",
    "tui": "Watch and steer runs in the terminal app.",
}
"""What the verbs of this package's own front ends do, which are not imported for a list of verbs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # Graphs and programs are hundreds of thousands of small objects that live on: looking for garbage among them takes
    # a third of the time that making them does.
    gc.set_threshold(100_000, 20, 50)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    _add_verbs()
    return stdout.flushed(lambda: _called(list(sys.argv[1:] if arguments is None else arguments)))


def _called(arguments: list[str]) -> int:
    """Call the verb that a line names; a line that is wrong is shown with how the verb is used."""
    from typer._click.exceptions import ClickException

    try:
        command = completing.unconverted(get_command(app))
        return int(command(args=arguments, prog_name="agentcompile", standalone_mode=False) or 0)
    except ClickException as error:
        error.show()
        if _asks_json(arguments):
            from agentcompile.cli.exits import failed

            failed(error.format_message(), "agentcompile --help", error.exit_code)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _asks_json(arguments: Sequence[str]) -> bool:
    return "--json" in arguments


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"agentcompile {__version__}")
        raise typer.Exit(0)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Handle the flags that belong to no verb."""


def _add_verbs() -> None:
    """Register the front ends' verbs, each of which takes the rest of the line as it is."""
    known = {command.name for command in app.registered_commands}
    for entry in sorted(entry_points(group="agentcompile.verbs"), key=lambda entry: entry.name):
        if entry.name in known:
            continue

        def verb(context: typer.Context, entry: EntryPoint = entry) -> int:
            sound(entry.name, context.args)
            run: Callable[[Sequence[str]], int] = entry.load()
            with stdout.telling():
                return run(context.args)

        raw = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(
            entry.name,
            cls=completing.front_end(entry.name),
            context_settings=raw,
            help=_FRONT_ENDS.get(entry.name, f"See `agentcompile {entry.name} --help`."),
        )(_plain(verb))


def _plain(verb: Callable[[typer.Context], int]) -> Callable[[typer.Context], None]:
    """Return the verb with a signature of the context alone, from which Typer makes no options."""

    def run(context: typer.Context) -> None:
        from agentcompile.cli.exits import guarded

        raise typer.Exit(guarded(lambda: verb(context), json=_asks_json(context.args)))

    return run
