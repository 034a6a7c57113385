"""The verbs on a checkpoint and on its lock; the code of each is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentcompile.cli import completing
from agentcompile.cli.flags import (
    HELP,
    Events,
    Flags,
    Json,
    LockFile,
    Quiet,
    Run,
    RunDir,
    on_lock,
    screen_of,
    takes,
    verb,
)

app = typer.Typer(
    name="agentcompile",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
    help="An inference compiler: specialises, validates and measures a checkpoint's regions, and locks what is faster.",
)


@app.command()
@verb
@takes(
    "model target context batch threads advisor strategy choose",
    "advisor_key advisor_calls advisor_tokens advisor_cents advisor_price advisor_context advisor_seconds",
    "budget seconds memory seed out run_dir templates user_templates review",
)
def compile(
    flags: Flags,
    resume: Annotated[bool, typer.Option("--resume", help="Resume --run-dir, or the newest unfinished run.")] = False,
    bundle: Annotated[bool, typer.Option("--bundle", help="Write the lock's sources beside it, as one file.")] = False,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Compile a checkpoint: capture, search, validate, measure, and write its lock."""
    from agentcompile.cli import compiling

    return compiling.compile(flags, resume=resume, screen=screen_of(json, events, quiet), bundle=bundle)


@app.command()
@verb
@takes("model context threads templates user_templates")
def inspect(
    flags: Flags,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Show a checkpoint's regions: occurrences, FLOPs, bytes, rooflines, shares, and how many candidates each has."""
    from agentcompile.cli import compiling

    return compiling.inspect(flags, screen=screen_of(json, events, quiet))


@app.command()
@verb
@takes(
    "model target context threads advisor",
    "advisor_key advisor_calls advisor_tokens advisor_cents advisor_price advisor_context advisor_seconds templates",
    "user_templates",
)
def advise(
    flags: Flags,
    region: Annotated[
        str,
        typer.Option(
            "--region",
            metavar="REGION",
            help="A region's name, kind or id, asked alone; none: all.",
            autocompletion=completing.regions,
        ),
    ] = "",
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="RUN",
            help="A run whose trials the adviser sees: name, folder or latest.",
            autocompletion=completing.runs,
        ),
    ] = "",
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Show what would be asked; ask nobody.")] = False,
    record: Annotated[Path | None, typer.Option("--record", metavar="DIR", help="Where exchanges are kept.")] = None,
    answered_by: Annotated[
        str, typer.Option("--answered-by", metavar="TEXT", help="Who answers, for the record.")
    ] = "",
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Ask the adviser about a checkpoint's regions and show what it says; nothing is built or timed."""
    from agentcompile.cli import advising

    screen = screen_of(json, events, quiet)
    return advising.advise(
        flags, show_prompt=show_prompt, record=record, region=region, answered_by=answered_by, run=run, screen=screen
    )


@app.command()
@verb
@on_lock
def replay(
    lock: LockFile,
    flags: Flags,
    locked: Annotated[bool, typer.Option("--locked", help="End with exit code 3 on any drift.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare only; build nothing.")] = False,
    json: Json = False,
    events: Events = "",
    quiet: Quiet = False,
) -> int:
    """Rebuild and validate a lock on this machine, without an adviser or a network."""
    from agentcompile.cli import running

    return running.replay(flags, lock, locked=locked, check=check, screen=screen_of(json, events, quiet))


@app.command()
@verb
@on_lock
def bundle(
    lock: LockFile,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="None: LOCK.bundle.tar.xz, beside it.")
    ] = None,
    flags: Flags,
    json: Json = False,
) -> int:
    """Write a lock with its kernels' sources, templates and a build script to one file, which outlives the templates.

    Every verb that takes a lock takes a bundle, and finds one that is beside its lock.
    """
    from agentcompile.cli import running

    return running.bundle(flags, lock, out, screen=screen_of(json))


@app.command()
@verb
@on_lock
def generate(
    lock: LockFile,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="TEXT", help="Prompt (repeatable); - reads it from stdin.")
    ] = None,
    prompt_ids: Annotated[
        list[str] | None, typer.Option("--prompt-ids", metavar="N,…", help="Prompt as token ids (repeatable).")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Render each prompt in the checkpoint's chat template.")] = False,
    *,
    flags: Flags,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", metavar="N", min=1, help="Most new tokens.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0.0, help="Sampling temperature (0 = greedy).")
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="K", min=0, help="Sample from the k likeliest tokens (0 = all).")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p", metavar="P", min=0.0, max=1.0, help="Sample from the likeliest tokens of this total probability."
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed of sampling.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Text at which generation stops (repeatable).")
    ] = None,
    beside_eager: Annotated[
        bool, typer.Option("--beside-eager", help="Time PyTorch eager on the same prompt, too.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Stream text from a lock."""
    from agentcompile.cli import running
    from agentcompile.cli.flow import GenerateRequest

    request = GenerateRequest(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
    )
    prompts = running.prompts_of(prompt or (), prompt_ids or (), chat=chat)
    screen = screen_of(json, "", quiet)
    return running.generate(flags, lock, prompts, request, beside_eager=beside_eager, screen=screen)


@app.command()
@verb
@on_lock
def verify(
    lock: LockFile,
    prompts: Annotated[Path, typer.Option("--prompts", metavar="FILE", help="Your prompts, one a line; - for stdin.")],
    flags: Flags,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure a lock's end-to-end accuracy on your own prompts."""
    from agentcompile.cli import running

    return running.verify(flags, lock, prompts, screen=screen_of(json, "", quiet))


@app.command()
@verb
def explain(
    region: Annotated[
        str,
        typer.Argument(metavar="REGION", help="A region's name, kind or id.", autocompletion=completing.regions),
    ],
    run_dir: RunDir = None,
    json: Json = False,
) -> int:
    """Say why a region's winner won: findings, errors and times of every candidate."""
    from agentcompile.cli import looking

    return looking.explain({"run_dir": run_dir}, region, screen=screen_of(json))


@app.command()
@verb
def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A lock, a bundle, or a run that wrote a lock.", autocompletion=completing.runs
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.", autocompletion=completing.runs)],
    json: Json = False,
) -> int:
    """Show what two locks choose otherwise, what they were made with, and what each measured."""
    from agentcompile.cli import differing

    return differing.diff({}, a, b, screen=screen_of(json))


@app.command()
@verb
def export(
    format: Annotated[str, typer.Option("--format", metavar="t4|flashinfer", help="Output format.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder; for T4 of one region, FILE.json.")],
    run: Run = "",
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR", help="Checkpoint directory, when it has moved.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a run's trials as Kernel Tuner's T4 results or as a FlashInfer-Bench trace set."""
    from agentcompile.cli import exporting

    return exporting.export({"model": model}, run, format, out, screen=screen_of(json))


@app.command()
@verb
@takes("threads")
def doctor(flags: Flags, json: Json = False) -> int:
    """Check what compiling needs on this machine: software, folders, and for CUDA driver, NVRTC, PyTorch and GPUs."""
    from agentcompile.cli import doctor as check

    return check.doctor(flags, screen=screen_of(json))
