// A CUDA kernel on the host: every thread of a block is a coroutine, and runs until it meets a barrier.
//
// Blocks run one after another (those of a cluster together), and of a block one warp as far as it comes before the
// next: what no barrier keeps apart is as far apart as can be. Copies to shared memory arrive when they are waited for
// and not before, or at once: a kernel may count on neither. The inputs arrive when all threads wait for them. Shared
// memory begins as NaN. What a warp does together is done when all its lanes are there.
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace host {
struct Index {
    unsigned x, y, z;
};
struct Meeting {
    unsigned came = 0;
    unsigned long turn = 0;
};
// A list that grows; the standard one would take most of the time in which a kernel compiles.
template <class T> struct List {
    T* items = nullptr;
    size_t count = 0, room = 0;

    T* more(size_t many) {
        if (count + many > room) items = static_cast<T*>(realloc(items, (room = 2 * room + many + 8) * sizeof(T)));
        return items + (count += many) - many;
    }
    void push(const T& one) { *more(1) = one; }
    void drop(size_t first) { memmove(items, items + first, (count -= first) * sizeof(T)); }
};
struct Copied {
    unsigned char* to;
    const void* from;
    unsigned bytes, zeros;
    unsigned long group;  // of the thread's, or the address of a barrier
};
// A barrier in shared memory: all arrivals and the bytes that it expects complete a phase.
struct Gate {
    unsigned at, parity;
    int arrivals;
    long bytes;
    int all;
};
// What the tensor cores multiply for a warpgroup: operands in shared memory, and the sums of a thread. A left operand in
// registers is that of the thread's four lanes, and its right operand is turned.
struct Product {
    float* sums;
    unsigned count;
    unsigned long long a, b;
    bool add, held;
    unsigned long group;
    unsigned words[4][4];
};
struct Block;
using Spot = void* [5];  // what the compiler's own jumps need; the library's keep much that nobody changes
struct Thread {
    ucontext_t context;  // to begin in: from then on jumps switch, which ask nothing of the system or its library
    Spot spot;
    Block* block;
    Index index;
    bool begun, done;
    unsigned long groups, cluster_turn, product_groups;
    List<Copied> asked;
    List<Product> products;
};
constexpr unsigned LANES = 32, MOST_THREADS = 1024, MOST_BLOCKS = 8;
constexpr unsigned STACK = (1 << 17) + 17 * 64;  // a power of two would give all stacks the same sets of the cache
constexpr unsigned MOST_SHARED = 232448, GUARD = 1024, MOST_FIXED = 48 << 10, ROOM = MOST_SHARED + GUARD + MOST_FIXED;
struct Block {
    unsigned char* room;  // what a launch asks for, what nobody may touch, and what the kernel's text names
    Index index;
    Meeting all, warps[MOST_THREADS / LANES], four_warps[MOST_THREADS / LANES / 4], some[16];
    List<Gate> gates;
    List<Copied> coming;
    Thread threads[MOST_THREADS];
};
struct Input {
    unsigned char* at;
    long bytes;
};
struct Launch {
    void (*entry)();
    const unsigned* grid;
    unsigned threads, shared, cluster;
    int backwards;
    const Input* inputs;
    unsigned input_count;
};
Block* blocks;
unsigned char* stacks;
Thread* current;
jmp_buf broken;
Spot home;
Launch launch;
Index grid, block_size;
Meeting cluster, started;
List<unsigned char> kept;
unsigned long progress;  // arrivals at meetings, phases of barriers, and ends
const char* fault;

[[noreturn]] inline void wrong(const char* what) {
    fault = what;
    _longjmp(broken, 1);
}
[[noreturn]] __attribute__((noinline)) void jump(Spot& spot) { __builtin_longjmp(spot, 1); }
__attribute__((noinline)) void leave() {
    if (!__builtin_setjmp(current->spot)) jump(home);
}
// Coroutines outlive a launch: making one asks the system for its signal mask.
inline void body() {
    for (;;) {
        launch.entry();
        if (current->asked.count) wrong("a thread ends and its copies are on their way");
        if (current->products.count) wrong("a thread ends and its products are on their way");
        current->done = true, ++progress;
        leave();
    }
}
__attribute__((noinline)) void go_on(Thread& thread) {
    current = &thread;
    if (__builtin_setjmp(home)) return;
    if (thread.begun) jump(thread.spot);
    thread.begun = true;
    setcontext(&thread.context);
}
inline void arrive(Meeting& meeting, unsigned all) {
    ++progress;
    if (++meeting.came == all) meeting.came = 0, ++meeting.turn;
}
inline void meet(Meeting& meeting, unsigned all) {
    const unsigned long turn = meeting.turn;
    arrive(meeting, all);
    while (meeting.turn == turn) leave();
}
inline unsigned warp() { return current->index.x / LANES; }
inline unsigned lane() { return current->index.x % LANES; }
inline void meet_warp() { meet(current->block->warps[warp()], LANES); }
inline void meet_block() { meet(current->block->all, launch.threads); }

// What all lanes of a warp have brought; `use` reads that of any lane. Who brings again writes to the other half: the
// next time but one comes after a meeting at which all have read.
template <class T, class F> auto together(const T& mine, F use) {
    static T brought[MOST_BLOCKS][MOST_THREADS / LANES][2][LANES];
    Meeting& meeting = current->block->warps[warp()];
    T* here = brought[current->block - blocks][warp()][meeting.turn % 2];
    here[lane()] = mine;
    meet(meeting, LANES);
    return use(here);
}

// Shared memory: addresses are those of the block's room.
inline unsigned char* dynamic() { return current->block->room; }
inline unsigned reserved;
inline unsigned reserve(unsigned bytes) {
    const unsigned at = reserved;
    if ((reserved += (bytes + 15) / 16 * 16) > MOST_FIXED) abort();
    return MOST_SHARED + GUARD + at;
}
template <class T, int ID> const unsigned PLACE = reserve(sizeof(T));
template <class T, int ID> T& fixed() { return *reinterpret_cast<T*>(current->block->room + PLACE<T, ID>); }
inline unsigned address_of(const void* at) {
    const long offset = static_cast<const unsigned char*>(at) - current->block->room;
    if (offset < 0 || offset >= long(ROOM)) wrong("an address is not one of the block's shared memory");
    return unsigned(offset);
}
inline unsigned char* shared_at(unsigned address, unsigned bytes, unsigned align) {
    if (address % align || address + bytes > launch.shared) wrong("a copy or a barrier misses shared memory");
    return current->block->room + address;
}

// Copies and their barriers. Those that land at once overwrite what another lane has not read yet.
inline void land(const Copied& one) {
    memcpy(one.to, one.from, one.bytes);
    memset(one.to + one.bytes, 0, one.zeros);
}
inline void ask(List<Copied>& list, const Copied& one) {
    if (reinterpret_cast<uintptr_t>(one.from) % 16 && one.bytes) wrong("a copy reads from no multiple of 16 bytes");
    launch.backwards ? land(one) : list.push(one);
}
inline void await_groups(unsigned pending) {
    List<Copied>& asked = current->asked;
    size_t landed = 0;
    for (; landed < asked.count && asked.items[landed].group + pending < current->groups; ++landed)
        land(asked.items[landed]);
    asked.drop(landed);
}
inline Gate& gate_in(Block& block, unsigned address) {
    List<Gate>& gates = block.gates;
    for (size_t i = 0; i < gates.count; ++i)
        if (gates.items[i].at == address) return gates.items[i];
    wrong("a barrier is used that nobody has made");
}
inline Gate& gate_at(unsigned address) { return gate_in(*current->block, address); }
inline void settle(Gate& gate) {
    if (gate.arrivals < 0) wrong("more threads arrive at a barrier than it was made for");
    if (gate.arrivals == 0 && gate.bytes == 0) gate.parity ^= 1, gate.arrivals = gate.all, ++progress;
}
inline bool passed(unsigned address, unsigned parity) {
    Gate& gate = gate_at(address);
    List<Copied>& coming = current->block->coming;
    size_t others = 0;
    for (size_t i = 0; i < coming.count; ++i) {
        const Copied one = coming.items[i];
        if (one.group != address)
            coming.items[others++] = one;
        else
            land(one), gate.bytes -= one.bytes + one.zeros;
    }
    coming.count = others;
    settle(gate);
    if (gate.parity != parity) return true;
    leave();
    return false;
}

// The grid, in groups of the blocks of a cluster.
inline void hold_inputs_back() {
    kept.count = 0;
    for (unsigned i = 0; i < launch.input_count; ++i) {
        const Input& input = launch.inputs[i];
        memcpy(kept.more(input.bytes), input.at, input.bytes);
        memset(input.at, 0xff, input.bytes);
    }
}
inline void bring_inputs() {
    const unsigned char* from = kept.items;
    for (unsigned i = 0; i < launch.input_count && kept.count; from += launch.inputs[i++].bytes)
        memcpy(launch.inputs[i].at, from, launch.inputs[i].bytes);
    kept.count = 0;
}
inline void begin(Block& block, Index index) {
    block.index = index, block.all = {}, block.gates.count = block.coming.count = 0;
    for (Meeting& meeting : block.some) meeting = {};
    for (Meeting& meeting : block.four_warps) meeting = {};
    memset(block.room, 0xff, launch.shared + GUARD);
    memset(block.room + MOST_SHARED + GUARD, 0xff, reserved);
    for (unsigned t = 0; t < launch.threads; ++t) {
        Thread& thread = block.threads[t];
        if (!thread.done) thread.begun = false;  // a launch that failed left it where it was
        thread.block = &block, thread.index = {t, 0, 0}, thread.done = false;
        thread.groups = thread.product_groups = 0, thread.asked.count = thread.products.count = 0, block.warps[t / LANES] = {};
        if (thread.begun) continue;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = stacks + (size_t(&block - blocks) * MOST_THREADS + t) * STACK;
        thread.context.uc_stack.ss_size = STACK;
        makecontext(&thread.context, body, 0);
    }
}
inline void run_warp(Block& block, unsigned warp) {
    for (unsigned long before = progress - 1; before != progress;) {
        before = progress;
        for (unsigned l = 0; l < LANES; ++l) {
            Thread& thread = block.threads[warp * LANES + (launch.backwards ? LANES - 1 - l : l)];
            if (!thread.done) go_on(thread);
        }
    }
}
inline void run_group(Index first) {
    const unsigned warps = launch.threads / LANES;
    cluster = {}, started = {};
    for (unsigned b = 0; b < launch.cluster; ++b) begin(blocks[b], {first.x + b, first.y, first.z});
    hold_inputs_back();
    for (unsigned long before = progress - 1; before != progress;) {
        before = progress;
        for (unsigned i = 0; i < launch.cluster * warps; ++i) {
            const unsigned at = launch.backwards ? launch.cluster * warps - 1 - i : i;
            run_warp(blocks[at / warps], at % warps);
        }
    }
    bring_inputs();
    for (unsigned b = 0; b < launch.cluster; ++b) {
        for (unsigned t = 0; t < launch.threads; ++t)
            if (!blocks[b].threads[t].done) wrong("threads wait for others that never come");
        for (unsigned i = 0; i < GUARD; ++i)
            if (blocks[b].room[launch.shared + i] != 0xff) wrong("written behind shared memory");
        if (blocks[b].coming.count) wrong("a block ends and its copies are on their way");
    }
}
inline void lost(int) { wrong("read or written where nothing is, or 16 bytes at no multiple of 16"); }

// What went wrong, or null. Memory that is not there ends the launch, not the process.
inline const char* run(const Launch& what) {
    static unsigned char aside[1 << 16];
    launch = what, fault = nullptr;
    grid = {what.grid[0], what.grid[1], what.grid[2]}, block_size = {what.threads, 1, 1};
    if (!blocks) {
        const auto map = [](size_t bytes) {
            return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        };
        blocks = static_cast<Block*>(map(MOST_BLOCKS * sizeof(Block)));
        stacks = static_cast<unsigned char*>(map(size_t(MOST_BLOCKS) * MOST_THREADS * STACK));
        for (unsigned b = 0; b < MOST_BLOCKS; ++b) blocks[b].room = static_cast<unsigned char*>(map(ROOM));
    }
    struct sigaction mine = {}, segment, bus;
    stack_t ours = {}, theirs;
    ours.ss_sp = aside, ours.ss_size = sizeof(aside);
    mine.sa_handler = lost, mine.sa_flags = SA_ONSTACK | SA_NODEFER;
    sigaltstack(&ours, &theirs), sigaction(SIGSEGV, &mine, &segment), sigaction(SIGBUS, &mine, &bus);
    if (!_setjmp(broken)) {
        const unsigned groups = grid.x / launch.cluster * grid.y * grid.z;
        for (unsigned i = 0; i < groups; ++i) {
            const unsigned at = launch.backwards ? groups - 1 - i : i, wide = grid.x / launch.cluster;
            run_group({at % wide * launch.cluster, at / wide % grid.y, at / wide / grid.y});
        }
    } else {
        bring_inputs();
    }
    sigaction(SIGBUS, &bus, nullptr), sigaction(SIGSEGV, &segment, nullptr), sigaltstack(&theirs, nullptr);
    return fault;
}
}  // namespace host
