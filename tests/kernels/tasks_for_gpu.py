"""Kernels in CUDA C++ and Triton for tasks of `bench/tasks`, and wrong ones, which the gates for a device must find."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.attempt import Written

SOFTMAX = """\
__device__ float most(float v, float* parts) {
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[0];
    for (int i = 1; i < 8; ++i) v = fmaxf(v, parts[i]);
    __syncthreads();
    return v;
}
__device__ float sum(float v, float* parts) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < 8; ++i) v += parts[i];
    __syncthreads();
    return v;
}
extern "C" __global__ void __launch_bounds__(256) kernel_main(const __grid_constant__ kernel_main_args a) {
    __shared__ float parts[8];
    const long row = blockIdx.x;
    const float4 x = reinterpret_cast<const float4*>(a.in0 + row * in0_d1)[threadIdx.x];
    const float high = most(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)), parts);
    float4 y = {__expf(x.x - high), __expf(x.y - high), __expf(x.z - high), __expf(x.w - high)};
    const float scale = 1.0f / sum(y.x + y.y + y.z + y.w, parts);
    y.x *= scale, y.y *= scale, y.z *= scale, y.w *= scale;
    reinterpret_cast<float4*>(a.out0 + row * out0_d1)[threadIdx.x] = y;
}
"""
"""One block of 256 threads a row of 1024 columns, in registers."""
TRITON_SOFTMAX = '''\
@triton.jit
def kernel_main(in0, out0):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, 1024)
    x = tl.load(in0 + row * in0_d1 + columns)
    y = tl.exp(x - tl.max(x, axis=0))
    tl.store(out0 + row * out0_d1 + columns, y / tl.sum(y, axis=0))
'''
RMSNORM = """\
__device__ float wide(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }
__device__ unsigned short narrow(float v) {
    const unsigned bits = __float_as_uint(v);
    return v != v ? 0x7fc0 : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
struct alignas(16) eight { unsigned short at[8]; };
extern "C" __global__ void __launch_bounds__(256) kernel_main(const __grid_constant__ kernel_main_args a) {
    __shared__ float parts[8];
    const long row = blockIdx.x, place = row * 256 + threadIdx.x;
    const eight x = reinterpret_cast<const eight*>(a.in0)[place], r = reinterpret_cast<const eight*>(a.in1)[place];
    const eight w = reinterpret_cast<const eight*>(a.weight)[threadIdx.x];
    float h[8], square = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        h[i] = wide(narrow(wide(x.at[i]) + wide(r.at[i])));
        square += h[i] * h[i];
    }
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = square;
    __syncthreads();
    square = 0;
    for (int i = 0; i < 8; ++i) square += parts[i];
    const float scale = rsqrtf(square / in0_d1 + 1e-6f);
    eight y;
#pragma unroll
    for (int i = 0; i < 8; ++i) y.at[i] = narrow(h[i] * scale * wide(w.at[i]));
    reinterpret_cast<eight*>(a.out0)[place] = y;
}
"""
"""One block of 256 threads a row of 2048 columns in bfloat16, in registers."""


def manifest(name: str, arguments: tuple[str, ...], dtype: str, *, language: str = "cuda", more: str = "") -> str:
    """The manifest of a launch of a block of 256 threads for each row of the first input."""
    names = ", ".join(f'"{one}"' for one in arguments)
    return f"""\
region = "task-{name}"
language = "{language}"
about = "one block a row"
dtypes = ["{dtype}"]

[[launch]]
entry = "kernel_main"
arguments = [{names}]
grid = ["in0_d0"]
block = ["256"]
{more}"""


def softmax(kernel: str = SOFTMAX, *, language: str = "cuda") -> Written:
    """A kernel for `softmax.py`."""
    return Written(manifest=manifest("softmax", ("in0", "out0"), "fp32", language=language), kernel=kernel)


def rmsnorm(kernel: str = RMSNORM) -> Written:
    """A kernel for `rmsnorm_residual.py`."""
    arguments = ("in0", "in1", "weight", "out0")
    return Written(manifest=manifest("rmsnorm-residual", arguments, "bf16"), kernel=kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A change of `SOFTMAX` that makes it wrong, and the checks of which one must see that."""

    old: str
    new: str
    checks: frozenset[str]

    @property
    def written(self) -> Written:
        """The wrong kernel."""
        assert SOFTMAX.count(self.old) == 1, self.old
        return softmax(SOFTMAX.replace(self.old, self.new))


_STORE = "    reinterpret_cast<float4*>(a.out0 + row * out0_d1)[threadIdx.x] = y;\n"
_FIRST = "row == 0 && threadIdx.x == 0"
WRONG = {
    "at large inputs alone": Wrong(
        old="const float4 x = reinterpret_cast<const float4*>(a.in0 + row * in0_d1)[threadIdx.x];",
        new="float4 x = reinterpret_cast<const float4*>(a.in0 + row * in0_d1)[threadIdx.x];\n"
        "    x.x = x.x > 14.0f ? 14.0f : x.x;",
        checks=frozenset({"element", "error ratio"}),
    ),
    "writes before its output": Wrong(
        old=_STORE,
        new=f"{_STORE}    if ({_FIRST}) a.out0[-4] = 1.0f;\n",
        checks=frozenset({"memory"}),
    ),
    "writes into its input": Wrong(
        old=_STORE,
        new=f"{_STORE}    if ({_FIRST}) const_cast<float*>(a.in0)[5] += 1.0f;\n",
        checks=frozenset({"inputs"}),
    ),
    "leaves a row unwritten": Wrong(
        old=_STORE,
        new=f"    if (row != 77)\n    {_STORE}",
        checks=frozenset({"element", "error ratio", "not_finite"}),
    ),
    "keeps what is in its output": Wrong(
        old=_STORE,
        new=f"    const float before = a.out0[row * out0_d1 + 4 * threadIdx.x];\n"
        f"    if (before >= 0.0f && before <= 1.0f) return;\n{_STORE}",
        checks=frozenset({"element", "error ratio", "fresh inputs", "repeats", "not_finite"}),
    ),
}
HANGS = softmax(SOFTMAX.replace(_STORE, f"    while (*(volatile const float*)a.in0 != 1e30f) {{}}\n{_STORE}"))
FAULTS = softmax(SOFTMAX.replace(_STORE, f"{_STORE}    if ({_FIRST}) a.out0[1l << 32] = 1.0f;\n"))
STATE = softmax("__device__ float kept[4];\n" + SOFTMAX.replace(_STORE, f"{_STORE}    kept[0] = y.x;\n"))
"""Memory of its own, in which a result could be kept."""
