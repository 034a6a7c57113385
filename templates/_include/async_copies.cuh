// Asynchronous copies of 16 bytes per lane from global to shared memory (`cp.async`, compute capability 8.0).
//
//     lane   copy16 copy16 copies_asked | copy16 copy16 copies_asked | ... copies_there<n> | read its own words
//            `------- group 0 --------'   `------- group 1 --------'      until at most n groups are pending
//
// They pass through neither registers nor L1 (`.cg` caches in L2 alone), so the bytes in flight are bounded by shared
// memory and not by registers, and the thread goes on. Groups complete in the order in which they were committed. A
// lane sees its own copies after the wait without a barrier; other lanes need one.
#include "device.cuh"

// With `there` false nothing is read and zeros are written (a source size of 0): tails need no branch.
__device__ inline void copy16(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copy16(Words* to, const void* from, bool there) { copy16(shared_address(to), from, there); }
// Commits the copies since the last call as one group, empty or not.
__device__ inline void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of this thread's groups are in flight.
template <int PENDING> __device__ inline void copies_there() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
