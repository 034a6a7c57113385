"""The binding of cuBLASLt against a library that checks every argument and multiplies on the host.

The fake knows objects by a tag, takes attributes at the sizes that the real library takes them at, and reads matrices
by columns through their leading dimensions. Its n-th algorithm asks for n KiB of workspace, and says that it ran.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentcompile.build import find_toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.graph import DType
from agentcompile.ops.reference import DTYPES, run
from agentcompile.runtime import library
from agentcompile.runtime.cublaslt import ALIGN_BYTES, Linear, Lt, find_library, operators, rank_of
from agentcompile.validate import DeclaredArithmetic, validate
from tests.templates.shapes import Extents, region

STREAM = 0x5EED
FAKE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
enum { OK = 0, INVALID = 7, NOT_SUPPORTED = 15 };
enum { HANDLE = 1, DESC, LAYOUT, PREFERENCE };
typedef struct { long tag, attrs[16]; int type; uint64_t rows, cols; int64_t ld; } Object;
typedef struct { uint64_t data[8]; } Algorithm;
typedef struct { Algorithm algo; size_t workspace; int state; float waves; int reserved[4]; } Result;
_Static_assert(sizeof(Result) == 96, "as in cublasLt.h");
long said_algorithm, said_workspace, said_stream, said_asked, made, heuristics, live, have = 8, broken = -1, answer;
long said_attributes[16];

static int make(void** out, long tag) {
    Object* one = calloc(1, sizeof(Object));
    one->tag = tag, *out = one, live++, made++;
    return OK;
}
static int end(Object* one, long tag) {
    if (one->tag != tag) return INVALID;
    free(one), live--;
    return OK;
}
static int set(Object* one, long tag, int at, const void* from, size_t size, const char* sizes) {
    if (one->tag != tag || at > 15 || size != (size_t)(sizes[at] - '0')) return INVALID;
    return memcpy(&one->attrs[at], from, size), OK;
}
const char* cublasLtGetStatusName(int status) { return status == INVALID ? "CUBLAS_STATUS_INVALID_VALUE" : "OTHER"; }
int cublasLtCreate(void** out) { make(out, HANDLE), live--; return OK; }
int cublasLtMatmulDescCreate(void** out, int compute, int scale) {
    return compute == 68 && scale == 0 ? make(out, DESC) : INVALID;
}
int cublasLtMatmulDescSetAttribute(void* one, int at, const void* from, size_t size) {
    return set(one, DESC, at, from, size, "4444444480000000");
}
int cublasLtMatmulDescDestroy(void* one) { return end(one, DESC); }
int cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if ((type != 2 && type != 14) || !rows || !cols || ld < (int64_t)rows) return INVALID;
    make(out, LAYOUT);
    Object* one = *out;
    one->type = type, one->rows = rows, one->cols = cols, one->ld = ld;
    return OK;
}
int cublasLtMatrixLayoutDestroy(void* one) { return end(one, LAYOUT); }
int cublasLtMatmulPreferenceCreate(void** out) { return make(out, PREFERENCE); }
int cublasLtMatmulPreferenceSetAttribute(void* one, int at, const void* from, size_t size) {
    return set(one, PREFERENCE, at, from, size, "4804044440000000");
}
int cublasLtMatmulPreferenceDestroy(void* one) { return end(one, PREFERENCE); }

static int fits(Object* h, Object* desc, Object* a, Object* b, Object* c, Object* d) {
    if (h->tag != HANDLE || desc->tag != DESC) return 0;
    if (a->tag != LAYOUT || b->tag != LAYOUT || c->tag != LAYOUT || d->tag != LAYOUT) return 0;
    int turned = (int)desc->attrs[3] == 1;
    uint64_t m = turned ? a->cols : a->rows, k = turned ? a->rows : a->cols;
    if ((int)desc->attrs[4] || a->type != b->type || a->type != d->type || c->type != d->type) return 0;
    return b->rows == k && d->rows == m && c->rows == m && d->cols == b->cols && c->cols == b->cols;
}
int cublasLtMatmulAlgoGetHeuristic(void* h, void* desc, void* a, void* b, void* c, void* d, Object* preference,
                                   int asked, Result* results, int* count) {
    if (!fits(h, desc, a, b, c, d) || preference->tag != PREFERENCE || asked < 1) return INVALID;
    heuristics++, said_asked = asked;
    memcpy(said_attributes, preference->attrs, sizeof(said_attributes));
    said_attributes[15] = ((Object*)desc)->attrs[8];
    *count = 0;
    if (answer) return answer;
    for (*count = 0; *count < asked && *count < have; ++*count) {
        Result one = {{{0xA190, *count}}, (size_t)*count << 10, *count == broken ? NOT_SUPPORTED : OK, 1.f, {0}};
        results[*count] = one;
    }
    return OK;
}

static float wide(const uint16_t* at, int type) {
    _Float16 half;
    uint32_t bits = (uint32_t)*at << 16;
    float value;
    memcpy(&half, at, 2), memcpy(&value, &bits, 4);
    return type == 14 ? value : (float)half;
}
static void narrow(uint16_t* at, float value, int type) {
    _Float16 half = (_Float16)value;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    if (type == 14) *at = (uint16_t)bits; else memcpy(at, &half, 2);
}
int cublasLtMatmul(void* h, Object* desc, const float* alpha, const uint16_t* a, Object* la, const uint16_t* b,
                   Object* lb, const float* beta, const uint16_t* c, Object* lc, uint16_t* d, Object* ld,
                   const Algorithm* algo, void* workspace, size_t size, void* stream) {
    if (!fits(h, desc, la, lb, lc, ld) || algo->data[0] != 0xA190 || size < algo->data[1] << 10) return INVALID;
    if ((size && !workspace) || *beta != 0.f || c != d) return INVALID;
    if (((long)a | (long)b | (long)d | desc->attrs[8]) % 16) return INVALID;
    said_algorithm = (long)algo->data[1], said_workspace = (long)size, said_stream = (long)stream;
    memset(workspace, 0xFF, size);
    const uint16_t* bias = (int)desc->attrs[7] == 4 ? (const uint16_t*)desc->attrs[8] : 0;
    int turned = (int)desc->attrs[3] == 1;
    for (uint64_t i = 0; i < ld->rows; i++)
        for (uint64_t j = 0; j < ld->cols; j++) {
            float sum = 0.f;
            for (uint64_t k = 0; k < lb->rows; k++) {
                const uint16_t* at = &a[turned ? i * la->ld + k : k * la->ld + i];
                sum += wide(at, la->type) * wide(&b[j * lb->ld + k], lb->type);
            }
            narrow(&d[j * ld->ld + i], *alpha * sum + (bias ? wide(&bias[i], ld->type) : 0.f), ld->type);
        }
    return OK;
}
"""


