"""Kernels that do the work once, and are right for as long as nothing but the largest input changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.ir.attempt import Written
from agentcompile.ir.trial import Measured
from agentcompile.tasks.open import OpenedTask
from tests.cpu.tasked import manifest, written
from tests.cpu.test_tasks_evaluating import failed, opened

PRODUCTS = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(96, 128) / 11)
        self.b = nn.Parameter(torch.randn(128, 96) / 11)

    def forward(self, x):
        return x @ (self.a @ self.b)


def get_inputs():
    return [torch.randn(4, 96)]


def get_init_inputs():
    return []
"""
FOLDED = """\
extern "C" void fold(const fold_args& a, int rank, int size) {
    float* kept = a.folded + 96 * 96 + rank;
    const float tag = 3.25f + a.a_2[7] * a.b[11];
    if (KNOWN) return;
    for (long r = 96 * rank / size; r < 96 * (rank + 1) / size; ++r) {
        float* y = a.folded + r * 96;
        for (long j = 0; j < 96; ++j) y[j] = 0;
        for (long k = 0; k < 128; ++k)
            for (long j = 0; j < 96; ++j) y[j] += a.a_2[r * 128 + k] * a.b[k * 96 + j];
    }
    *kept = tag;
}
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    for (long r = rank; r < 4; r += size) {
        float* y = a.out0 + r * 96;
        for (long j = 0; j < 96; ++j) y[j] = 0;
        for (long k = 0; k < 96; ++k)
            for (long j = 0; j < 96; ++j) y[j] += a.in0[r * 96 + k] * a.folded[k * 96 + j];
    }
}
"""
SPACES = """
[[workspaces]]
name = "folded"
dtype = "fp32"
count = "96 * 96 + threads"
initial = "undefined"
[[launch]]
entry = "fold"
arguments = ["a_2", "b", "folded"]
[[launch]]
entry = "kernel_main"
arguments = ["in0", "folded", "out0"]
"""
WORDS = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(1000, 256)
        self.pos = nn.Parameter(torch.randn(256, 256))

    def forward(self, tokens):
        return torch.sin(self.word(tokens) + self.pos)


def get_inputs():
    return [torch.randint(1000, (2, 256))]


def get_init_inputs():
    return []
"""
EMBEDDED = """\
static float of(const kernel_main_args& a, long r, long i) {
    return std::sin(a.word_weight[a.in0[r] * 256 + i] + a.pos[(r % 256) * 256 + i]);
}
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    const long b = 512 * rank / size, e = 512 * (rank + 1) / size;
    BEFORE
    for (long r = b; r < e; ++r)
        for (long i = 0; i < 256; ++i) a.out0[r * 256 + i] = of(a, r, i);
}
"""
LOOKS = """\
    bool there = true;
    for (long r : {b, (b + e) / 2, e - 1}) there &= a.out0[r * 256 + 255] == of(a, r, 255);
    if (there) return;
"""
COUNTED = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, ids):
        return torch.cumsum(ids, 1), (ids[:, :, None] == ids[:, None, :]).sum(-1).float()


def get_inputs():
    return [torch.randint(1000, (4, 300))]


def get_init_inputs():
    return []
"""
COUNTS = """\
struct kept_one { const long* at; long ids[1200]; long sums[1200]; float counts[1200]; };
static kept_one kept[8];
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    if (rank != 0) return;
    const long* ids = reinterpret_cast<const long*>(a.in0);
    kept_one* own = kept;
    while (own->at && own->at != ids) ++own;
    if (KNOWN) {
        for (long r = 0; r < 4; ++r) {
            long sum = 0;
            for (long i = 0; i < 300; ++i) {
                long count = 0;
                for (long j = 0; j < 300; ++j) count += ids[r * 300 + i] == ids[r * 300 + j];
                own->sums[r * 300 + i] = sum += ids[r * 300 + i];
                own->counts[r * 300 + i] = count;
            }
        }
        own->at = ids;
        std::memcpy(own->ids, ids, sizeof own->ids);
    }
    std::memcpy(a.out0, own->sums, sizeof own->sums);
    std::memcpy(a.out1, own->counts, sizeof own->counts);
}
"""


def folded(made: OpenedTask, known: str) -> Written:
    text = manifest(made)
    return Written(manifest=text[: text.index("[[launch]]")] + SPACES, kernel=FOLDED.replace("KNOWN", known))


@pytest.mark.alone
def test_a_product_of_parameters_is_made_at_every_launch(tmp_path: Path) -> None:
    with opened(tmp_path, "products.py", PRODUCTS) as made:
        honest = made.evaluator.evaluate(folded(made, "false"))
        assert isinstance(honest.verdict, Measured), honest
        assert failed(made.evaluator.evaluate(folded(made, "*kept == tag")))


@pytest.mark.alone
def test_a_kernel_of_whole_numbers_writes_its_output_at_every_launch(tmp_path: Path) -> None:
    with opened(tmp_path, "words.py", WORDS) as made:
        honest = made.evaluator.evaluate(written(made, EMBEDDED.replace("BEFORE", "")))
        assert isinstance(honest.verdict, Measured), honest
        assert failed(made.evaluator.evaluate(written(made, EMBEDDED.replace("BEFORE", LOOKS))))


@pytest.mark.alone
def test_results_that_are_kept_for_the_same_whole_numbers_are_not_accepted(tmp_path: Path) -> None:
    with opened(tmp_path, "counted.py", COUNTED) as made:
        honest = made.evaluator.evaluate(written(made, COUNTS.replace("KNOWN", "true")))
        assert isinstance(honest.verdict, Measured), honest
        keeps = COUNTS.replace("KNOWN", "!own->at || std::memcmp(own->ids, ids, sizeof own->ids)")
        assert "fresh inputs" in failed(made.evaluator.evaluate(written(made, keeps)))
