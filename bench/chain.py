"""The decode step as a chain of kernels in one CUDA graph, tuned in the step by coordinate descent. An experiment.

    python -m bench.chain --model qwen3-1.7b --out chain.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from agentcompile import catalog
from agentcompile.build import Binary, compile
from agentcompile.build.toolchain import Toolchain
from agentcompile.captures import load_model
from agentcompile.checkpoint import Checkpoint
from agentcompile.cuts import cut
from agentcompile.events import silent
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Candidate, Params, Source, Template
from agentcompile.ir.trial import Fallback, Kernel
from agentcompile.layouts import LAYOUTS
from agentcompile.materialize import specialise
from agentcompile.reference import Interpreter
from agentcompile.regions.cover import cover
from agentcompile.regions.kinds import facts as kinds
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.device_step import DeviceStep
from agentcompile.runtime.driver import Module
from agentcompile.runtime.lower import lower
from agentcompile.runtime.memory import Memory
from agentcompile.space import Space
from agentcompile.store import Store

from .models.locate import MAKERS


def device() -> Target:
    found = torch.cuda.get_device_properties(0)
    arch = f"sm_{found.major}{found.minor}" + ("a" if found.major >= 9 else "")
    return Target(
        kind="cuda", device=found.name, arch=arch, isa=(), threads=found.multi_processor_count,
        cache_bytes=(228 << 10, found.L2_cache_size), line_bytes=128, toolchain="nvrtc",
        libraries=(("torch", torch.__version__),),
    )  # fmt: skip


def read_ceiling(nbytes: int = 4 << 30) -> float:
    """Bytes a second of a tuned read: the best of a few shapes of a plain 16-byte-load kernel."""
    text = """
