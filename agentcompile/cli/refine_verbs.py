"""The verb `refine` and its own verbs: a word after `refine` that is none of them is a checkpoint, or a task's file."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentcompile.cli import completing
from agentcompile.cli.flags import SESSION, Events, Flags, Json, Quiet, screen_of, takes, verb
from agentcompile.cli.steering import app

__all__ = ["app"]

START = "MODEL"
"""The command behind `refine MODEL`."""


class _Refine(TyperGroup):
    """A group whose other first words are arguments of its own command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name the usual command as its group, in the line that shows its use."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == START else name, command, rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the usual command in front, where no other is named."""
        if not args or args[0] not in self.commands or args[0] == START:
            args = [START, *args]
        return super().parse_args(ctx, args)


refine_app = typer.Typer(
    cls=_Refine,
    rich_markup_mode=None,
    help="Let models write kernels for regions or tasks. `refine MODEL --region R` is for a region of a checkpoint, "
    "`refine TASK.py` for a task; the other verbs look at a session and steer it.",
)
app.add_typer(refine_app, name="refine")
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A session's name or folder, or latest (the default).",
        autocompletion=completing.sessions,
    ),
]
Named = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A session's name or folder, or latest.", autocompletion=completing.sessions),
]
Node = Annotated[int, typer.Argument(metavar="NODE", help="A node's number.")]
_Who = "openai:MODEL[@BASE_URL]"
_Heat = "0 to 2, or none to leave it to the server."
_Key = "The variable with that model's key, if not the adviser's."
_Price = "Its price per million tokens, if not the adviser's."


