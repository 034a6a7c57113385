// What skinny matrix products (thin.cuh, thin_fma.cuh) use of the device: asynchronous copies of 16 bytes
// (async_copies.cuh), tensor cores (products.cuh), and a predicated load.
//
// A lane loads 16 bytes of weights into its registers, or leaves them as they are, by one predicated instruction. A
// branch around the load would split the loads of a step, and fewer would be in flight together.
#include "async_copies.cuh"
#include "products.cuh"

// As `stream` (not allocated in L1); with `there` false the words keep their values.
__device__ inline void ask16(Words& into, const void* at, bool there) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(into.word[0]), "+r"(into.word[1]), "+r"(into.word[2]), "+r"(into.word[3])
        : "l"(at), "r"(unsigned(there)));
}
