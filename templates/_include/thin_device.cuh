// What thin matrix products ask of the device: loads, copies to shared memory, and tensor cores.
#include "async_copies.cuh"
#include "products.cuh"

// As `stream`; where there is nothing, the words stay as they are: a branch would keep loads apart.
__device__ inline void ask16(Words& into, const void* at, bool there) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(into.word[0]), "+r"(into.word[1]), "+r"(into.word[2]), "+r"(into.word[3])
        : "l"(at), "r"(unsigned(there)));
}
