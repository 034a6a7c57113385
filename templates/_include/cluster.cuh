// Thread block clusters (compute capability 9.0): a barrier over their blocks, and reading another block's shared memory.
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
