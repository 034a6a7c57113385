// What thin matrix products ask of the device: loads that stay where they are written, copies to shared memory that
// hold up no thread, and tensor cores (m16n8k16, sums in float): compute capability 8.0.
#include "device.cuh"

// As `stream`, but not through the read-only path: the assembler moves loads of that path past `wait_for_inputs`, to
// where fewer registers are held (NVRTC 13.0, seen on sm_90 and sm_100), and nothing is in flight meanwhile. Where
// there is nothing, the words stay as they are: a branch would keep loads apart.
__device__ inline void ask16(Words& into, const void* at, bool there) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(into.word[0]), "+r"(into.word[1]), "+r"(into.word[2]), "+r"(into.word[3])
        : "l"(at), "r"(unsigned(there)));
}

template <class T> struct Product;
template <> struct Product<bf16> {
    static __device__ void add(
        float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};
template <> struct Product<fp16> {
    static __device__ void add(
        float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

__device__ inline unsigned shared_at(const void* at) { return unsigned(__cvta_generic_to_shared(at)); }
// 16 bytes to an address in shared memory; where there is nothing, nothing is read and zeros are written.
__device__ inline void copy16(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// What was asked for since the last call is one group; groups arrive in turn. A thread sees its own without a barrier.
__device__ inline void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ inline void copies_there() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
