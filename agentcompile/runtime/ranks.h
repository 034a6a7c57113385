// What the executor's threads know of ranks: where each stands, who holds it, the barrier between them, and how long a
// thread has had its core; and what they may use of it. Stands after `products.h` and before `executor.cpp`.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Linux gives a process the data of AMX tiles when it asks (arch/x86/xstate.rst): threads that it starts then have them
// too. A kernel without AMX, or a processor, refuses: no template for tiles is legal there.
inline void ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    syscall(SYS_arch_prctl, request_permission, tile_data);
#endif
}

constexpr int MAX_THREADS = 256;
constexpr int MAX_STAGES = 8;  // a dissemination barrier over 256 threads has 8 stages

// A thread that has had its core for this long offers it to others between two units, where it holds up nobody, before
// the scheduler takes it within one: slices end at ticks, 4 ms apart at 250 Hz. Where nobody wants the core it costs 0.6 us.
constexpr int64_t TURN_NS = 3'000'000, LOOK_NS = 100'000;
// Two looks at the clock that are this far apart: the thread lost its core, and has it anew.
constexpr int64_t LOST_NS = 1'000'000;

inline void pause_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Two lines apart: adjacent-line prefetchers pull 128 bytes.
struct alignas(128) Flag {
    std::atomic<uint32_t> epoch{0};
};

// Dissemination barrier (Hensgen, Finkel, Manber 1988): in stage s rank r tells r + 2^s and waits for r - 2^s.
// Every flag has one writer and one reader; for two ranks it is one line each way.
class Barrier {
  public:
    void reset(int size) {
        size_ = size;
        for (stages_ = 0; 1 << stages_ < size; ++stages_) {}
        for (auto& stage : flags_)
            for (int r = 0; r < size; ++r) stage[r].epoch.store(0, std::memory_order_relaxed);
    }
    int stages() const { return stages_; }
    void tell(int stage, int rank, uint32_t epoch) {
        const int to = rank + (1 << stage);
        flags_[stage][to < size_ ? to : to - size_].epoch.store(epoch, std::memory_order_release);
    }
    // The counter wraps after 2^32 barriers; the signed difference does not mind.
    bool told(int stage, int rank, uint32_t epoch) const {
        return int32_t(flags_[stage][rank].epoch.load(std::memory_order_acquire) - epoch) >= 0;
    }
    int teller(int stage, int rank) const {
        const int from = rank - (1 << stage);
        return from < 0 ? from + size_ : from;
    }

  private:
    Flag flags_[MAX_STAGES][MAX_THREADS];
    int size_ = 1;
    int stages_ = 0;
};

// Whether somebody holds a rank. In a line of its own: others look at it while the holder writes to `Rank`.
struct alignas(128) Claim {
    enum : int { free, held, done };
    std::atomic<int> state{done};
};

// Where a rank stands in a job: the unit that it runs next, or the barrier after it. Only its holder writes.
struct alignas(128) Rank {
    std::atomic<uint32_t> epoch{0};
    std::atomic<int> stage{0};  // of the barrier `epoch` that it waits at; Barrier::stages(): it is through
    int64_t call = -1, pass = 0, sample = 0;
    int64_t begin_ns = 0;
};

// How long a thread has had its core. The clock is looked at some 10,000 times a second, however long a unit takes.
class Turn {
  public:
    Turn() { begin(); }
    void begin() {
        since_ = last_ = now_ns();
        left_ = units_ = 1;
    }
    // To be asked after every unit.
    bool over() {
        if (--left_ > 0) return false;
        const int64_t now = now_ns(), unit = (now - last_) / units_ + 1;
        if (now - last_ > LOST_NS) since_ = now;
        last_ = now;
        left_ = units_ = int(std::min<int64_t>(64, LOOK_NS / unit + 1));
        return now - since_ > TURN_NS;
    }

  private:
    int64_t since_, last_;
    int left_, units_;
};

}  // namespace
