// Copies of boxes of a matrix to shared memory (`cp.async.bulk.tensor` by the TMA unit, compute capability 9.0).
//
//   tensor map     made by the host: where a matrix of 16-bit elements lies, its rows and columns, and the rows of a box
//   box            64 columns (128 bytes) of these rows from (column, row) on: 8 rows are 1024 bytes, word w of row r at
//                  word w ^ (r % 8), as wgmma.cuh reads them. What lies outside the matrix arrives as zeros.
//   to_cluster     the same box for several blocks of a cluster, at the same place of each one's shared memory: it is
//                  read from L2 once. It counts at the barrier of each.
//
//     producer   wait(empty) expect(full) load load ...|       a stage is filled again when the consumers of all blocks
//     consumers        wait(full) multiply ... release |       that a copy into it goes to have released it
//
// One thread copies for the whole block, without registers and without addresses of elements. A barrier with n arrivals
// counts those of n threads, of any block of the cluster.
#include "copies.cuh"

__device__ inline void make_barrier(Barrier* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// At the barrier that lies in block `rank` where `mine` lies in this one.
__device__ inline void arrive_in(unsigned rank, Barrier* mine) {
    asm volatile(
        "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(mine)),
        "r"(rank)
        : "memory");
}
// Of all threads of all blocks; orders no memory accesses but those to barriers that `barriers_made` has made known.
__device__ inline void cluster_meets() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
// L2 policy evict_last: what all blocks read again and again stays.
__device__ inline unsigned long long read_often() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline unsigned long long read_again() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// Before the first copy: its own loads of the map take longer than those of the data.
__device__ inline void announce(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void load_box(
    void* to, const TensorMap* map, int column, int row, Barrier* barrier, unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
        "%3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
// For the blocks of the cluster whose bits are set in `blocks`.
__device__ inline void load_box_to_cluster(
    void* to, const TensorMap* map, int column, int row, Barrier* barrier, unsigned long long policy,
    unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
        "hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks), "l"(policy)
        : "memory");
}

// A stage of the ring, and the parity of its turn.
template <int STAGES> struct Place {
    int stage = 0;
    unsigned parity = 0;

    __device__ int before() const { return stage == 0 ? STAGES - 1 : stage - 1; }
    __device__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