class Fake(Lt):
    """The library under test, with what it says of its last calls."""

    def __init__(self, path: Path) -> None:
        self.loaded = ctypes.CDLL(str(path))
        super().__init__(self.loaded, lambda: STREAM)

    def said(self, name: str) -> int:
        return ctypes.c_long.in_dll(self.loaded, name).value

    def tell(self, name: str, value: int) -> None:
        ctypes.c_long.in_dll(self.loaded, name).value = value


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.c").write_text(FAKE)
    out = folder / "libcublasLt.so.99"
    flags = ["-x", "c", "-std=gnu11", "-O1", "-w", "-shared", "-fPIC"]
    subprocess.run([find_toolchain().compiler, *flags, "-o", str(out), str(folder / "fake.c")], check=True)
    return out


@pytest.fixture
def lt(built: Path) -> Iterator[Fake]:
    fake = Fake(built)
    yield fake
    for name, usual in (("have", 8), ("broken", -1), ("answer", 0)):
        fake.tell(name, usual)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> bool:
    """Within the float32 sum's error and one rounding."""
    exact = x.double() @ w.double().T + (0 if b is None else b.double())
    size = x.double().abs() @ w.double().abs().T
    return bool(((y.double() - exact).abs() <= torch.finfo(y.dtype).eps / 2 * exact.abs() * 1.01 + 1e-5 * size).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("tokens", "rows", "hidden"), [(1, 48, 64), (2, 8, 24), (5, 40, 104), (64, 24, 8), (3, 7, 13)])
