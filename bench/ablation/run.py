"""`agentcompile ablate MODEL… --arms none,heuristic,random,replay:DIR`: what each adviser's order is worth.

In: checkpoints or presets. Every candidate of every hot region is built, validated and timed once, on this machine, all
of a region beside one another; `--judged` takes the times of an earlier result. Out: a table, and with `--out` the
result as JSON with a plot beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import agentcompile
from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import silent
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import canonical
from agentcompile.ir.target import Target
from agentcompile.options import resolve
from agentcompile.runs.session import environment_error, write_atomically
from agentcompile.runs.tables import Table

from .judging import arms_of, judged
from .result import FORMAT, WITHIN, Ablation, Judged, Model


def run(arguments: Sequence[str]) -> int:
    """Evaluate the candidates, compare the arms, and write the requested outputs; return an exit code.

    Raises:
        AgentCompileError: no model was named, an argument is wrong, a result cannot be read or written, or a model has
            no hot region with candidates to order.
    """
    parser = argparse.ArgumentParser(
        prog="agentcompile ablate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a checkpoint directory, or preset:NAME")
    parser.add_argument("--arms", default="none,heuristic,random", help="advisers; random alone is 20 seeds")
    parser.add_argument("--context", default=None, help="tokens that the cache holds")
    parser.add_argument("--threads", default=None, help="worker threads; 0: one a physical core")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.json", help="the result; FILE.png and FILE.svg")
    parser.add_argument("--judged", type=Path, nargs="+", default=[], metavar="FILE", help="take the times of results")
    parser.add_argument("--show", type=Path, nargs="+", default=[], metavar="FILE", help="show results; judge nothing")
    parser.add_argument("--json", action="store_true", help="the result on stdout")
    asked = parser.parse_args(arguments)
    if asked.show:
        results = [read(path) for path in asked.show]
        result = replace(results[0], models=tuple(model for one in results for model in one.models))
    else:
        if not asked.models:
            raise AgentCompileError("ablate: no model was named", hint="agentcompile ablate bench/models/sample")
        result = _made(asked)
    if asked.out is not None:
        _write(result, asked.out)
        _draw(result, asked.out)
    print(json.dumps(encode(result), indent=1) if asked.json else "\n".join(report(result)))
    return ExitCode.OK


def _made(asked: argparse.Namespace) -> Ablation:
    arms, models = arms_of(asked.arms), list[Model]()
    known = {region.region: region for path in asked.judged for region in read(path).regions}
    made: Ablation | None = None
    for model in asked.models:
        flags = {"model": model, "context": asked.context, "threads": asked.threads, "target": "cpu"}
        options = resolve(flags).options
        here = this_machine(options)

        def so_far(model: Model, target: Target = here.target) -> Ablation:
            return Ablation(
                device=target.device,
                threads=target.threads,
                toolchain=target.toolchain,
                version=agentcompile.__version__,
                arms=tuple(arm.name for arm in arms),
                answered_by={arm.name: arm.answered_by for arm in arms if arm.answered_by},
                models=(*models, model),
            )

        def keep(model: Model, whole: Callable[[Model], Ablation] = so_far) -> None:
            if asked.out is not None:
                _write(whole(model), asked.out)

        found = judged(options, here, arms, silent, _say, known, keep)
        if not found.regions:
            raise AgentCompileError(
                f"{model}: no hot region has candidates to order", hint="`agentcompile inspect MODEL` shows its regions"
            )
        made = so_far(found)
        models.append(made.models[-1])
    assert made is not None
    return made


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read(path: Path) -> Ablation:
    """Read a result file.

    Raises:
        AgentCompileError: the file cannot be read, is not the result of an ablation, or has a newer format (usage).
    """
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
            raise AgentCompileError(f"{path}: format: {found['format']} is newer than {FORMAT}", hint="upgrade")
        result: Ablation = decode(Ablation, found, "ablation")
    except OSError as error:
        raise AgentCompileError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except (CodecError, ValueError) as error:
        hint = "name a file that `agentcompile ablate --out` wrote"
        raise AgentCompileError(f"{path}: no result of an ablation: {str(error)[:200]}", hint=hint) from error
    return result


def _write(result: Ablation, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, canonical(encode(result)) + b"\n")
    except OSError as error:
        raise environment_error(error, out) from error


def _draw(result: Ablation, out: Path) -> None:
    from .plot import draw

    try:
        png, svg = draw(result)
        write_atomically(out.with_suffix(".png"), png)
        write_atomically(out.with_suffix(".svg"), svg.encode())
    except ImportError as error:
        _say(f"no plot: {error}; pip install 'agentcompile[bench]'")
    except OSError as error:
        raise environment_error(error, out.with_suffix(".png")) from error


def report(result: Ablation) -> Iterator[str]:
    """Yield the lines of the report: a table for each model, then each arm's median over all regions."""
    for model in result.models:
        yield f"{model.model}, context {model.context}, weights in {model.residency}"
        heads = ("region", "points", "near", "winner", "× PyTorch", *result.arms)
        rows = [_row(region, result.arms) for region in model.regions]
        yield from columns(Table(heads=heads, rows=rows, right=(1, 2, 4, *range(5, 5 + len(result.arms)))))
    yield "An arm's cell: the place of the first candidate within 5 % of the fastest / the winner's place."
    for arm in result.arms:
        share = result.median_share(arm)
        who = f", answered by {result.answered_by[arm]}" if arm in result.answered_by else ""
        verdict = "within" if share <= WITHIN else "not within"
        yield f"{arm}: median {share:.1%} of the space to the neighbourhood, {verdict} {WITHIN:.0%}{who}"


def _row(region: Judged, arms: Sequence[str]) -> tuple[str, ...]:
    cells = []
    for arm in arms:
        found = region.standing(arm)
        cells.append("-" if found is None else f"{found.near_at:g} / {found.winner_at:g}{'*' if found.note else ''}")
    times = f"{region.pytorch_ns / region.ns[region.winner]:.2f}"
    return (region.name, str(region.points), str(region.near), region.winner.partition("/")[2], times, *cells)
