"""`agentcompile bench chain`: the decode step as a chain of CUDA kernels in one graph, tuned in the step.

An experiment on the CUDA templates: every region of a cover gets its template's default, then coordinate descent over
the parameters, each trial a whole step in a graph. The step is checked against the captured graph run by PyTorch.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from agentcompile import catalog
from agentcompile.build import Binary, compile
from agentcompile.build.nvrtc import Cubin, compile_cubin
from agentcompile.build.toolchain import Toolchain
from agentcompile.captures import load_model
from agentcompile.check import check, errors
from agentcompile.checkpoint import Checkpoint
from agentcompile.cuts import cut
from agentcompile.events import silent
from agentcompile.ir.graph import concrete
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Candidate, Launch, Params, Source, Template
from agentcompile.ir.trial import Fallback, Kernel, Part
from agentcompile.layouts import LAYOUTS, fits
from agentcompile.materialize import specialise
from agentcompile.probe import probe_cuda
from agentcompile.reference import Interpreter
from agentcompile.regions.cover import cover
from agentcompile.regions.kinds import facts as kinds
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.device_step import DeviceStep, advance_source, enqueued
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.lower import lower
from agentcompile.runtime.memory import Memory
from agentcompile.store import Store

from .models.locate import MAKERS

_NVRTC = Toolchain(compiler="nvrtc", name="nvrtc")
_NOMINAL = Ceiling(dram_bytes_per_s=4.5e12, cache_bytes_per_s=9e12, flops_per_s=5e13)
"""Only to weigh covers against one another; what is reported is measured."""
_LAUNCH_NS, _FALLBACK_NS = 1_500, 1_000_000
_TOKENS = (11, 500, 7, 1000, 3, 99, 12345, 8)
_TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


_READ = """
struct args { const uint4* x; unsigned* y; };
extern "C" __global__ void __launch_bounds__(512) read(const __grid_constant__ args a) {
    const long n = COUNT, stride = long(gridDim.x) * 512;
    uint4 s = {0, 0, 0, 0};
    for (long i = long(blockIdx.x) * 512 + threadIdx.x; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = __ldcs(a.x + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; ++j) s.x ^= v[j].x, s.y ^= v[j].y, s.z ^= v[j].z, s.w ^= v[j].w;
    }
    if ((s.x ^ s.y ^ s.z ^ s.w) == 0x12345678u) a.y[0] = 1;
}
"""


def read_ceiling(store: Store, target: Target, nbytes: int = 4 << 30) -> float:
    """Bytes a second of a plain 16-byte-load kernel over `nbytes`, at the best number of blocks."""
    made = compile_cubin(_READ.replace("COUNT", str(nbytes // 16)), (f"--gpu-architecture={target.arch}",))
    assert isinstance(made, Cubin), made
    module = Module(store.put("cubin/1", made.image, ".cubin"))
    x = torch.randint(0, 1 << 30, (nbytes // 8,), dtype=torch.int64, device="cuda")
    y = torch.zeros(4, dtype=torch.int32, device="cuda")
    best = 0.0
    for per in (1, 2, 3, 4):
        launch = Launch(entry="read", arguments=(), grid=(str(target.threads * per),), block=("512",))
        call = Call.of(module, launch, [x.data_ptr(), y.data_ptr()], dependent=False)
        stream = torch.cuda.current_stream().cuda_stream
        times = [_elapsed_ns(functools.partial(call.run, stream)) for _ in range(8)]
        best = max(best, 1e9 * nbytes / statistics.median(times[2:]))
    return best


def _elapsed_ns(action: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6


class Bench:
    """One model on the device; plans are made, bound, checked and timed here."""

    def __init__(self, name: str, context: int, home: Path) -> None:
        self.target, self.store = probe_cuda("cuda:0", toolchain="nvrtc"), Store(home / "store")
        path = MAKERS[name](home / name)
        self.model = load_model(path, context, self.store, home / "hashes.json")
        self.captured = self.model.captured
        self.cut, _ = cut(self.captured, self.target, _NOMINAL, silent)
        templates = catalog.load([_TEMPLATES], kinds=kinds(), layouts=LAYOUTS)
        self.templates: dict[str, Template] = {}
        for id, region in self.cut.regions.items():
            for template in templates.serving(region.kind):
                found = check(region, template, template.defaults, self.target, layout_fits=fits)
                if template.language == "cuda" and not errors(found):
                    self.templates[id] = template
        self._memory: Memory | None = None
        self.parts = self._cover()
        self.checkpoint = Checkpoint.open(path)
        self._modules: dict[str, Module] = {}

    def _cover(self) -> tuple[Part, ...]:
        """The cover of least time by floors and launches; PyTorch only where there is no template."""
        options = {}
        for id, region in self.cut.regions.items():
            cost = region.floor_ns(_NOMINAL, "dram") + (_LAUNCH_NS if id in self.templates else _FALLBACK_NS)
            options[id] = (Option(cost_ns=cost, choice=Fallback(reason="no template")),)
        problem = Problem(graph=self.cut.graph, partition=self.cut.partition, options=options)
        return cover(problem).parts[0]

    def defaults(self) -> dict[str, Params]:
        """The default parameters of every region of the cover that has a template."""
        chosen = dict.fromkeys(part.region for part in self.parts if part.region in self.templates)
        return {id: self.templates[id].defaults for id in chosen}

    def weight_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return sum(self.cut.regions[part.region].cost.weight_bytes * max(len(part.sites), 1) for part in self.parts)

    def step(self, params: Mapping[str, Params], dependent: bool = True) -> DeviceStep:
        """The step with these parameters by region, compiled as far as it was not before."""
        sources, parts = dict[str, Source](), list[Part]()
        for part in self.parts:
            if part.region not in self.templates:
                parts.append(part)
                continue
            region, template = self.cut.regions[part.region], self.templates[part.region]
            source = specialise(template, region, params[part.region], self.target)
            sources[source.digest] = source
            candidate = Candidate(
                region=region.id,
                regime=region.regime,
                template=template.id,
                template_digest=template.digest,
                params=params[part.region],
                target=self.target.digest,
            )
            choice = Kernel(candidate=candidate, source=source.digest, speedup=1.0, half_width=0.0)
            parts.append(replace(part, choice=choice))
        for digest, source in sources.items():
            if digest not in self._modules:
                built = compile(source, self.store, toolchain=_NVRTC, limit_s=60)
                assert isinstance(built, Binary), built
                self._modules[digest] = Module(Path(built.path))
        placed = schedule(self.cut.graph, self.cut.partition, parts)
        program = lower(self.cut.graph, placed, sources, {})
        if self._memory is None:
            self._memory = Memory([program], self.checkpoint.tensor, self.captured.constants, "cuda")
        return DeviceStep(program, self._memory, self._modules, overlap=dependent)

    @property
    def memory(self) -> Memory:
        """Weights, states, token and position; there once a step was made."""
        assert self._memory is not None
        return self._memory

    def check(self, step: DeviceStep, tokens: Sequence[int]) -> float:
        """Relative error of the last logits after teacher-forced tokens, against the captured graph in PyTorch."""
        memory, graph = self.memory, self.cut.graph
        memory.clear_state()
        for position, token in enumerate(tokens):
            memory.token[0], memory.position[0] = token, position
            step.enqueue()
        torch.cuda.synchronize()
        mine = step.logits.float().clone()
        memory.clear_state()
        body, table = Interpreter(graph), graph.table()
        buffers = {buffer.name: buffer for buffer in step.program.buffers}
        special = {"token": memory.token, "position": memory.position}
        theirs = torch.empty(0)
        for position, token in enumerate(tokens):
            memory.token[0], memory.position[0] = token, position
            values = {}
            for id in graph.inputs:
                known = special.get(table[id].role)
                values[id] = memory.resident(buffers[id]) if known is None else known.view(concrete(table[id].shape))
            theirs = body(values)["logits"].float().view(-1)
        return float((mine - theirs).norm() / theirs.norm())

    def time(self, step: DeviceStep, position: int, replays: int = 30, steps: int = 4) -> float:
        """Median ns a token of graph replays of `steps` steps from `position` on."""
        memory = self.memory
        memory.token[0], memory.position[0] = 1, position
        call = self._advance(step)
        graph = step.graph(steps, then=enqueued(call))
        times = []
        for _ in range(replays):
            memory.position[0] = position
            times.append(_elapsed_ns(graph.replay) / steps)
        return statistics.median(times[3:])

    def _advance(self, step: DeviceStep) -> Call:
        source = advance_source(self.target.arch)
        built = compile(source, self.store, toolchain=_NVRTC, limit_s=60)
        assert isinstance(built, Binary), built
        module = self._modules.setdefault(source.digest, Module(Path(built.path)))
        history = self._history = torch.zeros(self.captured.info.context + 1, dtype=torch.int64, device="cuda")
        pointers = [self.memory.position.data_ptr(), self.memory.token.data_ptr(), history.data_ptr()]
        return Call.of(module, source.launches[0], pointers, dependent=True)

    def tune(
        self, params: dict[str, Params], best: float, until: float, say: Callable[[str], None]
    ) -> dict[str, Params]:
        """Coordinate descent over every parameter of every region, largest first, until nothing or no time is left."""
        weight = {id: self.cut.regions[id].cost.bytes * len(self.cut.regions[id].sites) for id in params}
        while True:
            before = best
            for id in sorted(params, key=lambda id: -weight[id]):
                for trial in self._neighbours(id, params[id]):
                    if time.monotonic() > until:
                        return params
                    changed = {**params, id: trial}
                    step = self.step(changed)
                    if self.time(step, 256, replays=20) < best * 0.998:
                        again = self.time(step, 256, replays=40)
                        if again < best * 0.998:
                            best, params = again, changed
                            say(f"{self.cut.regions[id].kind} {dict(trial)}: {best / 1e6:.4f} ms")
            if best > before * 0.998:
                return params

    def _neighbours(self, id: str, now: Params) -> Iterator[Params]:
        region, template = self.cut.regions[id], self.templates[id]
        for at, param in enumerate(template.params):
            for value in param.domain:
                trial = tuple((name, value if i == at else old) for i, (name, old) in enumerate(now))
                found = check(region, template, trial, self.target, layout_fits=fits)
                if trial != now and not errors(found):
                    yield trial


def run(arguments: Sequence[str]) -> int:
    """Tune one model's step and write what was found as JSON."""
    parser = argparse.ArgumentParser(prog="agentcompile bench chain", description=__doc__)
    parser.add_argument("--model", default="qwen3-1.7b", choices=sorted(MAKERS))
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--seconds", type=float, default=200, help="of tuning")
    parser.add_argument("--home", type=Path, required=True, help="where checkpoint, graphs and cubins lie")
    asked = parser.parse_args(arguments)
    until = time.monotonic() + asked.seconds
    bench = Bench(asked.model, 2048, asked.home)
    reads = read_ceiling(bench.store, bench.target)
    params = bench.defaults()
    step = bench.step(params)
    result = {"model": asked.model, "device": bench.target.device, "read_bytes_per_s": reads}
    result |= {"torch": torch.__version__, "weight_bytes": bench.weight_bytes(), "error": bench.check(step, _TOKENS)}
    result["plain_ns"] = bench.time(bench.step(params, dependent=False), 256)
    result["dependent_ns"] = first = bench.time(step, 256)
    _say(f"reads {reads / 1e12:.2f} TB/s; plain {result['plain_ns']:.0f} ns, dependent {first:.0f} ns a token")
    params = bench.tune(params, first, until, _say)
    step = bench.step(params)
    result |= {"tuned_error": bench.check(step, _TOKENS), "plain_tuned_ns": bench.time(bench.step(params, False), 256)}
    result["ns_by_context"] = {str(at): bench.time(step, at) for at in (16, 128, 256, 1024, 2000)}
    result["params"] = {bench.cut.regions[id].name: dict(found) for id, found in params.items()}
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
