// A CUDA kernel on the host: every thread of a block is a coroutine, and runs until it meets a barrier.
//
// Blocks run one after another, and of a block one warp as far as it comes before the next: what no barrier keeps apart
// is as far apart as can be. Copies to shared memory arrive when they are waited for and not before; shared memory
// begins as NaN. What a warp does together (shuffles, tensor cores) is done when all its lanes are there.
#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

namespace host {
struct Index {
    unsigned x;
};
struct Meeting {
    int came = 0;
    unsigned long turn = 0;
};
struct Copied {
    unsigned char* to;
    const void* from;
    bool there;
};
struct Thread {
    ucontext_t context;  // to begin in: from then on jumps switch, which ask nothing of the system
    jmp_buf spot;
    Index index;
    bool begun = false, done = false;
    std::vector<std::vector<Copied>> groups;
    std::vector<Copied> asked;
    std::vector<unsigned char> stack = std::vector<unsigned char>(1 << 17);
};
constexpr int LANES = 32, MOST_SHARED = 232448;
alignas(128) unsigned char shared[MOST_SHARED];
std::vector<Thread> threads;
std::vector<Meeting> warps;
Meeting block;
Thread* current;
jmp_buf home;
Index block_index, grid;
unsigned long progress;  // arrivals at meetings, and ends

inline void leave() {
    if (!_setjmp(current->spot)) _longjmp(home, 1);
}
inline void end() {
    current->done = true, ++progress;
    _longjmp(home, 1);
}
inline void go_on(Thread& thread) {
    current = &thread;
    if (_setjmp(home)) return;
    if (thread.begun) _longjmp(thread.spot, 1);
    thread.begun = true;
    setcontext(&thread.context);
}
inline void meet(Meeting& meeting, int all) {
    const unsigned long turn = meeting.turn;
    ++progress;
    if (++meeting.came == all) meeting.came = 0, ++meeting.turn;
    while (meeting.turn == turn) leave();
}
inline int warp() { return current->index.x / LANES; }
inline int lane() { return current->index.x % LANES; }
inline void meet_warp() { meet(warps[warp()], LANES); }

// What all lanes of a warp have brought; `use` reads that of any lane.
template <class T, class F> auto together(const T& mine, F use) {
    static T brought[64][LANES];
    brought[warp()][lane()] = mine;
    meet_warp();
    const auto result = use(brought[warp()]);
    meet_warp();
    return result;
}
inline void run_warp(unsigned warp, bool backwards) {
    for (unsigned long before = progress - 1; before != progress;) {
        before = progress;
        for (int l = 0; l < LANES; ++l) {
            Thread& thread = threads[warp * LANES + (backwards ? LANES - 1 - l : l)];
            if (!thread.done) go_on(thread);
        }
    }
}
inline void run(void (*entry)(), unsigned blocks, unsigned size, bool backwards) {
    grid = {blocks};
    if (threads.size() != size) threads = std::vector<Thread>(size);
    for (unsigned b = 0; b < blocks; ++b) {
        block_index = {b}, block = {}, warps.assign(size / LANES, {});
        std::memset(shared, 0xff, sizeof(shared));
        for (unsigned t = 0; t < size; ++t) {
            Thread& thread = threads[t];
            thread.index = {t}, thread.begun = thread.done = false, thread.groups.clear(), thread.asked.clear();
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.data(), thread.context.uc_stack.ss_size = thread.stack.size();
            makecontext(&thread.context, entry, 0);
        }
        for (unsigned long before = progress - 1; before != progress;) {
            before = progress;
            for (unsigned w = 0; w < size / LANES; ++w) run_warp(backwards ? size / LANES - 1 - w : w, backwards);
        }
    }
}
}  // namespace host

#define threadIdx (host::current->index)
#define blockIdx host::block_index
#define gridDim host::grid

struct alignas(16) float4 {
    float x, y, z, w;
};
inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
inline float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float rsqrtf(float v) { return 1.0f / __builtin_sqrtf(v); }
inline float __expf(float v) { return __builtin_expf(v); }
inline void __syncthreads() { host::meet(host::block, int(host::threads.size())); }
inline void __syncwarp() { host::meet_warp(); }
inline void __threadfence() {}
template <class T> T __shfl_sync(unsigned, T v, int from) {
    return host::together(v, [&](const T* all) { return all[from]; });
}
template <class T> T __shfl_xor_sync(unsigned, T v, int step) { return __shfl_sync(0, v, host::lane() ^ step); }
template <class T> T atomicMax(T* at, T v) {
    const T old = *at;
    *at = v > old ? v : old;
    return old;
}
template <class T> T atomicAdd(T* at, T v) {
    const T old = *at;
    *at = old + v;
    return old;
}
template <class T> T atomicExch(T* at, T v) {
    const T old = *at;
    *at = v;
    return old;
}
