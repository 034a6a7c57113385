// What every CUDA kernel here stands on: storage types, streaming loads, reductions, programmatic dependent launch.
//
// A kernel lets its successor start at once, loads what no predecessor writes, and then waits: the successor's loads of
// weights overlap this kernel's end. Before `wait_for_inputs` only weights, constant tables and what the manifest names as
// `early` may be read.
constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;

__device__ inline void let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(bf16 v) { return __uint_as_float(unsigned(v.bits) << 16); }
__device__ inline float to_float(fp16 v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
}
template <class T> struct Rounded;
template <> struct Rounded<float> {
    static __device__ float of(float v) { return v; }
};
template <> struct Rounded<bf16> {
    static __device__ bf16 of(float v) {
        bf16 r;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
        return r;
    }
};
template <> struct Rounded<fp16> {
    static __device__ fp16 of(float v) {
        fp16 r;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
        return r;
    }
};
template <class T> __device__ inline void put(T* at, float v) { *at = Rounded<T>::of(v); }

// 16 bytes of a row: eight elements of a 16-bit type, four floats.
struct alignas(16) Words {
    unsigned word[4];
};
template <class T> constexpr int PER_LOAD = 16 / sizeof(T);

// A weight is read once a step: past the first cache. Not by the read-only path (`ld.global.nc`): the assembler takes such
// loads for free to move and puts them behind `wait_for_inputs`, however early they stand in the text.
__device__ inline Words stream(const void* at) {
    Words v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(at));
    return v;
}
__device__ inline unsigned shared_address(const void* at) { return unsigned(__cvta_generic_to_shared(at)); }
// Counts one more, and says how many were before: what was written before that, also by threads that a barrier came
// before, whoever counts later sees. Takes less than an addition between two fences.
__device__ inline unsigned counted(unsigned* count) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}
// What an earlier kernel or this block wrote.
__device__ inline Words load16(const void* at) { return *static_cast<const Words*>(at); }

template <class T> __device__ inline void unpack(const Words& v, float (&out)[PER_LOAD<T>]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = __uint_as_float(v.word[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out[2 * i] = to_float(T{(unsigned short)(v.word[i] & 0xffffu)});
            out[2 * i + 1] = to_float(T{(unsigned short)(v.word[i] >> 16)});
        }
    }
}

template <int WIDTH = WARP> __device__ inline float sum_over(float v) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    return v;
}
template <int WIDTH = WARP> __device__ inline float largest_over(float v) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(ALL, v, step));
    return v;
}

// Sums over the block in a fixed order; `room` holds a float a warp. Ends with all threads past a barrier.
template <int WARPS> __device__ inline float sum_over_block(float v, float* room) {
    v = sum_over(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += room[w];
    return total;
}

template <class T> __device__ inline T* item(T* const& p, int) { return p; }
template <class T, unsigned long N> __device__ inline T* item(T* const (&p)[N], int i) { return p[i]; }
