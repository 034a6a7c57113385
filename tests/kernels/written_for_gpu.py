"""Kernels for a GPU, written from a region's contract alone: a matrix times a vector, in both languages."""

from __future__ import annotations

from agentcompile.ir.attempt import Written

_MANIFEST = """\
region = "linear"
language = "{language}"
about = "a block computes one row: each thread sums a part, then the block adds the parts up"
dtypes = ["bf16", "fp32"]

[[launch]]
entry = "matvec"
arguments = ["x", "w", "y"]
grid = ["rows"]
block = ["128"]
"""
CUDA = Written(
    manifest=_MANIFEST.format(language="cuda"),
    kernel="""\
__device__ float wide(float v) { return v; }
__device__ float wide(bf16 v) { return __uint_as_float((unsigned)v.bits << 16); }
__device__ void narrow(float* to, float v) { *to = v; }
__device__ void narrow(bf16* to, float v) {
    const unsigned bits = __float_as_uint(v);
    to->bits = v != v ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

extern "C" __global__ void matvec(const __grid_constant__ matvec_args a) {
    __shared__ float parts[128];
    const long row = blockIdx.x;
    float sum = 0;
    for (long k = threadIdx.x; k < hidden; k += 128) sum += wide(a.x[k]) * wide(a.w[row * hidden + k]);
    parts[threadIdx.x] = sum;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) narrow(a.y + row, parts[0]);
}
""",
)
TRITON = Written(
    manifest=_MANIFEST.format(language="triton"),
    kernel='''\
@triton.jit
def matvec(x, w, y):
    """One program a row, 128 columns at a time."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, 128)
    sums = tl.zeros([128], tl.float32)
    for k in tl.range(0, hidden, 128):
        inside = k + columns < hidden
        here = tl.load(x + k + columns, mask=inside, other=0.0).to(tl.float32)
        sums += here * tl.load(w + row * hidden + k + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(sums, axis=0))
''',
)
