"""Attention of a chunk on the tensor cores, its own text on the host (`emulated.py`): right, and faults are caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.ir.region import Region
from agentcompile.ir.template import Params
from agentcompile.materialize import specialise
from agentcompile.regions.kinds import facts
from agentcompile.validate import DeclaredArithmetic, attention
from agentcompile.validate.cases import cases
from agentcompile.validate.inputs import Generator
from agentcompile.validate.propagate import propagate
from tests.templates.emulated import TARGET, compiled, faults, planted
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG

PLAIN, NORMED = "rope-attention-prefill", "qknorm-rope-attention-prefill"


def chunk(
    kind: str, tokens: int, head_dim: int = 64, heads: tuple[int, int] = (2, 1), window: int = 0, room: int = 90
) -> Region:
    extents = Extents(
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        context=tokens + room,
        window=window,
        offset=1.0,
        tokens=tokens,
    )
    return region(kind, extents)


def params(kind: str, **changed: int) -> Params:
    return tuple((name, changed.get(name, value)) for name, value in CATALOG.get(f"{kind}/tensor-blocks").defaults)


@pytest.mark.parametrize(
    ("kind", "tokens", "head_dim", "heads", "window", "point", "threads"),
    [
        # Short chunks have a warpgroup a block, which takes one tile or two.
        (PLAIN, 1, 64, (2, 2), 0, {"BLOCK": 64}, 2),
        (PLAIN, 5, 64, (1, 1), 0, {"BLOCK": 128}, 2),
        (NORMED, 65, 64, (2, 1), 0, {"BLOCK": 64, "STAGES": 4}, 4),
        (NORMED, 70, 128, (3, 1), 0, {"BLOCK": 96, "STAGES": 2}, 6),
        (PLAIN, 130, 64, (3, 3), 40, {"BLOCK": 64, "STAGES": 3}, 5),
        # Long ones three, or two of wide heads.
        (PLAIN, 70, 64, (4, 2), 0, {"STAGES": 2}, 2),
        (PLAIN, 200, 64, (3, 1), 0, {"STAGES": 3}, 2),
        (NORMED, 390, 64, (2, 1), 150, {"STAGES": 2}, 2),
        (NORMED, 130, 128, (2, 1), 100, {"STAGES": 2}, 2),
    ],
)
def test_attention_of_a_chunk_is_right_on_the_host(
    kind: str,
    tokens: int,
    head_dim: int,
    heads: tuple[int, int],
    window: int,
    point: dict[str, int],
    threads: int,
    tmp_path: Path,
) -> None:
    made = chunk(kind, tokens, head_dim, heads, window)
    assert faults(CATALOG.get(f"{kind}/tensor-blocks"), made, params(kind, **point), tmp_path, threads) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        # The mask: one slot too many, none at all, the wrong row's; blocks left out at the end and at the beginning.
        ("attention_wgmma.cuh", "at > last ||", "at > last + 1 ||"),
        ("attention_wgmma.cuh", "(block + 1) * SLOTS - 1 <= begins", "block * SLOTS <= begins"),
        ("attention_wgmma.cuh", "position(a.positions, first + row + 8)}", "position(a.positions, first + row)}"),
        ("attention_wgmma.cuh", "end(last / SLOTS + 1)", "end(last < SLOTS ? 1 : last / SLOTS)"),
        # The softmax: no maximum taken away, sums and results not rescaled.
        ("attention_wgmma.cuh", "shift_of(__fmul_rn(now, TO_POWERS))", "0.0f"),
        ("attention_wgmma.cuh", "fmaf(sum[half], keep[half], total", "fmaf(sum[half], 1.0f, total"),
        ("attention_wgmma.cuh", "o[i] *= rows.keep[i % 4 / 2];", "o[i] *= rows.keep[0];"),
        # Heads and rows: another head's keys, queries of the tile before, values behind the last token as they are.
        ("attention_wgmma.cuh", "tile.head / int(q_heads / kv_heads)", "tile.head % int(kv_heads)"),
        ("attention_wgmma.cuh", "if (there >= SLOTS) return;", "return;"),
        ("attention_wgmma.cuh", "(word % 8 ^ row % 8) * 16", "word % 8 * 16"),
        ("attention_wgmma.cuh", "if (token < tokens)\n", "if (token <= tokens)\n"),
        ("attention_wgmma.cuh", "by_token ? long(token) * q_heads + head", "by_token ? long(token) * kv_heads + head"),
        # Read before it is there, and overwritten before it is read.
        ("attention_wgmma.cuh", "wait_for(at.values(), at.parity);", ""),
        ("attention_wgmma.cuh", "wait_for(ring.free_keys(), ring.parity ^ 1);", ""),
        ("attention_wgmma.cuh", "products_left<1>();", "products_left<2>();"),
        # What the tensor cores read: another group of columns, the next slots.
        ("attention_wgmma.cuh", "unsigned(SLOTS * 128 / 16) << 16", "unsigned(SLOTS * 64 / 16) << 16"),
        ("attention_wgmma.cuh", "NEXT_SLOTS = 16 * 128 / 16", "NEXT_SLOTS = 8 * 128 / 16"),
        # The cache: a key that is not rotated, a value of another head.
        ("chunk_heads.cuh", "if (value < 0) x.rotate(cos, sin);", ""),
        ("chunk_heads.cuh", "a.v_cache + (long(value) * context", "a.v_cache + (long(value / 2) * context"),
    ],
)
def test_a_planted_fault_of_chunked_attention_is_caught(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    template = planted(CATALOG.get(f"{NORMED}/tensor-blocks"), file, right, wrong)
    made, found = chunk(NORMED, tokens=140, head_dim=128, heads=(4, 2), room=70), list[str]()
    for threads in (12, 2):  # the chunk is a short one, or a long one
        found = found or faults(template, made, params(NORMED, BLOCK=64, STAGES=2), tmp_path, threads)
    assert found != []


@pytest.mark.parametrize("exact", [False, True])
def test_large_scores_of_several_blocks_are_weighed_against_each_other(exact: bool, tmp_path: Path) -> None:
    """The maximum of each block is larger than the one before, by little beside what a float of its size can say."""
    template, made = CATALOG.get(f"{PLAIN}/tensor-blocks"), chunk(PLAIN, 1, heads=(1, 1), room=191)
    rounded = "__fsub_rn(__fmul_rn(top[half], TO_POWERS), base[half])"
    if exact:
        template = planted(template, "attention_wgmma.cuh", rounded, "fmaf(top[half], TO_POWERS, -base[half])")
    row = {name: torch.zeros(1, 1, 64, dtype=torch.bfloat16) for name in ("q", "k", "v", "sin")}
    row["q"][..., :2], row["k"][..., 0] = torch.tensor([4000.0, 8.0]), 4000
    keys, values = torch.zeros(192, 64, dtype=torch.bfloat16), torch.zeros(192, 64, dtype=torch.bfloat16)
    values[torch.arange(192), torch.arange(192) // 64] = 1
    # Scores of 16 million and 8 for each step, e times the weight: steps whose powers of two a float misses most.
    powers = torch.tensor(64**-0.5).mul(torch.tensor(1.44269504))
    steps = 16e6 + 8 * torch.arange(200, dtype=torch.float64)
    missed = (steps.float() * powers).double() - steps * powers.double()
    step = int((missed[:-2] + missed[1:-1]).abs().argmax())
    keys[:, 0], keys[:, 1] = 4000, step + torch.arange(192) // 64
    row["k"][..., 1], row["v"][0] = step + 2, values[191]
    buffers = {
        **row,
        "cos": torch.ones(1, 1, 64, dtype=torch.bfloat16),
        "positions": torch.tensor([191]),
        "k_cache": keys.clone().view(1, 1, 192, 64),
        "v_cache": values.clone().view(1, 1, 192, 64),
        "y": torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16),
        "pitch": torch.zeros(1, dtype=torch.int64),
        "order": torch.zeros(1, dtype=torch.int64),
    }
    kernel = compiled(specialise(template, made, params(PLAIN, BLOCK=64), replace(TARGET, threads=4)), tmp_path)
    kernel.run(buffers)
    weights = torch.softmax((keys.double() @ row["q"][0, 0].double()) * 64**-0.5, dim=0)
    wanted = weights @ values.double()
    off = float((buffers["y"].view(-1).double() - wanted).norm() / wanted.norm())
    assert kernel.wrong == []
    assert off > 0.02 if exact else off < 0.004


def test_weights_that_are_declared_to_be_rounded_widen_the_bound_and_nothing_else_does() -> None:
    made = chunk(PLAIN, 70)
    rounds = CATALOG.get(f"{PLAIN}/tensor-blocks").rounds
    drawn = Generator(made, seed=5, tokens=70)
    inputs = drawn.draw(cases(made, "search")[0], drawn.parameters(0))

    def wobble(*declared: tuple[str, str]) -> torch.Tensor:
        bounded = propagate(made.body, inputs, DeclaredArithmetic(rounds=declared), tokens=70).values["y"]
        assert bounded.rounded is not None
        return bounded.rounded

    assert ("y.weights", "bf16") in rounds
    kept = wobble(*(one for one in rounds if one[0] != "y.weights"))
    assert bool((wobble(*rounds) >= kept).all())
    assert float((wobble(*rounds) - kept).mean()) > 0.05 * float(kept.mean())


def test_the_bound_does_not_depend_on_how_many_rows_are_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = chunk(NORMED, 40, heads=(4, 2))
    drawn = Generator(made, seed=5, tokens=40)
    inputs = drawn.draw(cases(made, "search")[0], drawn.parameters(0))
    declared = DeclaredArithmetic(rounds=CATALOG.get(f"{NORMED}/tensor-blocks").rounds)
    found = []
    for block in (1, attention._BLOCK, attention._BLOCK_OF_GPU):
        monkeypatch.setattr(attention, "_BLOCK", block)
        found.append(propagate(made.body, inputs, declared, tokens=40).values["y"])
    for other in found[1:]:
        for part in ("value", "accumulated", "rounded", "variance"):
            torch.testing.assert_close(getattr(other, part), getattr(found[0], part), rtol=1e-9, atol=0)


def test_only_the_weights_of_an_attention_can_be_declared() -> None:
    kinds = facts()
    assert kinds[PLAIN].weights == ("y.weights",)
    assert [name for name, kind in kinds.items() if kind.weights and "attention" not in name] == []
