"""What operators, layouts and checks mean, in words and formulas that need none of this program's sources."""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.ir.digest import Json
from agentcompile.ir.graph import Graph, Node, Use
from agentcompile.validate.tolerance import (
    ACCUMULATION,
    RATIO_GATE,
    ROUNDING_SLACK,
    ROUNDOFF,
    ROW_ELEMENTS,
    ROW_SLACK,
    TINY,
)

_PLAIN = "element by element; operands that are smaller are broadcast as in PyTorch"
OPERATORS: Mapping[str, str] = {
    "embedding": "y[b, t, :] = table[ids[b, t], :]",
    "position_table": "y[0, t, :] = table[positions[t], :]; in a batch y[b, 0, :] = table[positions[b], :]",
    "rms_norm": "y = x * rsqrt(mean(x * x over the last axis) + eps) * (offset + norm); offset is mostly 0",
    "linear": "y[b, t, n] = sum over k of x[b, t, k] * w[n, k], plus b[n] where there is a bias",
    "rope": "D is the last axis, h = D / 2, x is [B, heads, T, D], cos and sin are [B, T, D]: "
    "y[..., d] = x[..., d] * cos[d] + r[d] * sin[d] with r[d] = -x[..., d + h] for d < h and r[d] = x[..., d - h] else",
    "cache_append": "cache[b, head, positions, :] = new[b, head, :, :]; every other slot of the cache is left as it is",
    "attention": "q is [B, heads, T, D], the caches are [B, kv_heads, context, D], and query head i uses head "
    "i * kv_heads / heads (whole division): softmax over the slots s <= p of scale * dot(q, keys[s]), times values[s], "
    "where p is the query's position in `positions`; with a window also s > p - window. Slots beyond p are never read: "
    "they may hold NaN. The slot p itself holds the token that is appended in the same step",
    "silu": "y = x / (1 + exp(-x))",
    "gelu_tanh": "y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))",
    "gelu": "y = 0.5 * x * (1 + erf(x / sqrt(2)))",
    "relu": "y = max(x, 0); NaN stays NaN",
    "sigmoid": "y = 1 / (1 + exp(-x))",
    "tanh": "y = tanh(x)",
    "add": f"y = a + b, {_PLAIN}",
    "sub": f"y = a - b, {_PLAIN}",
    "mul": f"y = a * b, {_PLAIN}",
    "div": f"y = a / b, {_PLAIN}",
    "argmax": "the int64 index of the greatest element of the last axis; the first of equal ones; NaN is greatest. It "
    "chooses among the elements as they are summed, in float32 or wider, not rounded to a narrower dtype before",
    "cast": "y = x converted to the dtype `to`, rounded to nearest even",
}
"""The meaning of every normalised operator."""

_TILED = (
    "element (n, k) of a matrix [N, K] lies at index ((n // 16) * ceil(K / {g}) + k // {g}) * {tile} "
    "+ (n % 16) * {g} + k % {g}; both extents are padded with zeros to whole tiles of 16 rows and {g} columns"
)
LAYOUTS: Mapping[str, str] = {
    "row-major": "as in the checkpoint: the last axis is contiguous, nothing is padded",
    "rows16-k2": _TILED.format(g=2, tile=32),
    "rows16-k1": _TILED.format(g=1, tile=16),
}
"""The meaning of every resident layout."""

MAGNITUDES = (
    "activations are normal numbers times factors from 1e-12 to 60, with outliers 200 times as large. Where there is "
    "no attention they are also 1e4 times as large, and as large as they may be while every value fits its dtype, "
    "sums of absolute contributions stay below 99 % of float32's largest number, and the squares under a norm sum to "
    "at most 1e38. A sum in float32 survives all of them, and no second path for larger numbers is needed. Scores of "
    "attention reach 1e5, so a softmax subtracts its greatest score first. Some inputs hold a NaN or an infinity: "
    "see not_finite"
)
"""The inputs on which kernels for regions are validated, as far as a sum or an exponential may overflow."""


def operators(body: Graph) -> list[Json]:
    """Return a region's body as lines such as ``n = rms_norm(x, norm; eps=1e-06, offset=0.0)``."""
    return [_line(node) for node in body.nodes]


def meanings(body: Graph) -> dict[str, Json]:
    """Return what each operator of a body means; one of PyTorch's own is called by its name there."""
    return {node.op: OPERATORS.get(node.op, f"PyTorch's {node.op}") for node in body.nodes}


def tolerance(dtypes: Mapping[str, str]) -> Json:
    """Return by which rules results are compared; `dtypes` are those of the outputs and states by port name."""
    return {
        "accepted": f"for every element: |y - r| <= {ROUNDING_SLACK} * u * |r| + c * kappa + {TINY:g}; for every row "
        f"of {ROW_ELEMENTS} elements or more: rms(y - r) <= {ROW_SLACK} * rms(round(r) - r) + rms(c * kappa); over all "
        f"everyday inputs: rms(y - r) <= {RATIO_GATE} * rms(p - r)",
        "y": "what the kernel made",
        "r": "what the operators make in float64 of exactly the inputs that the kernel gets",
        "u": {name: ROUNDOFF[dtype] for name, dtype in dtypes.items() if dtype in ROUNDOFF},
        "u_note": "u: the unit roundoff of the port's dtype, the largest relative error of one rounding to nearest",
        "kappa": "the sum of the absolute values of all contributions to the element, as of |x[k] * w[n, k]| over k",
        "c": {name: c for name, c in ACCUMULATION.items() if name != "library"},
        "c_note": "c: by the manifest's `accumulation`",
        "p": "PyTorch's result in the region's dtype",
        "rms, round": "the root mean square over a row, the last axis; r rounded to the port's dtype",
        "between": "values between operators, and softmax weights, are kept in float32 or wider, unless the manifest's "
        "`rounds` names them",
        "exact": "inputs that are small whole numbers, whose sums are representable: equal, bit for bit",
        "not_finite": "NaN and infinities exactly where the reference, rounded to the dtype, has them",
        "repeats": "the same bits every time, at any order of threads, whatever outputs and workspaces held before",
        "memory": "nothing is written but outputs, appended slots and workspaces; buffers end at unmapped pages, so "
        "nothing beyond them is read either; inputs and weights are unchanged afterwards",
        "indices": "integer results are equal, but that an argmax may choose any element whose value is, within its "
        "tolerance, the greatest",
    }


def _line(node: Node) -> str:
    reads = ", ".join(_read(use) for use in node.inputs)
    attrs = ", ".join(f"{name}={value!r}" for name, value in node.attrs)
    return f"{', '.join(node.outputs)} = {node.op}({reads}{'; ' + attrs if attrs else ''})"


def _read(use: Use) -> str:
    return use.value + "".join(f".{view.op}({', '.join(map(str, view.args))})" for view in use.views)
