"""`agentcompile ablate`: what an adviser's order is worth on this machine, or a search strategy on recorded spaces.

MODEL… --arms none,heuristic,random,replay:DIR compares advisers: every candidate of every hot region of the models is
built, validated and timed once on this machine, all of a region beside one another, and the place of the fastest in
each adviser's order is reported. --times takes the times of an earlier result.

--space FILE --strategies "random;halving" compares search strategies: each searches each recorded space with each seed,
and gets the recorded time or failure of what it proposes at once. Nothing is built or run, and no network is used. A
space that `agentcompile bench spaces` recorded has its question beside it, so that a strategy may be advised there:
"halving@heuristic;mcts+advice@replay:DIR" (none, heuristic, random, replay:DIR, openai:MODEL@URL with --record DIR, and
on any space worst, which knows every time and says the opposite). An evaluation is a distinct candidate that was
proposed, a failed one too. A FILE is a cache of Kernel Tuner or a T4 results document (schema 1.0.0, as `agentcompile
export` writes), each also as .gz, of at most 256 MB. A T4 document with several trials of a candidate counts the last
one.

MODEL… --strategies "halving;mcts@none" compares both in real compiles: every arm, a strategy and after @ an adviser
(heuristic), compiles every model by the command line with every seed, in folders of its own, within --seconds and
--budget, --seeds times (1); then the decode steps of a seed's locks are timed beside one another.

--out FILE.json writes the result, a figure as FILE.png and FILE.svg, and for spaces FILE.csv and FILE.md as well. With
spaces, FILE.json is written about every second, and the same command goes on from it after a stop: finished searches
are taken over unless the space, the budget or the code of the strategies changed, and others in the file are replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from agentcompile.checkpoint.locate import find_model
from agentcompile.cli.paragraphs import Paragraphs, below
from agentcompile.errors import AgentCompileError
from agentcompile.options import resolve
from agentcompile.search import STRATEGIES

from . import files, recorded, study
from .compiles import KIND as COMPILES

SEEDS, BUDGET = 15, 1000
_ALONE = tuple(name for name, method in STRATEGIES.items() if not method.consults)
"""The strategies that ask no model: on a recorded space nobody is asked."""


def run(arguments: Sequence[str]) -> int:
    """Compare advisers or strategies, or show a result, and write the requested outputs; return an exit code.

    Raises:
        AgentCompileError: an argument is wrong, or what it names cannot be read, compared or written.
    """
    asked = _parser().parse_args(arguments)
    if asked.show and files.kind_of(asked.show[0]) == study.KIND:
        if len(asked.show) > 1 or asked.space:
            raise AgentCompileError("--show: one result of recorded spaces at a time", hint="name one file")
        return recorded.show(recorded.shown(asked.show[0]), asked.out, as_json=asked.json)
    if asked.models and asked.strategies and not asked.space:
        return _compile(asked, arguments)
    if not asked.space:
        if asked.show and files.kind_of(asked.show[0]) == COMPILES:
            return _show_compiles(asked)
        names = ("strategies", "peer", "seeds", "budget", "within", "jobs", "seconds", "record")
        _refuse(asked, names, "needs --space FILE, or MODEL and --strategies")
        from . import advisers  # imports PyTorch

        return advisers.run(asked)
    _refuse(asked, ("models", "arms", "times", "context", "threads", "seconds", "show"), "does not go with --space")
    request = recorded.Request(
        spaces=tuple(asked.space),
        strategies=tuple(asked.strategies or ([] if asked.peer else _ALONE)),
        peers=tuple(asked.peer),
        seeds=SEEDS if asked.seeds is None else asked.seeds,
        budget=BUDGET if asked.budget is None else asked.budget,
        within=5.0 if asked.within is None else asked.within,
        jobs=asked.jobs or 0,
        out=asked.out,
        record=asked.record,
        words=recorded.words(arguments),
    )
    return recorded.run(request, as_json=asked.json)


def _compile(asked: argparse.Namespace, arguments: Sequence[str]) -> int:
    _refuse(asked, ("peer", "within", "jobs", "arms", "times", "show", "record"), "does not go with MODEL --strategies")
    from . import compiling  # imports PyTorch

    flags = ("context", "threads")
    cache = resolve({}).options.cache
    request = compiling.Request(
        models=tuple(find_model(model, cache) for model in asked.models),
        arms=compiling.arms_of(asked.strategies),
        seeds=1 if asked.seeds is None else asked.seeds,
        seconds=asked.seconds or 0,
        trials=asked.budget or 0,
        flags={name: getattr(asked, name) for name in flags if getattr(asked, name)},
        out=asked.out,
        words=recorded.words(arguments),
    )
    return compiling.run(request, as_json=asked.json)


def _show_compiles(asked: argparse.Namespace) -> int:
    if len(asked.show) > 1:
        raise AgentCompileError("--show: one result of compiles at a time", hint="name one file")
    from . import compiling

    return compiling.show(compiling.read_compiles(asked.show[0]), asked.out, as_json=asked.json)


def _refuse(asked: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(asked, name) not in (None, []):
            shown = "MODEL" if name == "models" else f"--{name}"
            raise AgentCompileError(f"{shown} {why}", hint="`agentcompile ablate --help` shows both forms")


EXAMPLES = (
    "agentcompile ablate bench/models/sample --arms none,heuristic,random",
    "agentcompile ablate --space space.json --strategies 'random;halving' --seeds 20",
    "agentcompile ablate --show study.json",
)
"""Lines below the help."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentcompile ablate", description=__doc__, epilog=below(EXAMPLES), formatter_class=Paragraphs
    )
    parser.add_argument(
        "--out", type=Path, default=None, metavar="FILE.json", help="the result, and what goes beside it"
    )
    parser.add_argument(
        "--show", type=Path, nargs="+", default=[], metavar="FILE", help="show results; evaluate nothing"
    )
    parser.add_argument("--json", action="store_true", help="the result on stdout")
    models = parser.add_argument_group("advisers, on this machine")
    models.add_argument("models", nargs="*", metavar="MODEL", help="a checkpoint directory, or preset:NAME")
    models.add_argument("--arms", default=None, help="advisers; random alone is 20 seeds (none,heuristic,random)")
    models.add_argument("--context", default=None, help="maximum context length in tokens")
    models.add_argument("--threads", default=None, help="worker threads; 0: one a physical core")
    models.add_argument("--times", type=Path, nargs="+", default=[], metavar="FILE", help="take the times of results")
    models.add_argument("--judged", dest="times", type=Path, nargs="+", help=argparse.SUPPRESS)  # the older name
    models.add_argument(
        "--seconds",
        type=int,
        default=None,
        metavar="S",
        help="with --strategies: of each search and step tuning",
    )
    spaces = parser.add_argument_group("search strategies, on recorded spaces or with MODEL in real compiles")
    add = spaces.add_argument
    add("--space", type=Path, action="append", default=[], metavar="FILE", help="a recorded space; may be repeated")
    add(
        "--strategies", action="append", default=[], metavar="NAME;NAME",
        help=f"as `compile --strategy` takes them, separated by semicolons; may be repeated ({';'.join(_ALONE)})",
    )  # fmt: skip
    add(
        "--peer", action="append", default=[], metavar="kernel-tuner:NAME",
        help="a strategy of the installed Kernel Tuner in its simulation mode; may be repeated",
    )  # fmt: skip
    add("--seeds", type=int, default=None, metavar="N", help=f"searches of each strategy in each space ({SEEDS})")
    add("--budget", type=int, default=None, metavar="N", help=f"evaluations of a search ({BUDGET})")
    add(
        "--within",
        type=float,
        default=None,
        metavar="P",
        help="percent above the optimum that is near it, beside 2 (5)",
    )
    add("--record", type=Path, default=None, metavar="DIR", help="keep here what @openai:MODEL@URL answers")
    add("--jobs", type=int, default=None, metavar="N", help="processes; 0: one a logical processor (0)")
    return parser