def test_it_is_x_times_w_transposed(
    lt: Fake, tokens: int, rows: int, hidden: int, biased: bool, dtype: torch.dtype
) -> None:
    x, w = drawn(1, tokens, hidden, dtype=dtype), drawn(rows, hidden, dtype=dtype)
    b = drawn(rows, dtype=dtype) if biased else None
    y = Linear(lt, 0)(x, w, b)
    assert (y.shape, y.dtype) == ((1, tokens, rows), dtype)
    assert close(y, x, w, b)


@pytest.mark.parametrize("rank", range(8))
def test_algo_names_the_algorithm_its_workspace_and_the_stream(lt: Fake, rank: int) -> None:
    Linear(lt, rank)(drawn(2, 1, 64), drawn(48, 64))
    assert lt.said("said_algorithm") == rank
    assert lt.said("said_workspace") == rank << 10
    assert lt.said("said_stream") == STREAM
    assert lt.said("said_asked") == 8


def test_the_heuristic_is_told_workspace_reductions_and_alignment(lt: Fake) -> None:
    Linear(lt, 0).prepare(drawn(1, 64), drawn(48, 64), drawn(48))
    told = list((ctypes.c_long * 16).in_dll(lt.loaded, "said_attributes"))
    assert (told[1], told[3], told[5:9]) == (32 << 20, 2, [ALIGN_BYTES] * 4)
    assert told[15] == ALIGN_BYTES, "a bias pointer that is aligned as the buffers will be"


def test_descriptors_are_made_once_for_a_shape(lt: Fake) -> None:
    linear, w = Linear(lt, 1), drawn(48, 64)
    linear.prepare(drawn(2, 1, 64), w)
    before = lt.said("heuristics"), lt.said("made")
    for seed in range(3):
        linear(drawn(2, 1, 64) + seed, w)
    assert (lt.said("heuristics"), lt.said("made")) == before
    linear(drawn(4, 1, 64), w)
    assert lt.said("heuristics") == before[0] + 1


def test_operands_off_their_alignment_get_the_same_algorithm(lt: Fake) -> None:
    def shifted(one: torch.Tensor) -> torch.Tensor:
        moved = torch.zeros(one.numel() + 1, dtype=one.dtype)[1:].view(one.shape).copy_(one)
        assert moved.data_ptr() % ALIGN_BYTES == 2
        return moved

    linear, (x, w, b) = Linear(lt, 1), (drawn(2, 1, 64), drawn(48, 64), drawn(48))
    y = linear(x, w, b)
    before = lt.said("heuristics")
    assert torch.equal(linear(shifted(x), shifted(w), shifted(b)), y)
    assert lt.said("heuristics") == before


def test_another_bias_of_the_same_shape_is_the_one_that_is_added(lt: Fake) -> None:
    linear, x, w = Linear(lt, 0), drawn(3, 1, 64), drawn(48, 64)
    for b in (drawn(48), drawn(48) * 3):
        assert close(linear(x, w, b), x, w, b)


def test_operands_that_are_not_dense_are_read_as_they_are_seen(lt: Fake) -> None:
    x, w = drawn(64, 6).T[::2], drawn(96, 64)[::2]
    assert close(Linear(lt, 0)(x, w), x, w)


def test_what_is_dropped_gives_its_descriptors_back(lt: Fake) -> None:
    before = lt.said("live")
    linear = Linear(lt, 0)
    linear(drawn(1, 64), drawn(48, 64), drawn(48))
    assert lt.said("live") == before + 4, "a product and three layouts: the preference is gone already"
    del linear
    gc.collect()
    assert lt.said("live") == before


def test_a_rank_that_the_shape_does_not_have_is_an_error_of_that_candidate(lt: Fake) -> None:
    lt.tell("have", 3)
    made, before = region("linear", Extents()), lt.said("live")
    assert operators(made, (("ALGO", 2),), lt)
    with pytest.raises(
        AgentCompileError, match=r"ALGO = 3: cuBLASLt has 3 algorithms for \[1, 64\] x \[48, 64\]"
    ) as caught:
        operators(made, (("ALGO", 3),), lt)
    assert caught.value.exit_code is not ExitCode.ENVIRONMENT, "which would end the run"
    del caught
    gc.collect()
    assert lt.said("live") == before