struct args { const uint4* x; unsigned* y; };
extern "C" __global__ void __launch_bounds__(512) read(const __grid_constant__ args a) {
    const long n = COUNT, stride = long(gridDim.x) * 512;
    uint4 s = {0, 0, 0, 0};
    long i = long(blockIdx.x) * 512 + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = __ldcs(a.x + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; ++j) s.x ^= v[j].x, s.y ^= v[j].y, s.z ^= v[j].z, s.w ^= v[j].w;
    }
    if ((s.x ^ s.y ^ s.z ^ s.w) == 0x12345678u) a.y[0] = 1;
}
"""
    from agentcompile.build.nvrtc import Cubin, compile_cubin
    from agentcompile.ir.template import Launch
    from agentcompile.runtime.driver import Call

    made = compile_cubin(text.replace("COUNT", str(nbytes // 16)), (f"--gpu-architecture={device().arch}",))
    assert isinstance(made, Cubin), made
    path = Path("/tmp/read.cubin")
    path.write_bytes(made.image)
    module = Module(path)
    x = torch.randint(0, 1 << 30, (nbytes // 8,), dtype=torch.int64, device="cuda")
    y = torch.zeros(4, dtype=torch.int32, device="cuda")
    best = 0.0
    for per in (1, 2, 3, 4):
        launch = Launch(entry="read", arguments=(), grid=(str(132 * per),), block=("512",), shared_bytes="0")
        call = Call.of(module, launch, [x.data_ptr(), y.data_ptr()], dependent=False)
        stream = torch.cuda.current_stream().cuda_stream
        times = []
        for _ in range(8):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            call.run(stream)
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) / 1e3)
        best = max(best, nbytes / statistics.median(times[2:]))
    return best


class Bench:
    """One model on the device; plans are made, bound, checked and timed here."""

    def __init__(self, name: str, context: int, home: Path) -> None:
        self.target, self.store = device(), Store(home / "store")
        begin = time.monotonic()
        path = MAKERS[name](home / name)
        self.model = load_model(path, context, self.store, home / "hashes.json")
        print(f"captured in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        self.captured = self.model.captured
        ceiling = Ceiling(dram_bytes_per_s=4.5e12, cache_bytes_per_s=9e12, flops_per_s=5e13)
        self.cut, _ = cut(self.captured, self.target, ceiling, silent)
        templates = catalog.load([Path("templates")], kinds=kinds(), layouts=LAYOUTS)
        self.templates: dict[str, Template] = {}
        self.spaces: dict[str, Space] = {}
        for id, region in self.cut.regions.items():
            for template in templates.serving(region.kind):
                if template.language == "cuda" and "bf16" in template.dtypes:
                    space = Space(region, [template], self.target)
                    if len(space):
                        self.templates[id], self.spaces[id] = template, space
        self.memory: Memory | None = None
        self.checkpoint = Checkpoint.open(path)
        self._modules: dict[str, Module] = {}

    def choose(self) -> tuple[str, ...]:
        """Regions of the cover with the least launches and bytes."""
        options = {}
        for id, region in self.cut.regions.items():
            floor = region.floor_ns(Ceiling(dram_bytes_per_s=4.5e12, cache_bytes_per_s=9e12, flops_per_s=5e13), "dram")
            cost = floor + (1_500 if id in self.templates else 1_000_000)
            options[id] = (Option(cost_ns=cost, choice=Fallback(reason="cover")),)
        problem = Problem(graph=self.cut.graph, partition=self.cut.partition, options=options)
        self.parts = cover(problem).parts[0]
        return tuple(dict.fromkeys(part.region for part in self.parts))

    def source(self, id: str, params: Params) -> Source:
        return specialise(self.templates[id], self.cut.regions[id], params, self.target)

    def step(self, params: Mapping[str, Params], dependent: bool = True) -> DeviceStep:
        from dataclasses import replace

        sources, parts = {}, []
        for part in self.parts:
            if part.region not in self.templates:
                parts.append(part)
                continue
            region, template = self.cut.regions[part.region], self.templates[part.region]
            source = self.source(part.region, params[part.region])
            sources[source.digest] = source
            candidate = Candidate(
                region=region.id, regime=region.regime, template=template.id, template_digest=template.digest,
                params=params[part.region], target=self.target.digest,
            )  # fmt: skip
            choice = Kernel(candidate=candidate, source=source.digest, speedup=1.0, half_width=0.0)
            parts.append(replace(part, choice=choice))
        for digest, source in sources.items():
            if digest not in self._modules:
                built = compile(source, self.store, toolchain=Toolchain(compiler="nvrtc", name="nvrtc"), limit_s=60)
                assert isinstance(built, Binary), built
                self._modules[digest] = Module(Path(built.path))
        placed = schedule(self.cut.graph, self.cut.partition, parts)
        program = lower(self.cut.graph, placed, sources, {})
        if self.memory is None:
            self.memory = Memory([program], self.checkpoint.tensor, self.captured.constants, "cuda")
        return DeviceStep(program, self.memory, sources, self._modules, dependent=dependent)

    def check(self, step: DeviceStep, tokens: Sequence[int]) -> float:
        """Relative error of the last logits after teacher-forced tokens, against the captured graph in PyTorch."""
        memory = self.memory
        assert memory is not None
        graph = self.cut.graph
        memory.clear_state()
        for position, token in enumerate(tokens):
            memory.token[0], memory.position[0] = token, position
            step.enqueue()
        torch.cuda.synchronize()
        mine = step.logits.float().clone()
        memory.clear_state()
        body = Interpreter(graph)
        table = graph.table()
        buffers = {b.name: b for b in step.program.buffers}
        out = {}
        for position, token in enumerate(tokens):
            memory.token[0], memory.position[0] = token, position
            values = {}
            for id in graph.inputs:
                shape = tuple(int(d) if isinstance(d, int) else 1 for d in table[id].shape)
                role = table[id].role
                if role == "token":
                    values[id] = memory.token.view(shape)
                elif role == "position":
                    values[id] = memory.position.view(shape)
                else:
                    values[id] = memory.resident(buffers[id])
            out = body(values)
        theirs = out["logits"].float().view(-1)
        return float((mine - theirs).norm() / theirs.norm())

    def time(self, step: DeviceStep, position: int, replays: int = 30, steps: int = 4) -> float:
        """Median ns a token of graph replays around `position`."""
        memory = self.memory
        assert memory is not None
        memory.token[0], memory.position[0] = 1, position
        graph = step.graph(steps)
        times = []
        for _ in range(replays):
            memory.position[0] = position
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1e6 / steps)
        del graph
        return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="qwen3-1.7b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--home", type=Path, default=Path("/tmp/chain"))
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    result: dict[str, object] = {"model": asked.model, "torch": torch.__version__}
    result["read_bytes_per_s"] = reads = read_ceiling()
    print(f"reads {reads / 1e12:.2f} TB/s", flush=True)
    bench = Bench(asked.model, 2048, asked.home)
    chosen = bench.choose()
    params = {
        id: tuple((p.name, p.default) for p in bench.templates[id].params) for id in chosen if id in bench.templates
    }
    for id in chosen:
        region = bench.cut.regions[id]
        print(region.name, region.cost.bytes, bench.templates[id].id if id in bench.templates else "PyTorch", flush=True)
    step = bench.step(params)
    error = bench.check(step, [11, 500, 7, 1000, 3, 99, 12345, 8])
    weights = sum(region.cost.weight_bytes * sum(len(p.sites) for p in bench.parts if p.region == id)
                  for id, region in bench.cut.regions.items())  # fmt: skip
    print(f"relative error {error:.2e}; weights {weights / 1e9:.3f} GB, floor {weights / reads * 1e3:.3f} ms", flush=True)
    result |= {"error": error, "weight_bytes": weights}
    plain = bench.time(bench.step(params, dependent=False), 256)
    best = bench.time(step, 256)
    print(f"plain graph {plain / 1e6:.4f} ms, dependent launch {best / 1e6:.4f} ms", flush=True)
    result |= {"plain_ns": plain, "dependent_ns": best}
    trace = []
    order = sorted(params, key=lambda id: -bench.cut.regions[id].cost.bytes * len(bench.cut.regions[id].sites))
    for sweep in range(3):
        for id in order:
            for at, param in enumerate(bench.templates[id].params):
                for value in param.domain:
                    if time.monotonic() > end:
                        break
                    trial = tuple((n, value if i == at else v) for i, (n, v) in enumerate(params[id]))
                    if trial == params[id] or not any(point.params == trial for point in bench.spaces[id]):
                        continue
                    changed = {**params, id: trial}
                    found = bench.time(bench.step(changed), 256, replays=20)
                    trace.append([bench.cut.regions[id].kind, [v for _, v in trial], found])
                    if found < best * 0.998:
                        again = bench.time(bench.step(changed), 256, replays=40)
                        if again < best * 0.998:
                            best, params = again, changed
                            print(f"{bench.cut.regions[id].kind} {trial}: {best / 1e6:.4f} ms", flush=True)
    step = bench.step(params)
    result["final_error"] = bench.check(step, [11, 500, 7, 1000, 3, 99, 12345, 8])
    result["by_context"] = {c: bench.time(step, c) for c in (16, 128, 256, 1024, 2000)}
    result["params"] = {bench.cut.regions[id].name: params[id] for id in params}
    result["trace"] = trace
    print(json.dumps({k: v for k, v in result.items() if k != "trace"}, indent=1, default=str), flush=True)
    asked.out.write_text(json.dumps(result, indent=1, default=str))


if __name__ == "__main__":
    main()
