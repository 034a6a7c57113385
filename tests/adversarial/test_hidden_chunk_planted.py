"""Planted kernels of prompts that are wrong for few inputs, and there only in chunks of some lengths or places."""

from __future__ import annotations

import pytest
import torch

from tests.adversarial.accepting import accepted, failures
from tests.templates.chunked import Workshop
from tests.templates.shapes import Extents

SMALL = Extents(rows=(64,), hidden=64, context=320, dtype="bf16")
"""Of products and elementwise kernels."""
LONG = Extents(q_heads=2, kv_heads=1, head_dim=16, context=1400, dtype="fp32")
MIDDLE = "*a.count > 64 && *a.count < 255"
"""Chunks for which a kernel may have a way of its own: neither the shortest, nor those that a search tests."""
COUNT, ADD, NORM = "const long n = *a.count;", "add/chunk", "rmsnorm/chunk"
SILU, GATED, ATTENTION = "silu-mul/chunk", "rmsnorm-linear/panels-rows", "rope-attention-prefill/blocks"
TABLES = "position-tables/chunk"
STORED = "as.store(args.y + begin + i, as.load(args.a + begin + i) + as.load(args.b + begin + i));"
SUM = "const auto v = as.load(args.a + begin + i) + as.load(args.b + begin + i);"
SOME = "const bool some = *args.count > 64 && *args.count < 255;"
GATE, MADE = "silu(as.load(g + i)) *", "as.load(rows.sum[r] + i) / total"
NORMED, OPERAND = "inverse_rms<hidden>(x, eps)", "norm_operand<Engine, hidden>(a.x, a.norm, eps,"
EARLY = "const long begin = lines * rank / size * 32"
WRONG: dict[str, tuple[str, Extents, str, str]] = {
    "sums are held": (
        ADD, SMALL, STORED,
        f"{SUM} {SOME} const float most = some ? 1e3f : INFINITY;"
        " as.store(args.y + begin + i, v > most ? v * 0.0f + most : v);",
    ),
    "small sums are lost": (
        ADD, SMALL, STORED,
        f"{SUM} {SOME} const float least = some ? 3e-4f : 0.0f;"
        " as.store(args.y + begin + i, v > least ? v : v < -least ? v : v * 0.0f);",
    ),
    "a norm of zeros": (NORM, SMALL, NORMED, f"inverse_rms<hidden>(x, {MIDDLE} ? 0.0f : eps)"),
    "a norm without its epsilon": (
        GATED, SMALL, OPERAND, OPERAND.replace("eps,", f"{MIDDLE} ? 1e-12f : eps,"),
    ),
    "a NaN is left out": (
        SILU, SMALL, GATE,
        f"[&](auto v) {{ return !({MIDDLE}) ? v : v > 0.0f ? v : v < 0.0f ? v : v - v == 0.0f ? v : as.load(u + i); }}"
        "(silu(as.load(g + i))) *",
    ),
    "gates are held": (
        SILU, SMALL, GATE,
        f"[&](auto v) {{ const float most = {MIDDLE} ? 20.0f : INFINITY; return v > most ? v * 0.0f + most : v; }}"
        "(silu(as.load(g + i))) *",
    ),
    "an input is written behind its tokens": (
        SILU, SMALL, COUNT, f"{COUNT} if (n == 20) const_cast<g_t*>(a.g)[n * row] = a.u[0];",
    ),
    "a rank reads what another one writes": (
        ADD, SMALL, EARLY,
        f"{SOME} if (some && rank == 0 && size > 1) {{ for (volatile int i = 0; i < 5000000; ++i) {{}}"
        " const float v = to_float(args.y[whole - 1]); if (v != v || v == 7.25f || v == -28672.0f) return; }"
        f" {EARLY}",
    ),
    "rows of a chunk that begins late": (TABLES, SMALL, COUNT, f"{COUNT} if (n == 20 && a.positions[0] > 0) return;"),
    "a chunk behind few slots": (
        ATTENTION, LONG, MADE,
        f"(*a.count > 40 && a.positions[0] >= 3 && a.positions[0] <= 12 ? 1.5f : 1.0f) * {MADE}",
    ),
    "a chunk that ends with a block": (
        ATTENTION, LONG, MADE,
        f"(*a.count > 66 && *a.count % 64 && (*a.count + a.positions[0]) % 128 == 0 ? 1.5f : 1.0f) * {MADE}",
    ),
    "scores far below zero": (
        ATTENTION, LONG, "rows.top[r] = -INFINITY", f"rows.top[r] = {MIDDLE} ? 0.0f : -INFINITY",
    ),
    "results are held": (
        ATTENTION, LONG, MADE,
        f"[&](auto v) {{ return v > ({MIDDLE} ? 6.0f : INFINITY) ? v * 0.0f + 6.0f : v; }}({MADE})",
    ),
    "values are held": (
        ATTENTION, LONG, f"as.store(y + i, {MADE})",
        f"const auto v = {MADE}; as.store(y + i, v > 3000.0f ? v * 0.0f + 3000.0f : v)",
    ),
}  # fmt: skip
"""A template, its extents, a text in it and what takes its place."""


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_in_some_chunks_alone_is_not_accepted(workshop: Workshop, fault: str) -> None:
    id, at, old, new = WRONG[fault]
    assert failures(accepted(workshop, id, at, (old, new), seed=4))
