"""`agentcompile bench busy`: a compile, its lock and its generation on a quiet machine and beside spinning processes.

In: a model, and how many processes spin on the cores, or launch kernels on the GPU that it is compiled for. It is
compiled twice by the command line in fresh folders, quiet and beside the neighbours; both locks generate on the quiet
machine beside PyTorch eager; then the quiet lock generates beside the neighbours. Out: seconds, the share of the
step's roofline that kernels serve, speed-ups, slow-downs, one JSON file. Quiet and busy generations take turns in
blocks, so that slow changes of the machine's speed affect both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import agentcompile
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.codec import encode
from agentcompile.options import Options, resolve

from ..harness.course import say
from ..harness.numbers import at_least
from ..harness.records import nameless, revision
from ..harness.times import command_of
from ..models.locate import MAKERS, SAMPLE
from ..models.named import checkpoint

VERSION = 1
PROMPT = "def main():"
_TIMED = ("search", "choose", "cover", "admit")
_BLOCKS = 4
_WARM = 2
"""Generations at the start of a block that do not count: caches are cold and the scheduler still moves processes."""
_SPIN = "print(flush=True)\nwhile True: pass"
_LAUNCH = """
import sys, time, torch
a, small = torch.randn(2048, 2048, device=sys.argv[1], dtype=torch.bfloat16), torch.randn(1 << 14, device=sys.argv[1])
a @ a
torch.cuda.synchronize(a.device)
print(flush=True)
for turn in range(1 << 60):
    for _ in range(1 + turn % 40):
        a @ a
        small.add_(1.0)
    torch.cuda.synchronize(a.device)
    time.sleep(turn % 7 * 1e-3)
"""
"""Bursts of matrix products and small kernels of varying length with pauses, like test processes that share a GPU."""


@contextmanager
def neighbours(count: int, device: str = "cpu") -> Iterator[tuple[int, ...]]:
    """Run `count` processes, not pinned to cores, while the block runs, and yield their process ids.

    Each spins on a core, or launches kernels on `device` if that names a GPU (``cuda:0``). All have begun when the
    block begins, and all are killed when it ends, however it ends.
    """
    command = [sys.executable, "-c", _SPIN] if device == "cpu" else [sys.executable, "-c", _LAUNCH, device]
    with ExitStack() as started:
        spinning = []
        for _ in range(count):
            one = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            started.callback(one.kill)  # runs before the wait of Popen's own exit
            spinning.append(one)
        for one in spinning:
            assert one.stdout is not None
            one.stdout.readline()
        yield tuple(one.pid for one in spinning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """The 5 % quantile, the median and the 95 % quantile of at least two generations, in ms."""

    count: int
    low_ms: float
    median_ms: float
    high_ms: float

    @staticmethod
    def of(times_ms: Sequence[float]) -> Quantiles:
        """Return the quantiles of the times."""
        cuts = quantiles(times_ms, n=20, method="inclusive")
        return Quantiles(count=len(times_ms), low_ms=cuts[0], median_ms=median(times_ms), high_ms=cuts[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The times of one lock's generations of `tokens` tokens, quiet and beside `spinning` processes.

    Those of decoding are without the prompt and the first token.
    """

    tokens: int
    spinning: int
    quiet: Quantiles
    busy: Quantiles
    quiet_decode: Quantiles
    busy_decode: Quantiles

    @property
    def ratio(self) -> float:
        """The busy median over the quiet median."""
        return self.busy.median_ms / self.quiet.median_ms

    @property
    def decode_ratio(self) -> float:
        """The same without the prompt and the first token."""
        return self.busy_decode.median_ms / self.quiet_decode.median_ms


def measure_lock(
    lock: Path, *, spinning: int = 2, tokens: int = 64, runs: int = 200, device: str = "cpu", options: Options
) -> Generation:
    """Load `lock` and measure its generations, quiet and beside neighbours on `device`.

    `options` name the model, and the home where it was compiled, so that kernels validated there are not validated
    again. What `agentcompile.load` raises passes through.
    """
    loaded = agentcompile.load(lock, options=options)
    return measure(
        lambda: loaded.generate([1, 2, 3, 4, 5], max_new_tokens=tokens, ignore_eos=True),
        spinning=spinning,
        runs=runs,
        device=device,
    )


