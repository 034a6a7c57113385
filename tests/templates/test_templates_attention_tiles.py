"""Attention of a chunk in AMX tiles, emulated where the host has none, as in `test_templates_attention_chunk.py`."""

from __future__ import annotations

import pytest
import torch

from tests.templates.chunked import TOKENS, WIDE, Built, Workshop
from tests.templates.shapes import Extents
from tests.templates.suite import CATALOG, legal
from tests.templates.test_templates_attention_chunk import (
    CONTEXT,
    LOUD,
    Caches,
    Prompt,
    attend,
    error,
    nan_stays_away,
    same_bits_in_every_chunk,
    wanted,
)

AMX = (*WIDE, "avx512cd", "sse4_2", "f16c", "bmi2", "amx_tile", "amx_bf16")
CASES: dict[str, tuple[str, Extents]] = {
    "rope window": (
        "rope-attention-prefill/tiles",
        Extents(q_heads=4, kv_heads=2, head_dim=96, context=CONTEXT, dtype="bf16", window=70),
    ),
    "rope group 7": (
        "rope-attention-prefill/tiles",
        Extents(q_heads=7, kv_heads=1, head_dim=32, context=CONTEXT, dtype="bf16"),
    ),
    "qknorm": (
        "qknorm-rope-attention-prefill/tiles",
        Extents(q_heads=2, kv_heads=2, head_dim=64, context=CONTEXT, dtype="bf16", offset=1.0),
    ),
}


def built_of(workshop: Workshop, name: str, change: tuple[str, str] | None = None) -> tuple[Built, Extents, bool]:
    id, at = CASES[name]
    made = workshop.build(CATALOG.get(id, at.dtype), at, target=workshop.having(*AMX), change=change)
    return made, at, id.startswith("qknorm")


@pytest.mark.parametrize("name", CASES)
def test_every_length_at_every_place_is_right(workshop: Workshop, name: str) -> None:
    built, at, norms = built_of(workshop, name)
    prompt = Prompt.of(at)
    exact = wanted(at, prompt, norms)
    for n in (1, 2, 15, 17, 33, TOKENS):
        for start in sorted({0, 63, CONTEXT - n}):
            caches = Caches.before(start, at, prompt, norms)
            made = attend(workshop, built, prompt, caches, start, n)
            assert error(made, exact[:, start : start + n], at.dtype) <= 1, (n, start)
            assert caches.keys[:, start + n :].isnan().all()
            assert caches.values[:, start + n :].isnan().all()


@pytest.mark.parametrize("name", CASES)
def test_a_token_has_the_same_bits_in_every_chunk_and_for_every_number_of_threads(
    workshop: Workshop, name: str
) -> None:
    same_bits_in_every_chunk(workshop, *built_of(workshop, name))


def test_later_tokens_and_old_slots_that_are_nan_reach_no_result(workshop: Workshop) -> None:
    nan_stays_away(workshop, *built_of(workshop, "rope window"))


def test_a_value_that_is_no_number_reaches_the_tokens_that_see_it(workshop: Workshop) -> None:
    built, at, norms = built_of(workshop, "rope group 7")
    prompt, n = Prompt.of(at), 60
    clean = attend(workshop, built, prompt, Caches.before(0, at, prompt, norms), 0, n)
    prompt.v[21, 0, 3] = float("inf")
    made = attend(workshop, built, prompt, Caches.before(0, at, prompt, norms), 0, n)
    assert torch.equal(made[:, :21], clean[:, :21])
    assert torch.equal(made[:, 21:, 4:], clean[:, 21:, 4:])
    assert made[:, 21:, 3].isinf().all()


@pytest.mark.parametrize("id", sorted({id for id, _ in CASES.values()}))
def test_every_point_is_right(workshop: Workshop, id: str) -> None:
    template, at = CATALOG.get(id, "bf16"), Extents(q_heads=2, kv_heads=1, head_dim=32, context=600)
    target, norms, start, n = workshop.having(*AMX), id.startswith("qknorm"), 330, 200
    prompt = Prompt.of(at)
    exact = wanted(at, prompt, norms)[:, start : start + n]
    points = legal(workshop.build(template, at, target=target).region, template, target)
    assert 2 <= len(points) <= 12
    for point in points[:: len(points) - 1]:
        built = workshop.build(template, at, params=point.params, target=target)
        made = attend(workshop, built, prompt, Caches.before(start, at, prompt, norms), start, n)
        assert error(made, exact, "bf16") <= 1, point.label


GROUPS = "const long from = first / DEEP, to = (last + DEEP - 1) / DEEP;"
ZIPPED = "row(v, slot, here, panel) | row(v, slot + 1, here, panel) << 16"
TOP, KEEP = (
    "next == -INFINITY ? 0.0f : next;\n        const",
    "next == top ? 1.0f : std::exp(top - shift);\n        vf sum",
)
PLANTED = {
    "no maximum is subtracted": (TOP, TOP.replace("next == -INFINITY ? 0.0f : next", "0.0f")),
    "sums keep their old scale": (KEEP, KEEP.replace("next == top ? 1.0f : std::exp(top - shift)", "1.0f")),
    "the last group of slots is missing": (GROUPS, GROUPS.replace("(last + DEEP - 1)", "last")),
    "the second half of the rows is missing": ("if (some > 16) score<2>", "if (some > 64) score<2>"),
    "slots of a pair are swapped": (ZIPPED, "row(v, slot + 1, here, panel) | row(v, slot, here, panel) << 16"),
    "unseen slots keep a weight": ("left = seen(i) ? all(i) : vf{}", "left = all(i)"),
}


@pytest.mark.parametrize("fault", ["", *PLANTED])
def test_a_planted_fault_is_seen(workshop: Workshop, fault: str) -> None:
    at = Extents(q_heads=4, kv_heads=2, head_dim=32, context=CONTEXT, dtype="bf16", window=200)
    template, target = CATALOG.get("rope-attention-prefill/tiles", "bf16"), workshop.having(*AMX)
    params = tuple((name, {"BLOCK": 128}.get(name, value)) for name, value in template.defaults)
    built = workshop.build(template, at, params=params, target=target, change=PLANTED.get(fault))
    prompt, start, n = Prompt.of(at, LOUD), 45, 201
    made = attend(workshop, built, prompt, Caches.before(start, at, prompt, False), start, n)
    right = error(made, wanted(at, prompt, False)[:, start : start + n], "bf16", LOUD) <= 1
    assert right == (fault == "")