@refine_app.command(START, hidden=True)
@verb
@takes(
    "model target context threads advisor",
    "advisor_key advisor_calls advisor_tokens advisor_cents advisor_price advisor_context advisor_seconds",
    "seconds seed run_dir templates user_templates",
    model="A checkpoint directory, preset:NAME, or a task's .py file in KernelBench's format.",
    context="Maximum context length in tokens; unset: 2,048, or the model's where that is less.",
    advisor="Who answers for all roles: openai:MODEL[@BASE_URL]; or replay:DIR.",
    usual={**SESSION, "advisor": ""},
    advisor_calls="Request limit for all models.",
    advisor_tokens="Token limit for all models, questions and answers together.",
    advisor_seconds="Time limit in seconds for all answers.",
    seconds="Time limit in seconds, resumed sessions included, after which no attempt begins (0 = none).",
    seed="Random seed of inputs, rounds and choices of nodes.",
)
def start(
    flags: Flags,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            metavar="R",
            help="A checkpoint's region: name, kind or id.",
            autocompletion=completing.regions,
        ),
    ] = None,
    language: Annotated[
        str | None, typer.Option("--language", metavar="cpp|cuda|triton", help="None: the target's usual one.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", metavar="N", help="Attempt limit. [default: 30]")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Which node is worked on: epsilon-greedy, greedy, mcts or evolutionary; NAME:KEY=VALUE,… changes it.",
        ),
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option("--arm", metavar="ARM", help="stark, sampling, reflexion, search-only or agents-only."),
    ] = None,
    patience: Annotated[
        int | None, typer.Option("--patience", metavar="N", help="Attempts without a faster kernel (0 = no limit).")
    ] = None,
    plan: Annotated[str | None, typer.Option("--plan", metavar=_Who, help="Who plans, if not the adviser.")] = None,
    code: Annotated[str | None, typer.Option("--code", metavar=_Who, help="Who writes.")] = None,
    debug: Annotated[str | None, typer.Option("--debug", metavar=_Who, help="Who fixes what failed.")] = None,
    plan_temperature: Annotated[str | None, typer.Option("--plan-temperature", metavar="T", help=_Heat)] = None,
    code_temperature: Annotated[str | None, typer.Option("--code-temperature", metavar="T", help=_Heat)] = None,
    debug_temperature: Annotated[str | None, typer.Option("--debug-temperature", metavar="T", help=_Heat)] = None,
    plan_key: Annotated[str | None, typer.Option("--plan-key", metavar="VARIABLE", help=_Key)] = None,
    code_key: Annotated[str | None, typer.Option("--code-key", metavar="VARIABLE", help=_Key)] = None,
    debug_key: Annotated[str | None, typer.Option("--debug-key", metavar="VARIABLE", help=_Key)] = None,
    plan_price: Annotated[str | None, typer.Option("--plan-price", metavar="IN,OUT", help=_Price)] = None,
    code_price: Annotated[str | None, typer.Option("--code-price", metavar="IN,OUT", help=_Price)] = None,
    debug_price: Annotated[str | None, typer.Option("--debug-price", metavar="IN,OUT", help=_Price)] = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="DIR", help="Where exchanges are kept; none: RUN/exchanges.")
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="DIR", help="Exchanges that answer in place of models.")
    ] = None,
    answered_by: Annotated[
        str | None, typer.Option("--answered-by", metavar="TEXT", help="Who answers, for the record.")
    ] = None,
    promote: Annotated[
        bool | None, typer.Option("--promote", help="Write the best kernel to the folder of written templates.")
    ] = None,
    unsafe: Annotated[
        bool | None, typer.Option("--unsafe", help="Run written code unconfined, where nothing can be confined.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume --run-dir, or the newest unfinished session.")
    ] = False,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Let language models write kernels for a region of a checkpoint, or for a task; each passes the same gates.

    Other verbs look at a session and steer it: `refine show`, `prune`, `pause`, `resume`, `stop` and `promote`.
    """
    from agentcompile.cli import refining

    given: dict[str, object] = {
        "region": region,
        "language": language,
        "attempts": attempts,
        "strategy": strategy,
        "arm": arm,
        "patience": patience,
        "plan": plan,
        "code": code,
        "debug": debug,
        "plan_temperature": plan_temperature,
        "code_temperature": code_temperature,
        "debug_temperature": debug_temperature,
        "plan_key": plan_key,
        "code_key": code_key,
        "debug_key": debug_key,
        "plan_price": plan_price,
        "code_price": code_price,
        "debug_price": debug_price,
        "record": record,
        "replay": replay,
        "answered_by": answered_by,
        "promote": promote,
        "unsafe": unsafe,
    }
    return refining.refine(flags, given, resume=resume, screen=screen_of(json, events, quiet))


@refine_app.command("show")
@verb
def refine_show(
    run: Run = "",
    node: Annotated[int | None, typer.Option("--node", metavar="N", help="All about one node.")] = None,
    json: Json = False,
) -> int:
    """Show a session's tree; with --node a node's changes to its parent, its verdict and its feedback."""
    from agentcompile.cli import refine_steering

    return refine_steering.show({}, run, node=node, screen=screen_of(json))


@refine_app.command("prune")
@verb
def refine_prune(run: Named, node: Node, json: Json = False) -> int:
    """Close the branch that begins at a node."""
    from agentcompile.cli import refine_steering

    return refine_steering.prune({}, run, node, screen=screen_of(json))


@refine_app.command("pause")
@verb
def refine_pause(run: Run = "", json: Json = False) -> int:
    """Pause a session before its next attempt."""
    from agentcompile.cli import refine_steering

    return refine_steering.command({}, run, "pause", screen=screen_of(json))


@refine_app.command("resume")
@verb
def refine_resume(run: Run = "", json: Json = False) -> int:
    """Resume a paused session; one that ended is resumed with `refine --resume --run-dir RUN`."""
    from agentcompile.cli import refine_steering

    return refine_steering.command({}, run, "resume", screen=screen_of(json))


@refine_app.command("stop")
@verb
def refine_stop(
    run: Run = "",
    now: Annotated[bool, typer.Option("--now", help="At once, in the middle of an attempt.")] = False,
    json: Json = False,
) -> int:
    """End a session after its attempt; nothing is lost, `refine --resume` resumes it."""
    from agentcompile.cli import refine_steering

    return refine_steering.stop({}, run, now=now, screen=screen_of(json))


@refine_app.command("promote")
@verb
def refine_promote(
    run: Named,
    node: Node,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The template's name; none: from its text.")] = "",
    json: Json = False,
) -> int:
    """Write a node's kernel to the folder of written templates; `compile` searches those of regions."""
    from agentcompile.cli import refine_steering

    return refine_steering.promote({}, run, node, called=name, screen=screen_of(json))
