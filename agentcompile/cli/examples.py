"""What stands below a verb's options in its help: lines that can be typed as they are, or with a name put in.

A test parses each with the verb that it names.
"""

from __future__ import annotations

from collections.abc import Mapping

import typer

from agentcompile.cli.paragraphs import below
from agentcompile.cli.refine_verbs import START

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "compile": (
        "agentcompile compile bench/models/sample --seconds 120",
        "agentcompile compile MODEL --target cuda:0 --batch 1,4 --bundle",
        "agentcompile compile --resume",
    ),
    "inspect": ("agentcompile inspect bench/models/sample",),
    "advise": (
        "agentcompile advise MODEL --advisor openai:NAME --show-prompt",
        "agentcompile advise MODEL --region rmsnorm-linear --run latest",
    ),
    "replay": ("agentcompile replay sample.lock.toml --check", "agentcompile replay sample.lock.toml --locked"),
    "bundle": ("agentcompile bundle sample.lock.toml",),
    "generate": (
        "agentcompile generate sample.lock.toml --prompt 'def main():'",
        "agentcompile generate my-model.lock.toml --chat --prompt 'Who are you?'",
        "agentcompile generate sample.lock.toml --prompt - < prompt.txt",
        "agentcompile generate sample.lock.toml --prompt-ids 1,15,7 --json",
    ),
    "verify": ("agentcompile verify sample.lock.toml --prompts prompts.txt",),
    "explain": ("agentcompile explain rmsnorm-linear", "agentcompile explain linear --run-dir latest --json"),
    "diff": ("agentcompile diff old.lock.toml new.lock.toml", "agentcompile diff old.lock.toml latest"),
    "export": (
        "agentcompile export --format t4 --out trials",
        "agentcompile export latest --format flashinfer --out traces",
    ),
    "doctor": ("agentcompile doctor", "agentcompile doctor --json"),
    "report": ("agentcompile report", "agentcompile report latest --out run.html"),
    "decide": (
        "agentcompile decide",
        "agentcompile decide latest --approve-safe",
        "agentcompile decide --region rmsnorm --reject --reason 'not this one'",
    ),
    "watch": ("agentcompile watch", "agentcompile watch latest --once --json"),
    "runs list": ("agentcompile runs list", "agentcompile runs list --json"),
    "runs status": ("agentcompile runs status", "agentcompile runs status latest --all"),
    "runs pack": ("agentcompile runs pack latest --out mine.run.tar.xz",),
    "runs unpack": ("agentcompile runs unpack mine.run.tar.xz --model MODEL",),
    "runs rm": ("agentcompile runs rm 20260101-120000-sample --yes",),
    "runs attach": ("agentcompile runs attach", "agentcompile runs attach latest --events jsonl"),
    "runs view": ("agentcompile runs view latest --speed 0",),
    "runs stop": ("agentcompile runs stop",),
    "cache ls": ("agentcompile cache ls",),
    "cache prune": ("agentcompile cache prune --keep-mb 500",),
    "config show": ("agentcompile config show",),
    f"refine {START}": (
        "agentcompile refine MODEL --region rmsnorm --advisor openai:NAME",
        "agentcompile refine TASK.py --advisor openai:NAME --attempts 10",
        "agentcompile refine --resume",
    ),
    "refine show": ("agentcompile refine show", "agentcompile refine show latest --node 3"),
    "refine prune": ("agentcompile refine prune latest 3",),
    "refine pause": ("agentcompile refine pause",),
    "refine resume": ("agentcompile refine resume",),
    "refine stop": ("agentcompile refine stop latest --now",),
    "refine promote": ("agentcompile refine promote latest 3",),
}
"""The lines of each verb, by the words that name it."""


def shown_by(app: typer.Typer, words: str = "") -> None:
    """Put the examples below the help of every verb of an app."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        if lines := EXAMPLES.get(f"{words}{name}"):
            command.epilog = f"\b\n{below(lines)}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        shown_by(group.typer_instance, f"{words}{group.name} ")
