// Runs lists of kernel launches on a pool of pinned threads. Built once per toolchain, loaded with ctypes; `draw.h`,
// `products.h` and `ranks.h` stand before it.
//
// A launch is a function address and an array of pointers; it is called once for every rank, and a barrier follows. A
// rank is no thread: a thread holds one while it runs its unit of a launch, and lets it go where it has to wait for long or
// gives up its core. Whoever runs then goes on with it, so that on a busy machine a launch waits for a thread without a
// core only if that lost it in the middle of a unit. On a quiet one every thread keeps the rank of its own number, whose
// rows its cache has. The caller's thread is number 0, so a pool of one thread starts none. Workers spin between the
// launches of a job and for a short while after it, then sleep on a futex.
#include <climits>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#endif

namespace {

// A rank that still waits after this many pauses (2.6 us, Zen 4) is let go, for whichever thread runs when it may go on.
constexpr int GLANCE = 100;
// A thread that finds nothing to do for this long sleeps: the rank that all wait for has lost its core. To yield
// again and again was slower: beside two neighbours 20 ms instead of 16 for tokens that take 7 (Zen 4, Linux 6.18).
constexpr int64_t PATIENCE_NS = 50'000, NAP_NS = 50'000;
// Timing waits this long for all threads to be awake.
constexpr int64_t GATHER_NS = 200'000;
// Workers stay awake this long after a job, so that a host loop of 100 us a step keeps them spinning.
constexpr int64_t IDLE_SPIN_NS = 200'000;

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

using Kernel = void (*)(const void* args, int rank, int size);

}  // namespace

