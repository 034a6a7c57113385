// Runs lists of kernel launches on a pool of pinned threads. Built once per toolchain, loaded with ctypes; `draw.h` and
// `products.h` stand before it.
//
// A launch is a function address and an array of pointers; every thread calls it with its rank, and a barrier
// follows. The caller's thread is rank 0, so a pool of one thread starts none. Workers spin between the launches of a job
// and for a short while after it, then sleep on a futex: a busy decode loop never pays a wake-up, an idle process no power.
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <ctime>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef __linux__
#include <linux/futex.h>
#endif

namespace {

constexpr int MAX_THREADS = 256;
constexpr int MAX_STAGES = 8;  // a dissemination barrier over 256 threads has 8 stages
// A barrier that has not opened after this many pauses (some 100 us) means that a thread lost its core: let it run.
constexpr int SPINS_BEFORE_YIELD = 4000;
// Workers stay awake this long after a job, so that a host loop of 100 us a step keeps them spinning.
constexpr int64_t IDLE_SPIN_NS = 200'000;

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

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Two lines apart: adjacent-line prefetchers pull 128 bytes.
struct alignas(128) Flag {
    std::atomic<uint32_t> epoch{0};
};

// Dissemination barrier (Hensgen, Finkel, Manber 1988): in stage s thread r tells r + 2^s and waits for r - 2^s.
// Every flag has one writer and one reader; for two threads it is one line each way.
class Barrier {
  public:
    void reset(int size, bool crowded) {
        size_ = size;
        spins_ = crowded ? 16 : SPINS_BEFORE_YIELD;
        for (auto& stage : flags_)
            for (int r = 0; r < size; ++r) stage[r].epoch.store(0, std::memory_order_relaxed);
    }
    void wait(int rank, uint32_t& epoch) {
        ++epoch;
        for (int stage = 0, step = 1; step < size_; ++stage, step *= 2) {
            int to = rank + step < size_ ? rank + step : rank + step - size_;
            flags_[stage][to].epoch.store(epoch, std::memory_order_release);
            auto& mine = flags_[stage][rank].epoch;
            // The counter wraps after 2^32 barriers; the signed difference does not mind.
            for (int spins = 0; int32_t(mine.load(std::memory_order_acquire) - epoch) < 0;) {
                pause_cpu();
                if (++spins >= spins_) sched_yield();
            }
        }
    }

  private:
    Flag flags_[MAX_STAGES][MAX_THREADS];
    int size_ = 1;
    int spins_ = SPINS_BEFORE_YIELD;
};

using Kernel = void (*)(const void* args, int rank, int size);

}  // namespace

extern "C" {

// Mirrors of native.py; a change here raises AC_ABI.
constexpr int64_t AC_ABI = 6;

struct ac_call {
    Kernel kernel;
    const void* args;  // an array of pointers, in the order of the launch's arguments
};

struct ac_decode {
    int64_t* ids;           // what the step reads
    const int64_t* token;   // what the step wrote; may be `ids`
    const ac_draw* draw;    // how a token is drawn from the step's logits; null: `token` is taken
    int64_t* position;      // of the token that the step reads; advanced here
    const int64_t* stops;   // ids that end generation
    int64_t stop_count;
    int64_t context;        // slots of the KV cache: the step at position context - 1 is the last
    const int32_t* cancel;  // nonzero: stop after this step
    int64_t* out;           // room for `limit` tokens
    int64_t limit;
    int64_t made;           // result: steps made
    int64_t reason;         // result: 0 limit, 1 stop id, 2 context full, 3 cancelled
};
}

namespace {

enum class Job : int { run, time, decode };

struct Work {
    Job job = Job::run;
    const ac_call* calls = nullptr;
    int64_t count = 0;
    int64_t repeat = 0;
    int64_t samples = 0;
    int64_t* times_ns = nullptr;
    ac_decode* decode = nullptr;
    int64_t* spent_ns = nullptr;  // of every call, added up; null: nobody asks
};

class Pool {
  public:
    explicit Pool(int size) : size_(size) { read_cpus(); }

