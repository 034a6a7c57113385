// Thread block clusters and distributed shared memory (compute capability 9.0).
//
// Blocks of a cluster run at the same time on one group of multiprocessors (GPC) and may read each other's shared
// memory: `read_from(mine, rank)` reads the float that lies in block `rank` where `mine` lies in this one (mapa
// translates the address). So blocks exchange partial results without a way through memory, a counter in memory or a
// second kernel. The barrier is over all threads of all blocks: arrive releases this thread's stores, wait acquires
// those of the others. A block must not end while another may still read its shared memory. Include device.cuh before.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline float read_from(const float* mine, unsigned rank) {
    float v;
    asm volatile(
        "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\tld.shared::cluster.f32 %0, [there];\n\t}"
        : "=f"(v)
        : "r"(shared_address(mine)), "r"(rank)
        : "memory");
    return v;
}
