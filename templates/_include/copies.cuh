// Bulk copies from global to shared memory (compute capability 9.0), completed on a barrier in shared memory.
//
// Addresses and sizes are multiples of 16 bytes. A barrier counts one arrival, the copying thread's own, and its bytes.
#include "device.cuh"

using Barrier = unsigned long long;

__device__ inline void make_barrier(Barrier* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
// After the last `make_barrier` of a thread, before its first copy.
__device__ inline void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void expect(Barrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void wait_for(Barrier* barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}
// What is read once a step leaves the cache first.
__device__ inline unsigned long long read_once() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline void copy(void* to, const void* from, unsigned bytes, Barrier* barrier, unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
// The barriers of PLACES that a warp's copies come to again and again.
template <int PLACES> struct Arrivals {
    Barrier* full;
    unsigned parities = 0;

    // One lane of the warp, before any other use.
    __device__ void make() {
        for (int place = 0; place < PLACES; ++place) make_barrier(full + place);
        barriers_made();
    }
    // For what comes to a place next.
    __device__ void wait(int place) {
        wait_for(full + place, parities >> place & 1);
        parities ^= 1u << place;
    }
};
// Before a copy into shared memory that this warp has read.
__device__ inline void reads_done() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