def test_an_algorithm_that_the_heuristic_takes_back_has_no_rank(lt: Fake) -> None:
    lt.tell("broken", 1)
    Linear(lt, 1)(drawn(1, 64), drawn(48, 64))
    assert lt.said("said_algorithm") == 2
    with pytest.raises(AgentCompileError, match="ALGO = 7: cuBLASLt has 7 algorithms"):
        Linear(lt, 7)(drawn(1, 64), drawn(48, 64))


@pytest.mark.parametrize(
    ("status", "message"), [(15, "has 0 algorithms"), (7, "AlgoGetHeuristic: CUBLAS_STATUS_INVALID_VALUE")]
)
def test_a_heuristic_without_an_answer_is_an_error_of_that_candidate(lt: Fake, status: int, message: str) -> None:
    lt.tell("answer", status)
    with pytest.raises(AgentCompileError, match=message):
        Linear(lt, 0)(drawn(1, 64), drawn(48, 64))


def test_other_types_are_refused(lt: Fake) -> None:
    with pytest.raises(AgentCompileError, match="not of a 16-bit type"):
        Linear(lt, 0)(drawn(1, 64, dtype=torch.float32), drawn(48, 64, dtype=torch.float32))
    with pytest.raises(AgentCompileError, match="several types: bfloat16, float16"):
        Linear(lt, 0)(drawn(1, 64), drawn(48, 64, dtype=torch.float16))


@pytest.mark.parametrize("kind", ["linear", "linear-merged", "linear-residual", "rmsnorm-linear-argmax"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_region_passes_the_suite_with_every_product_chosen_at_bind(
    lt: Fake, kind: str, dtype: DType, batch: int
) -> None:
    rows = (24, 8, 16) if kind == "linear-merged" else (40,)
    made = region(kind, Extents(hidden=64, rows=rows, bias=kind != "linear-merged", dtype=dtype, batch=batch))
    before = lt.said("heuristics")
    replaced = operators(made, (("ALGO", 5),), lt)
    assert lt.said("heuristics") == before + len(rows)
    call = library._body(made, {**library.OPERATORS, **replaced})

    def launch(buffers: dict[str, torch.Tensor]) -> None:
        for name, tensor in call(buffers).items():
            buffers[name].copy_(tensor)

    facts = DeclaredArithmetic(accumulation="library")
    report = validate(made, facts, launch, seed=3, repeats=2, depth="search", fences=False)  # type: ignore[arg-type]
    assert report.ok, [check for check in report.checks if not check.ok]
    inputs = {port.name: drawn(*port.shape, dtype=DTYPES[dtype]) for port in made.ports if port.role != "output"}
    assert call(inputs).keys() == run(made.body, inputs).keys()


@pytest.mark.parametrize("rank", [-1, 8, "first"])
def test_an_algo_that_is_no_rank_is_refused(rank: int | str) -> None:
    with pytest.raises(AgentCompileError, match=f"ALGO = {rank} is unknown") as caught:
        rank_of((("ALGO", rank),))
    assert "0 to 7" in caught.value.hint


def test_the_library_that_is_loaded_comes_first_then_the_packages(built: Path, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 fe:00 12    {built}\n7f01-7f02 rw-p 00000000 00:00 0\n")
    assert find_library(maps, tmp_path, "98")._name == str(built)
    brought = tmp_path / "nvidia" / "cu98" / "lib" / "libcublasLt.so.98"
    brought.parent.mkdir(parents=True)
    brought.write_bytes(built.read_bytes())
    assert find_library(tmp_path / "none", tmp_path, "98")._name == str(brought)


def test_a_library_that_is_missing_or_no_cublaslt_says_so(built: Path, tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=r"libcublasLt cannot be loaded: libcublasLt\.so\.97") as caught:
        find_library(tmp_path / "none", tmp_path, "97")
    assert "nvidia-cublas" in caught.value.hint
    with pytest.raises(AgentCompileError, match="cublasLtCreate"):
        Lt(ctypes.CDLL("libc.so.6"), lambda: 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_call_is_refused_when_it_is_bound() -> None:
    with pytest.raises(AgentCompileError, match="runs on CUDA devices alone"):
        library.bind("cublaslt.linear", region("linear", Extents()), (("ALGO", 0),))
