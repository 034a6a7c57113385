"""Proofs of the harness itself: it must reject kernels that are wrong on purpose, and its inputs must matter.

If a comparator always accepts, poison is missing, or redzones are not checked, `selftest` names the fault that passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from agentcompile.ir.graph import Graph, Node, Use, Value
from agentcompile.ir.region import Cost, Port, Regime, Region
from agentcompile.validate.cases import cases
from agentcompile.validate.inputs import Generator
from agentcompile.validate.propagate import propagate
from agentcompile.validate.rig import Instruments, Run
from agentcompile.validate.suite import validate
from agentcompile.validate.tolerance import DeclaredArithmetic

_HIDDEN, _ROWS = 40, 72


def selftest(tools: Instruments | None = None) -> tuple[str, ...]:
    """Validate a right kernel and, for every check, a wrong one; return what went unnoticed, empty if all is well."""
    region = _linear()
    found = []
    report = validate(region, DeclaredArithmetic(), _right, seed=0, repeats=16, depth="search", tools=tools)
    if not report.ok:
        found.append(f"a right kernel fails {next(check.name for check in report.checks if not check.ok)}")
    for check, what, make in _FAULTS:
        report = validate(region, DeclaredArithmetic(), make(), seed=0, repeats=16, depth="accept", tools=tools)
        if all(one.ok for one in report.checks if one.name == check):
            found.append(f"{what} passes {check}")
    return tuple(found)


def insensitive(region: Region, *, seed: int, tokens: int = 1) -> tuple[str, ...]:
    """Return inputs of the everyday case on which no result depends, as ``w[first]``; a generator must draw none.

    In every input the first, the last, the middle and three random elements are changed, of those that the operators
    may read: the chosen rows of a table, the visible slots of a cache.
    """
    drawn = Generator(region, seed=seed, tokens=tokens)
    case = cases(region, "search")[0]
    inputs = drawn.draw(case, drawn.parameters(case.weights))
    base = _results(region, inputs, tokens)
    rng = torch.Generator().manual_seed(seed)
    found = []
    for name, tensor in inputs.items():
        if not tensor.is_floating_point():
            continue
        seen = _seen(region, name, tensor, inputs).nonzero().view(-1)
        if not len(seen):
            continue
        picks = {"first": 0, "middle": len(seen) // 2, "last": len(seen) - 1}
        picks |= {f"random {i}": int(torch.randint(0, len(seen), (), generator=rng)) for i in range(3)}
        for place, index in picks.items():
            moved = tensor.clone()
            moved.view(-1)[seen[index]] = 0.5 - moved.view(-1)[seen[index]] * 1.75
            other = _results(region, {**inputs, name: moved}, tokens)
            if all(torch.equal(a, b) for a, b in zip(base, other, strict=True)):
                found.append(f"{name}[{place}]")
    return tuple(found)


def _results(region: Region, inputs: Mapping[str, Tensor], tokens: int) -> list[Tensor]:
    out = propagate(region.body, inputs, DeclaredArithmetic(), tokens=tokens)
    results = [out.logits.get(use.value, out.values[use.value]).value for _, use in region.body.outputs]
    return results + [append.new.value for append in out.appends.values()]


def _seen(region: Region, name: str, tensor: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    if region.port(name).role == "state":
        return _visible(region, tensor, inputs).reshape(-1)
    mask = torch.ones_like(tensor, dtype=torch.bool)
    for node in region.body.nodes:
        uses = [use.value for use in node.inputs]
        if node.op in ("embedding", "position_table") and uses[1] == name:
            mask.zero_()
            mask[inputs[uses[0]].view(-1).long()] = True
    return mask.view(-1)


def _visible(region: Region, cache: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    mask = torch.zeros_like(cache, dtype=torch.bool)
    appends = any(node.op == "cache_append" for node in region.body.nodes)
    for node in region.body.nodes:
        if node.op == "attention":
            window = int(str(dict(node.attrs).get("window", 0)))
            for b, at in enumerate(inputs[node.inputs[3].value].view(cache.shape[0], -1)):
                first = max(0, int(at.min()) - window + 1) if window else 0
                mask[b, :, first : int(at.min() if appends else at.max() + 1)] = True
    return mask


def _linear() -> Region:
    x = Value(id="x", shape=(1, 1, _HIDDEN), dtype="bf16", role="activation")
    w = Value(id="w", shape=(_ROWS, _HIDDEN), dtype="bf16", role="weight", name="w")
    y = Value(id="y", shape=(1, 1, _ROWS), dtype="bf16", role="activation")
    node = Node(id="y", op="linear", inputs=(Use(value="x"), Use(value="w")), outputs=("y",))
    body = Graph(phase="decode", values=(x, w, y), nodes=(node,), inputs=("x", "w"), outputs=(("y", Use(value="y")),))
    return Region(
        kind="linear",
        regime=Regime(phase="decode"),
        body=body,
        ports=(
            Port(name="x", role="activation", access="read", shape=x.shape, dtype="bf16"),
            Port(name="w", role="weight", access="read", shape=w.shape, dtype="bf16"),
            Port(name="y", role="output", access="write", shape=y.shape, dtype="bf16"),
        ),
        dims=(("hidden", _HIDDEN), ("rows", _ROWS), ("tokens", 1)),
        cost=Cost(flops=0, weight_bytes=0, state_bytes=0, activation_bytes=0),
    )


def _product(buffers: Mapping[str, Tensor]) -> Tensor:
    return (buffers["x"].float() @ buffers["w"].float().T).to(torch.bfloat16)


def _right(buffers: Mapping[str, Tensor]) -> None:
    buffers["y"].copy_(_product(buffers))


def _after(spoil: Callable[[Mapping[str, Tensor]], object]) -> Callable[[], Run]:
    def make() -> Run:
        def run(buffers: Mapping[str, Tensor]) -> None:
            _right(buffers)
            spoil(buffers)

        return run

    return make


def _forgetful(buffers: Mapping[str, Tensor]) -> None:
    buffers["y"][..., :-1] = _product(buffers)[..., :-1]


def _moody() -> Run:
    calls = 0

    def run(buffers: Mapping[str, Tensor]) -> None:
        nonlocal calls
        calls += 1
        _right(buffers)
        if calls % 7 == 0:
            buffers["y"][..., 5] *= 1.25

    return run


def _upwards(buffers: Mapping[str, Tensor]) -> None:
    bits = (buffers["x"].float() @ buffers["w"].float().T).view(torch.int32)
    buffers["y"].copy_(((bits + 0x8000) >> 16 << 16).view(torch.float32))


def _past_end(buffers: Mapping[str, Tensor]) -> None:
    y = buffers["y"]
    y.as_strided((_ROWS + 1,), (1,))[_ROWS] = 1.0


_FAULTS: tuple[tuple[str, str, Callable[[], Run]], ...] = (
    ("element", "a result off by a fiftieth", _after(lambda b: b["y"][..., 3].mul_(1.02))),
    ("row-rms", "a row off by a hundredth", _after(lambda b: b["y"].mul_(1.01))),
    ("error-ratio", "a row off by a hundredth", _after(lambda b: b["y"].mul_(1.01))),
    ("exact", "an integer off by one", _after(lambda b: b["y"][..., 3].add_(1.0))),
    ("halves", "a half rounded away from zero", _after(_upwards)),
    ("non-finite", "zero for not a number", _after(lambda b: b["y"].nan_to_num_(nan=0.0))),
    ("poison", "an element left unwritten", lambda: _forgetful),
    ("redzone", "a write past the end", _after(_past_end)),
    ("inputs", "a changed input", _after(lambda b: b["w"].view(-1)[-1:].mul_(3.0))),
    ("repeats", "a result that changes between launches", _moody),
)
"""A check, a fault that it must notice, and the kernel that has the fault."""
