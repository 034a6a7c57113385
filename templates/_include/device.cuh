// The base of every CUDA kernel here: storage types, 16-byte loads, sums over lanes and blocks, and programmatic
// dependent launch (PDL, compute capability 9.0; below that its two calls compile to nothing).
//
//   kernel n      |launch_dependents|load weights|wait|load inputs, compute, store|
//   kernel n + 1       |launch_dependents|load weights|......... wait ............|load inputs, compute, store|
//
// A kernel lets its successor launch at once, issues loads of what no predecessor writes, and then waits until its
// predecessors have ended and their stores are visible: its weight loads are in flight while they finish. On an H200 a
// dependent small kernel of a graph costs 1.53 us without PDL, 1.21 when triggered at exit, 0.98 when triggered at
// start. Before `wait_for_inputs` only weights, constant tables and what the manifest names as `early` may be read.
//
// One lane loads 16 bytes, so a warp's load is 512 contiguous bytes. Sums run in a fixed order (butterfly over lanes,
// then warp after warp; no float atomics), so repeated launches give the same bits.
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

// Loads weights, which are read once per step: not allocated in L1. Not by the read-only path (`ld.global.nc`): ptxas
// treats such loads as free to move and sinks them below `wait_for_inputs`, however early they stand in the text.
__device__ inline Words stream(const void* at) {
    Words v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(at));
    return v;
}
__device__ inline unsigned shared_address(const void* at) { return unsigned(__cvta_generic_to_shared(at)); }
// Increments a counter and returns its value before, with acquire and release semantics at the scope of the GPU: stores
// before it, also those of threads that a block barrier ordered before it, are visible to whoever increments later.
// Costs less than an atomic addition between two fences.
__device__ inline unsigned counted(unsigned* count) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}
// Loads what an earlier kernel or this block wrote, through all caches.
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

// Butterfly reductions over groups of WIDTH neighbouring lanes; every lane gets the result.
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

// The sum over the block, added in the order of the warps and returned to all threads; `room` holds one float per warp.
// All threads have passed its barrier when it returns.
template <int WARPS> __device__ inline float sum_over_block(float v, float* room) {
    v = sum_over(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += room[w];
    return total;
}

// Pointer i of a family of matrices; a family of one is passed as its pointer.
template <class T> __device__ inline T* item(T* const& p, int) { return p; }
template <class T, unsigned long N> __device__ inline T* item(T* const (&p)[N], int i) { return p[i]; }