    // Locks: one job at a time; a second caller waits. Returns 0 or an errno.
    int submit(const Work& work) {
        std::lock_guard<std::mutex> lock(busy_);
        if (int error = start()) return error;
        cpu_set_t before;
        bool pinned = size_ > 1 && pin_self(before);
        work_ = work;
        job_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(&job_);
        perform(0, epoch0_);
        if (pinned) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
        return 0;
    }

    // A fork has the memory and none of the threads.
    void forget_threads() {
        new (&busy_) std::mutex;
        started_ = false;
    }

  private:
    void read_cpus() {
        cpu_set_t set;
        CPU_ZERO(&set);
        sched_getaffinity(0, sizeof set, &set);
        for (int cpu = 0; cpu < CPU_SETSIZE && cpu_count_ < MAX_THREADS; ++cpu)
            if (CPU_ISSET(cpu, &set)) cpus_[cpu_count_++] = cpu;
    }
    bool crowded() const { return size_ > cpu_count_; }

    bool pin_self(cpu_set_t& before) {
        if (crowded() || pthread_getaffinity_np(pthread_self(), sizeof before, &before) != 0) return false;
        if (CPU_COUNT(&before) == 1) return false;  // the caller chose its core
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpus_[0], &one);
        return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
    }

    int start() {
        if (started_ || broken_) return broken_;
        barrier_.reset(size_, crowded());
        epoch0_ = 0;
        job_.store(0);
        sleepers_.store(0);
        quit_ = false;
        for (int rank = 1; rank < size_; ++rank) {
            starts_[rank] = {this, rank};
            pthread_attr_t attr;
            pthread_attr_init(&attr);
            pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpus_[rank % cpu_count_], &one);
            if (!crowded()) pthread_attr_setaffinity_np(&attr, sizeof one, &one);
            pthread_t id;
            int error = pthread_create(&id, &attr, &Pool::enter, &starts_[rank]);
            pthread_attr_destroy(&attr);
            if (error) {
                quit_ = true;  // those that were made leave now, and the pool stays unusable
                job_.fetch_add(1);
                futex_wake_all(&job_);
                return broken_ = error;
            }
        }
        started_ = true;
        return 0;
    }

    struct Start {
        Pool* pool;
        int rank;
    };
    static void* enter(void* start) {
        auto* s = static_cast<Start*>(start);
        s->pool->serve(s->rank);
        return nullptr;
    }

    void serve(int rank) {
        uint32_t epoch = 0;
        for (uint32_t seen = 0;; ++seen) {
            wait_for_job(seen);
            if (quit_) return;
            perform(rank, epoch);
        }
    }

    void wait_for_job(uint32_t seen) {
        int64_t deadline = now_ns() + (crowded() ? 0 : IDLE_SPIN_NS);
        for (int spins = 1; job_.load(std::memory_order_acquire) == seen; ++spins) {
            pause_cpu();
            if (spins % 64 != 0 || now_ns() < deadline) continue;
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            while (job_.load(std::memory_order_seq_cst) == seen) futex_wait(&job_, seen);
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
            return;
        }
    }

    void pass(const ac_call* calls, int64_t count, int rank, uint32_t& epoch) {
        for (int64_t i = 0; i < count; ++i) {
            calls[i].kernel(calls[i].args, rank, size_);
            barrier_.wait(rank, epoch);
        }
    }

    // Apart from `pass`, so that a step that nobody looks into pays nothing. A call's time ends with its barrier.
    void pass_clocked(const ac_call* calls, int64_t count, int rank, uint32_t& epoch, int64_t* spent_ns) {
        int64_t begin = rank == 0 ? now_ns() : 0;
        for (int64_t i = 0; i < count; ++i) {
            pass(calls + i, 1, rank, epoch);
            if (rank != 0) continue;
            int64_t end = now_ns();
            spent_ns[i] += end - begin;
            begin = end;
        }
    }

    void once(const Work& work, int rank, uint32_t& epoch) {
        if (work.spent_ns) return pass_clocked(work.calls, work.count, rank, epoch, work.spent_ns);
        pass(work.calls, work.count, rank, epoch);
    }

    // The last barrier of a job is the caller's licence to reuse work_, so no thread reads it after.
    void perform(int rank, uint32_t& epoch) {
        const Work work = work_;
        barrier_.wait(rank, epoch);  // all have read work_, and timing starts together
        if (work.job == Job::decode) return decode(work, rank, epoch);
        for (int64_t s = 0; s < work.samples; ++s) {
            int64_t begin = work.job == Job::time ? now_ns() : 0;
            for (int64_t r = 0; r < work.repeat; ++r) once(work, rank, epoch);
            if (work.job == Job::time && rank == 0) work.times_ns[s] = now_ns() - begin;
        }
        barrier_.wait(rank, epoch);
    }

    void decode(const Work& work, int rank, uint32_t& epoch) {
        ac_decode& d = *work.decode;
        for (bool go = d.limit > 0; go;) {
            once(work, rank, epoch);
            if (rank == 0) more_.store(advance(d), std::memory_order_relaxed);
            barrier_.wait(rank, epoch);
            go = more_.load(std::memory_order_relaxed);
        }
        barrier_.wait(rank, epoch);
    }

    static bool advance(ac_decode& d) {
        int64_t token = d.draw ? draw(*d.draw, *d.position) : *d.token;
        d.out[d.made++] = token;
        *d.ids = token;
        ++*d.position;
        for (int64_t i = 0; i < d.stop_count; ++i)
            if (d.stops[i] == token) return d.reason = 1, false;
        if (*d.position >= d.context) return d.reason = 2, false;
        if (d.cancel && __atomic_load_n(d.cancel, __ATOMIC_RELAXED)) return d.reason = 3, false;
        return d.made < d.limit;
    }

    Barrier barrier_;
    alignas(128) std::atomic<uint32_t> job_{0};
    alignas(128) std::atomic<int> sleepers_{0};
    std::atomic<bool> more_{false};
    Work work_;
    std::mutex busy_;
    Start starts_[MAX_THREADS];
    int cpus_[MAX_THREADS];
    int cpu_count_ = 0;
    int size_;
    uint32_t epoch0_ = 0;
    int broken_ = 0;
    bool started_ = false;
    bool quit_ = false;
};

