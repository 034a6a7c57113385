// Bulk copies from global to shared memory (`cp.async.bulk` by
// the TMA unit, compute capability 9.0), completed on mbarriers.
//
//     one lane    expect(b, bytes)  copy(..., b)  copy(..., b)       a phase of barrier b completes when the copying
//     all lanes   wait_for(b, parity) ..................... read     thread has arrived and all its bytes have
//
// One instruction moves a whole row or run of cache slots: it passes through no registers, so shared
// memory and not the register file bounds the bytes in flight, and the lanes that wait spend no issue
// slots on loads. A barrier counts one arrival (the copying thread's own, made by `expect`) and the
// bytes announced with it; its phase parity flips each time, so a waiter keeps one parity bit per
// barrier. Addresses and sizes are multiples of 16 bytes. Copies write through the async proxy:
// fences order the barriers' initialisation, and reads of a stage that is refilled, before them.
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
// L2 policy evict_first: what is read once per step is evicted before what is read again.
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
// One barrier for each of the PLACES stages of a warp's ring; bit i of `parities` is the phase awaited next at stage i.
template <int PLACES> struct Arrivals {
    Barrier* full;
    unsigned parities = 0;

    // Called by one lane of the warp, before any other use.
    __device__ void make() {
        for (int place = 0; place < PLACES; ++place) make_barrier(full + place);
        barriers_made();
    }
    // Until the copies into stage `place` have arrived.
    __device__ void wait(int place) {
        wait_for(full + place, parities >> place & 1);
        parities ^= 1u << place;
    }
};
// Before a copy into shared memory that this warp has read: orders those reads before writes by the async proxy.
__device__ inline void reads_done() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
