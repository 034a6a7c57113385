"""The verbs that steer and watch a run: `decide`, `runs attach`, `runs view`, `runs stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from agentcompile.cli import completing
from agentcompile.cli.flags import Events, Json, Quiet, Run, front_end, screen_of, verb
from agentcompile.cli.records import runs_app
from agentcompile.cli.verbs import app

__all__ = ["app"]


@app.command()
@verb
def decide(
    run: Run = "",
    region: Annotated[
        str,
        typer.Option(
            "--region", metavar="REGION", help="A region's name, kind or id.", autocompletion=completing.regions
        ),
    ] = "",
    approve: Annotated[bool, typer.Option("--approve", help="Run what was chosen for the region.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Run the region as captured, in PyTorch.")] = False,
    use: Annotated[str, typer.Option("--use", metavar="CANDIDATE", help="Run this one: a label or an id.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; an override needs it.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last decision.")] = False,
    approve_safe: Annotated[
        bool, typer.Option("--approve-safe", help="Approve every kernel that is measured faster.")
    ] = False,
    reject_rest: Annotated[bool, typer.Option("--reject-rest", help="Reject all that is undecided or stale.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Pause before the next candidate.")] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="Resume after a pause.")] = False,
    cancel: Annotated[
        str, typer.Option("--cancel", metavar="CANDIDATE", help="Cancel a candidate that is being evaluated.")
    ] = "",
    rerun: Annotated[str, typer.Option("--rerun", metavar="CANDIDATE", help="Evaluate a candidate again.")] = "",
    edit: Annotated[
        str, typer.Option("--edit", metavar="CANDIDATE", help="Evaluate a candidate with other parameters.")
    ] = "",
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter of --edit; repeatable.")
    ] = None,
    json: Json = False,
) -> int:
    """Decide on a run's regions and candidates, one action a call; without one, show what there is to decide on."""
    from agentcompile.cli import deciding

    asked = deciding.DecideFlags(
        region=region,
        approve=approve,
        reject=reject,
        use=use,
        reason=reason,
        undo=undo,
        approve_safe=approve_safe,
        reject_rest=reject_rest,
        pause=pause,
        go_on=go_on,
        cancel=cancel,
        rerun=rerun,
        edit=edit,
        params=tuple(param or ()),
    )
    return deciding.decide({}, run, asked, screen=screen_of(json))


@app.command()
@verb
def watch(
    run: Run = "",
    once: Annotated[bool, typer.Option("--once", help="Say how far it is now, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON to stdout at each change.")] = False,
) -> int:
    """Say how far a run is until it ends: stage, trials, best step, time left, machine; Ctrl-C leaves it running."""
    from agentcompile.cli import watching

    return watching.watch({}, run, once=once, screen=screen_of(json))


@runs_app.command("attach")
@verb
def runs_attach(run: Run = "", json: Json = False, events: Events = "", quiet: Quiet = False) -> int:
    """Follow a run until its compiler ends; Ctrl-C leaves it running."""
    from agentcompile.cli import watching

    return watching.attach({}, run, screen=screen_of(json, events, quiet))


@runs_app.command("view")
@verb
def runs_view(
    run: Run = "",
    speed: Annotated[float, typer.Option("--speed", metavar="N", help="Times as fast as it went; 0: at once.")] = 10.0,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Show a run again: in the app on a terminal, as lines elsewhere and with --json, --events or --quiet."""
    from agentcompile.cli import watching
    from agentcompile.cli.terminal import nobody

    if not (json or events or quiet) and speed >= 0 and not nobody() and (shows := front_end("tui")) is not None:
        return shows([str(watching.named({}, run)), *([f"--speed={speed:g}"] if speed else [])])
    return watching.view({}, run, speed=speed, screen=screen_of(json, events, quiet))


@runs_app.command("stop")
@verb
def runs_stop(run: Run = "", json: Json = False) -> int:
    """End a run's compiler; nothing is lost, `compile --resume` resumes it."""
    from agentcompile.cli import watching

    return watching.stop({}, run, screen=screen_of(json))
