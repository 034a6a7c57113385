"""The command `agentcompile bench RECIPE …`, an entry point of the group ``agentcompile.verbs``."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence

from agentcompile.cli.paragraphs import below
from agentcompile.errors import AgentCompileError, ExitCode

Recipe = Callable[[Sequence[str]], int]

RECIPES: Mapping[str, tuple[str, str]] = {
    "run": ("suite.run", "end-to-end workloads beside peers, one result file; `run` may be left out before options"),
    "figures": ("figures.recipe", "decode rates beside peers, compile times and accuracy, on this CPU or GPU"),
    "firsts": ("figures.firsts", "the time to the first token by length of the prompt, beside peers"),
    "harness": ("selftest", "the timing protocol tested on the real timer of this machine"),
    "busy": ("busy.recipe", "a compile and its lock on a quiet machine and beside spinning processes"),
    "overhead": ("overhead", "what the suite's own collecting costs a token, on the real timer"),
    "ladder": ("ladder.recipe", "from eager to the normal compile one step at a time, and which region gains what"),
    "steps": ("steps", "where a CUDA lock's decode step spends its time, by context, launch and region"),
    "long": ("figures.long", "logits far into the cache beside fp32, for a lock and for PyTorch"),
    "advised": ("advised", "what a model's answers were in compiles that it advised: read, accepted, refused and why"),
    "refine": ("refine.recipe", "arms of agents that write kernels for tasks, at equal attempts and equal tokens"),
    "app": ("app", "the terminal app: first paint, heartbeat under load, opening a long run, a compile beside it"),
    "spaces": ("ablation.recording", "the whole space of regions of a model, timed, for `agentcompile ablate --space`"),
    "campaign": ("campaign.recipe", "attacks in bulk: kills, locks, advice, mutants, wrong calls"),
    "compare": ("suite.compare", "two result files of the suite, or two arms of one: what is faster, slower, the same"),
    "report": ("report.recipe", "a suite's result as Markdown, plots and one HTML page"),
    "readme": ("readme", "put the committed results into README.md"),
}
"""Recipe name to (module below this package, one line about it); the module's `run(arguments) -> int` runs it."""
WORDS: Mapping[str, str] = {name: about for name, (_, about) in RECIPES.items()}
"""Recipe name to one line about it, for a shell's completion."""

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": ("--suite ci --out suite.json", "--suite cpu --seconds 60 --out suite.json"),
    "figures": ("--model qwen3-0.6b --out figures.json", "--target cuda:0 --model llama-3.2-1b"),
    "firsts": ("sample.lock.toml --model sample --out firsts.json",),
    "harness": ("--out harness.json",),
    "busy": ("--spinning 2 --out busy.json",),
    "overhead": ("--lock sample.lock.toml --model sample",),
    "ladder": ("--seconds 60 --out ladder.json",),
    "steps": ("cuda.lock.toml --out steps.json",),
    "long": ("sample.lock.toml --model sample --out long.json",),
    "advised": ("RUN --out advised.json",),
    "refine": ("softmax.py --attempts 5 --advisor openai:NAME",),
    "app": ("--out app.json",),
    "spaces": ("bench/models/sample --kind linear-residual",),
    "campaign": ("--kind mutants --count 60 --only linear", "--kind false-rejects --only attention"),
    "compare": ("before.json after.json --fail-on-slower", "suite.json --arms agentcompile,hf-eager"),
    "report": ("suite.json --out suite",),
    "readme": ("--check",),
}
"""What may follow each recipe's name, below its help."""


def run(arguments: Sequence[str]) -> int:
    """Run the recipe that comes first with the other arguments, or list the recipes; return an exit code.

    Options without a recipe are those of `run`.

    Raises:
        AgentCompileError: there is no such recipe (usage).
        SystemExit: the recipe showed its help, or refused an option.
    """
    from importlib import import_module

    name = arguments[0] if arguments else ""
    if name.startswith("--") and name != "--help":
        name, arguments = "run", ["run", *arguments]
    if name in ("", "-h", "--help"):
        print("usage: agentcompile bench RECIPE [ARGUMENTS]\n\nrecipes:")
        for recipe, (_, about) in RECIPES.items():
            width = max(40, shutil.get_terminal_size().columns)
            print(textwrap.fill(f"  {recipe:<10} {about}", width, subsequent_indent=" " * 13))
        return ExitCode.OK if name else ExitCode.USAGE
    if name not in RECIPES:
        raise AgentCompileError(f"bench: no recipe is called {name!r}", hint=f"recipes: {', '.join(RECIPES)}")
    module = import_module(f".{RECIPES[name][0]}", __package__)
    recipe_run: Recipe = module.run
    try:
        return recipe_run(arguments[1:])
    except SystemExit as ended:  # argparse ends so when it has shown its help
        if not ended.code and {"-h", "--help"}.intersection(arguments):
            print(f"\n{below([f'agentcompile bench {name} {line}' for line in EXAMPLES[name]])}")
        raise