def measure(generate: Callable[[], Any], *, spinning: int, runs: int, device: str = "cpu") -> Generation:
    """Generate a completion at least `runs` times quiet and as often beside `spinning` processes on `device`.

    Raises:
        ValueError: `runs` gives fewer than two in a block.
        RuntimeError: a generation made other tokens than the first.
    """
    each = -(-runs // _BLOCKS)
    if each < 2:
        raise ValueError(f"runs = {runs} is less than {_BLOCKS + 1}")
    expected = generate().tokens

    def block() -> list[tuple[float, float]]:
        times = []
        for _ in range(_WARM + each):
            begin = time.perf_counter()
            made = generate()
            times.append(((time.perf_counter() - begin) * 1e3, made.decode_s * 1e3))
            if made.tokens != expected:
                raise RuntimeError(f"a generation beside {spinning} spinning processes made other tokens")
        return times[_WARM:]

    quiet, busy = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(_BLOCKS):
        quiet += block()
        with neighbours(spinning, device):
            busy += block()
    (quiet_ms, quiet_decode_ms), (busy_ms, busy_decode_ms) = zip(*quiet, strict=True), zip(*busy, strict=True)
    return Generation(
        tokens=len(expected), spinning=spinning, quiet=Quantiles.of(quiet_ms), busy=Quantiles.of(busy_ms),
        quiet_decode=Quantiles.of(quiet_decode_ms), busy_decode=Quantiles.of(busy_decode_ms),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One compile with fresh folders, and its lock's speedup on a quiet machine."""

    spinning: int
    seconds: float
    """Wall time of the whole command."""
    searched_s: float
    """The part of it that `--seconds` bounds: search and step tuning."""
    candidates: int
    kernel_share: float
    """Share of the decode step's roofline floor that kernels serve."""
    contended: bool
    log_ratio: float
    """Log ratio of the decode step to PyTorch's, as the compile measured it."""
    half_width: float
    comparison: str
    speedup: float
    """Speedup of generation over PyTorch eager, the median of a few runs on the quiet machine."""
    tokens_per_s: float


def run(arguments: Sequence[str]) -> int:
    """Measure, print and write the result file; return 0.

    Raises:
        AgentCompileError: the model's folder is missing (usage), or a command failed.
    """
    parser = argparse.ArgumentParser(prog="agentcompile bench busy", description=__doc__)
    parser.add_argument("--model", default="sample", help=f"a checkpoint, or one of {', '.join(MAKERS)}")
    parser.add_argument("--target", default="cpu", help="what it is compiled for, and what the neighbours use: cuda:0")
    bound = "what each search and its step tuning may take"
    parser.add_argument("--seconds", type=at_least(0), default=120, help=bound)
    beside = "neighbours: processes that only use the target"
    parser.add_argument("--spinning", type=at_least(0), default=2, help=beside)
    parser.add_argument("--context", type=at_least(0), default=0, help="of the compile; 0: the default")
    parser.add_argument("--runs", type=at_least(5), default=100, help="generations of 64 tokens, quiet and busy each")
    eager = "generations beside PyTorch eager, of each lock"
    parser.add_argument("--eager-runs", type=at_least(1), default=3, help=eager)
    parser.add_argument("--out", type=Path, default=Path("busy.json"), help="the JSON file")
    asked, begun = parser.parse_args(list(arguments)), revision()
    with tempfile.TemporaryDirectory(prefix="bench-busy-") as name:
        folder = Path(name)
        model = checkpoint(asked.model, folder)
        # A made checkpoint gets any tokenizer, since nobody reads its text; a user's own is left as it is.
        if asked.model in MAKERS and not (model / "tokenizer.json").exists():
            for path in SAMPLE.glob("tokenizer*.json"):
                shutil.copy(path, model)
        compiles: list[Compiled] = []
        for spinning in (0, asked.spinning):
            compiles.append(compiled(model, folder, spinning, asked))
            _write(asked, arguments, begun, compiles)  # keeps what was measured if a later part fails
        generated = measure_lock(
            folder / "0.lock.toml",
            spinning=asked.spinning,
            tokens=64,
            runs=asked.runs,
            device=asked.target,
            options=resolve({"model": str(model), "target": asked.target, "home": str(folder / "home-0")}).options,
        )
    _write(asked, arguments, begun, compiles, generated)
    for figure, value in figures(compiles, generated).items():
        print(f"{figure:<44} {value:.3g}")
    return ExitCode.OK


def _write(
    asked: argparse.Namespace,
    words: Sequence[str],
    begun: Any,
    compiles: Sequence[Compiled],
    made: Generation | None = None,
) -> None:
    told = {**asdict(made), "ratio": made.ratio, "decode_ratio": made.decode_ratio} if made else {}
    result = {
        "version": VERSION,
        "command": " ".join(["agentcompile", "bench", "busy", *nameless(words)]),
        "revision": begun,
        "machine": encode(this_machine(resolve({"target": asked.target}).options).target),
        "model": Path(asked.model).name,
        "seconds": asked.seconds,
        "compiles": [asdict(one) for one in compiles],
        "generation": {name: round(one, 3) if isinstance(one, float) else one for name, one in told.items()},
        "figures": figures(compiles, made),
    }
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def figures(compiles: Sequence[Compiled], generated: Generation | None) -> Mapping[str, float]:
    """Return the figures that are printed, by name; empty before both compiles are done."""
    if len(compiles) < 2:
        return {}
    quiet, busy = compiles
    found = {
        "quiet compile, s": quiet.seconds,
        "busy compile, s": busy.seconds,
        "busy compile over quiet": busy.seconds / quiet.seconds,
        "kernels' share of the roofline, quiet": quiet.kernel_share,
        "kernels' share of the roofline, busy": busy.kernel_share,
        "speed-up of the quiet lock, quiet machine": quiet.speedup,
        "speed-up of the busy lock, quiet machine": busy.speedup,
        "busy lock's share of the quiet speed-up": busy.speedup / quiet.speedup,
    }
    if generated is not None:
        found["generation beside neighbours over quiet"] = generated.ratio
        found["decode beside neighbours over quiet"] = generated.decode_ratio
    return found


def compiled(model: Path, folder: Path, spinning: int, asked: argparse.Namespace) -> Compiled:
    """Compile beside `spinning` neighbours, and generate with the lock once they have ended."""
    say(f"compiles beside {spinning} processes that use {asked.target}")
    lock, home = folder / f"{spinning}.lock.toml", {"AGENTCOMPILE_HOME": str(folder / f"home-{spinning}")}
    words = ["compile", str(model), "--target", asked.target, "--seconds", str(asked.seconds), "--out", str(lock)]
    words += ["--json", *(["--context", str(asked.context)] if asked.context else [])]
    with neighbours(spinning, asked.target) if spinning else nullcontext():
        begin = time.monotonic()
        state = _agentcompile(words, home)
        took_s = time.monotonic() - begin
    plan = next(plan for plan in state["plans"] if plan["regime"]["phase"] == "decode")
    generate = ["generate", str(lock), "--model", str(model), "--prompt", PROMPT, "--max-new-tokens", "64"]
    runs = [_agentcompile([*generate, "--beside-eager", "--json"], home) for _ in range(asked.eager_runs)]
    found = Compiled(
        spinning=spinning,
        seconds=round(took_s, 1),
        searched_s=round(sum(row["seconds"] for row in state["stages"] if row["stage"] in _TIMED), 1),
        candidates=state["trials"]["total"] if "total" in state["trials"] else sum(state["trials"].values()),
        kernel_share=round(kernel_share(state["regions"], plan["parts"]), 4),
        contended=plan["comparison"] == "INCONCLUSIVE" or plan["disturbed"] > 0.2,
        log_ratio=plan["log_ratio"],
        half_width=plan["half_width"],
        comparison=plan["comparison"] or "",
        speedup=round(median(one["ratio"] for one in runs), 3),
        tokens_per_s=round(median(one["tokens_per_s"] for one in runs), 1),
    )
    say(f"  {found.seconds:.0f} s, {found.kernel_share:.1%} of the roofline in kernels, {found.speedup:.2f}× eager")
    return found


def kernel_share(regions: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of the roofline floor of a plan's parts that kernels serve."""
    rows, floors = {row["region"]: row for row in regions}, {"kernel": 0.0, "all": 0.0}
    for part in parts:
        row = rows[part["region"]]
        floor = row["share"] * (len(part["sites"]) or row["sites"]) / max(row["sites"], 1)
        floors["all"] += floor
        floors["kernel"] += floor if part["choice"]["kind"] == "kernel" else 0.0
    return floors["kernel"] / floors["all"]


def _agentcompile(words: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Run a command of agentcompile and return its JSON output.

    Raises:
        AgentCompileError: the command failed; the message has the end of its stderr.
    """
    command = [*command_of("agentcompile", environment), *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        text = ran.stderr.strip().splitlines()[-2:]
        raise AgentCompileError(f"{' '.join(words[:2])}: exit {ran.returncode}: {' '.join(text)}")
    return json.loads(ran.stdout)