extern "C" {

// Mirrors of native.py; a change here raises AC_ABI.
constexpr int64_t AC_ABI = 7;

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
        bool pinned = threads() > 1 && pin_self(before);
        work_ = work;
        awake_.store(1, std::memory_order_relaxed);
        left_.store(size_, std::memory_order_relaxed);
        if (work.job != Job::time) release_ranks();
        job_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(&job_);
        if (work.job == Job::time) {
            const int64_t deadline = now_ns() + GATHER_NS;
            while (awake_.load() < threads() && now_ns() < deadline) pause_cpu();
            release_ranks();
        }
        help(0);
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
    int threads() const { return std::min(size_, cpu_count_); }

    bool pin_self(cpu_set_t& before) {
        if (pthread_getaffinity_np(pthread_self(), sizeof before, &before) != 0) return false;
        if (CPU_COUNT(&before) == 1) return false;  // the caller chose its core
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpus_[0], &one);
        return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
    }

    int start() {
        if (started_ || broken_) return broken_;
        barrier_.reset(size_);
        for (int r = 0; r < size_; ++r) {
            claims_[r].state.store(Claim::done, std::memory_order_relaxed);
            ranks_[r].epoch.store(0, std::memory_order_relaxed);
        }
        left_.store(0);
        job_.store(0);
        sleepers_.store(0);
        quit_ = false;
        for (int self = 1; self < threads(); ++self) {
            starts_[self] = {this, self};
            pthread_attr_t attr;
            pthread_attr_init(&attr);
            pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpus_[self], &one);
            pthread_attr_setaffinity_np(&attr, sizeof one, &one);
            pthread_t id;
            int error = pthread_create(&id, &attr, &Pool::enter, &starts_[self]);
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
        int self;
    };
    static void* enter(void* start) {
        auto* s = static_cast<Start*>(start);
        s->pool->serve(s->self);
        return nullptr;
    }

    void serve(int self) {
        for (uint32_t seen = 0;;) {
            seen = wait_for_job(seen);
            if (quit_) return;
            awake_.fetch_add(1);
            help(self);
        }
    }

    uint32_t wait_for_job(uint32_t seen) {
        int64_t deadline = now_ns() + IDLE_SPIN_NS;
        for (int spins = 1; job_.load(std::memory_order_acquire) == seen; ++spins) {
            pause_cpu();
            if (spins % 64 != 0 || now_ns() < deadline) continue;
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            while (job_.load(std::memory_order_seq_cst) == seen) futex_wait(&job_, seen);
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
        return job_.load(std::memory_order_acquire);
    }

    void release_ranks() {
        for (int r = 0; r < size_; ++r) {
            Rank& rank = ranks_[r];
            rank.stage.store(barrier_.stages(), std::memory_order_relaxed);
            rank.call = -1;
            rank.pass = rank.sample = 0;
            claims_[r].state.store(Claim::free, std::memory_order_release);
        }
    }

    // Until the job is done: runs whichever rank can go on and nobody holds, by preference its own.
    void help(int self) {
        Turn turn;
        int64_t deadline = 0;
        for (int looks = 0; left_.load(std::memory_order_acquire) > 0; ++looks) {
            const int rank = take(self, looks % 16 == 0 ? size_ : 1);
            if (rank < 0) {
                pause_cpu();
                if (looks % 64 != 63) continue;
                const int64_t now = now_ns();
                if (deadline == 0) deadline = now + PATIENCE_NS;
                if (now < deadline) continue;
                const timespec nap{0, NAP_NS};
                nanosleep(&nap, nullptr);
                turn.begin();
                continue;
            }
            const Outcome outcome = move(ranks_[rank], rank, turn);
            claims_[rank].state.store(outcome == Outcome::done ? Claim::done : Claim::free, std::memory_order_release);
            if (outcome == Outcome::done) left_.fetch_sub(1, std::memory_order_acq_rel);
            if (outcome == Outcome::tired) {
                sched_yield();
                turn.begin();
            }
            looks = -1;
            deadline = 0;
        }
    }

    // Claims one of `count` ranks, from `first` on, that can go on; -1 when there is none.
    int take(int first, int count) {
        for (int i = 0; i < count; ++i) {
            const int rank = first + i < size_ ? first + i : first + i - size_;
            int seen = claims_[rank].state.load(std::memory_order_relaxed);
            if (seen != Claim::free || !ready(ranks_[rank], rank)) continue;
            if (claims_[rank].state.compare_exchange_strong(seen, Claim::held, std::memory_order_acquire)) return rank;
        }
        return -1;
    }

    bool ready(const Rank& r, int rank) const {
        const int stage = r.stage.load(std::memory_order_relaxed);
        return stage >= barrier_.stages() || barrier_.told(stage, rank, r.epoch.load(std::memory_order_relaxed));
    }

    enum class Outcome { done, waits, tired };

    // Runs a rank that this thread holds until it is through the job, has to wait, or the thread's turn is over.
    Outcome move(Rank& r, int rank, Turn& turn) {
        const int stages = barrier_.stages();
        uint32_t epoch = r.epoch.load(std::memory_order_relaxed);
        int stage = r.stage.load(std::memory_order_relaxed);
        for (;;) {
            while (stage < stages) {
                if (!glance(stage, rank, epoch)) return Outcome::waits;
                r.stage.store(++stage, std::memory_order_relaxed);
                if (stage < stages) barrier_.tell(stage, rank, epoch);
            }
            if (!next(r, rank)) return Outcome::done;
            if (r.call < work_.count) work_.calls[r.call].kernel(work_.calls[r.call].args, rank, size_);
            else if (rank == 0) more_.store(advance(*work_.decode), std::memory_order_relaxed);
            r.epoch.store(++epoch, std::memory_order_relaxed);
            r.stage.store(stage = 0, std::memory_order_relaxed);
            if (stages) barrier_.tell(0, rank, epoch);
            if (turn.over()) return Outcome::tired;
        }
    }

    // Whether a barrier's stage opens soon. It does not where the rank that is to tell has no thread.
    bool glance(int stage, int rank, uint32_t epoch) const {
        const auto& teller = claims_[barrier_.teller(stage, rank)].state;
        for (int spins = 0; !barrier_.told(stage, rank, epoch); ++spins) {
            if (spins > 2 && (spins > GLANCE || teller.load(std::memory_order_relaxed) == Claim::free)) return false;
            pause_cpu();
        }
        return true;
    }

    // Sets the unit that follows a barrier; false when the job has none.
    bool next(Rank& r, int rank) {
        const Work& w = work_;
        const bool clocked = rank == 0 && w.spent_ns;
        if (clocked && r.call >= 0 && r.call < w.count) {
            const int64_t end = now_ns();
            w.spent_ns[r.call] += end - r.begin_ns;
            r.begin_ns = end;
        }
        const bool first = r.call < 0;
        if (!first && ++r.call < w.count) return true;
        if (!first && w.job == Job::decode) {
            if (r.call == w.count) return true;  // the draw
            if (!more_.load(std::memory_order_relaxed)) return false;
        } else if (!first && ++r.pass >= w.repeat) {
            if (w.job == Job::time && rank == 0) w.times_ns[r.sample] = now_ns() - r.begin_ns;
            if (++r.sample >= w.samples) return false;
            r.pass = 0;
        }
        r.call = 0;
        if (clocked || (w.job == Job::time && rank == 0 && r.pass == 0)) r.begin_ns = now_ns();
        return true;
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
    Claim claims_[MAX_THREADS];
    Rank ranks_[MAX_THREADS];
    alignas(128) std::atomic<uint32_t> job_{0};
    alignas(128) std::atomic<int> sleepers_{0};
    std::atomic<int> awake_{0};
    alignas(128) std::atomic<int> left_{0};
    std::atomic<bool> more_{false};
    Work work_;
    std::mutex busy_;
    Start starts_[MAX_THREADS];
    int cpus_[MAX_THREADS];
    int cpu_count_ = 0;
    int size_;
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
    std::call_once(once, [] { ask_for_tiles(), pthread_atfork(nullptr, nullptr, after_fork_in_child); });
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