std::mutex& registry_lock() {
    static std::mutex* lock = new std::mutex;
    return *lock;
}

// Pools live as long as the process: their threads sleep when idle, and none is joined at exit.
std::map<int, Pool*>& registry() {
    static auto* pools = new std::map<int, Pool*>;
    return *pools;
}

void after_fork_in_child() {
    new (&registry_lock()) std::mutex;
    for (auto& [size, pool] : registry()) pool->forget_threads();
}

}  // namespace

extern "C" {

int64_t ac_abi() { return AC_ABI; }

// The process's pool of `threads`; threads start at the first job. Null when `threads` is out of range or memory is out.
void* ac_pool(int threads) {
    if (threads < 1 || threads > MAX_THREADS) return nullptr;
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
    std::lock_guard<std::mutex> lock(registry_lock());
    auto& pool = registry()[threads];
    if (!pool) pool = new (std::nothrow) Pool(threads);
    return pool;
}

int ac_run(void* pool, const ac_call* calls, int64_t count, int64_t repeat, int64_t* spent_ns) {
    return static_cast<Pool*>(pool)->submit({Job::run, calls, count, repeat, 1, nullptr, nullptr, spent_ns});
}

int ac_time(void* pool, const ac_call* calls, int64_t count, int64_t repeat, int64_t samples, int64_t* times_ns) {
    return static_cast<Pool*>(pool)->submit({Job::time, calls, count, repeat, samples, times_ns, nullptr});
}

int ac_decode_steps(void* pool, const ac_call* calls, int64_t count, ac_decode* decode, int64_t* spent_ns) {
    decode->made = 0;
    decode->reason = 0;
    if (*decode->position >= decode->context) return decode->reason = 2, 0;
    return static_cast<Pool*>(pool)->submit({Job::decode, calls, count, 1, 1, nullptr, decode, spent_ns});
}
}
