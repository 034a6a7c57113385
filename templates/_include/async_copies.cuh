// Copies of 16 bytes to shared memory that hold up no thread (compute capability 8.0).
#include "device.cuh"

// Where there is nothing, nothing is read and zeros are written.
__device__ inline void copy16(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copy16(Words* to, const void* from, bool there) { copy16(shared_address(to), from, there); }
// What was asked for since the last call is one group; groups arrive in turn. A thread sees its own without a barrier.
__device__ inline void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ inline void copies_there() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
