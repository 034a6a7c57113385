// What a kernel's text takes for granted: CUDA's own names, and the instructions that it asks for by name.
//
// Fragments of tensor cores lie as the PTX manual draws them for m16n8k16; sums are of doubles, rounded once.
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __CUDA_ARCH__ 900
#define threadIdx (host::current->index)
#define blockIdx (host::current->block->index)
#define blockDim host::block_size
#define gridDim host::grid

extern "C" {
float fmaf(float, float, float);
float fmaxf(float, float);
float exp2f(float);
float expf(float);
float sqrtf(float);
float rintf(float);
double log(double);
}

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct ulonglong2 {
    unsigned long long x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
inline float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
inline float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __expf(float v) { return expf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline unsigned __float2uint_rz(float v) { return v > 0 ? unsigned(v) : 0; }
inline unsigned __float2uint_rn(float v) { return __float2uint_rz(rintf(v)); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)(a) * b >> 64;
}

inline void __syncthreads() { host::meet_block(); }
inline void __syncwarp() { host::meet_warp(); }
inline void __threadfence() {}
inline unsigned long __cvta_generic_to_shared(const void* at) { return host::address_of(at); }
template <class T> T __shfl_sync(unsigned, T v, int from) {
    return host::together(v, [&](const T* all) { return all[unsigned(from) % host::LANES]; });
}
template <class T> T __shfl_xor_sync(unsigned, T v, int step) { return __shfl_sync(0, v, host::lane() ^ step); }
template <class T> T __shfl_up_sync(unsigned, T v, int step) {
    return __shfl_sync(0, v, int(host::lane()) < step ? host::lane() : host::lane() - step);
}
template <class T, class F> T over_warp(T v, F join) {
    return host::together(v, [&](const T* all) {
        T found = all[0];
        for (unsigned l = 1; l < host::LANES; ++l) found = join(found, all[l]);
        return found;
    });
}
inline bool __any_sync(unsigned, bool v) {
    return over_warp(v, [](bool a, bool b) { return a || b; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    return over_warp(v, [](unsigned a, unsigned b) { return a < b ? b : a; });
}
inline unsigned __reduce_add_sync(unsigned, unsigned v) {
    return over_warp(v, [](unsigned a, unsigned b) { return a + b; });
}
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

// Instructions, outputs before inputs; emulated.py says which is which.
namespace ptx {
using Bits = unsigned short;
inline void nothing() {}
inline void meet_some(unsigned barrier, unsigned threads) { host::meet(host::current->block->some[barrier], threads); }
inline void inputs_there() {
    host::meet(host::started, host::launch.cluster * host::launch.threads);
    host::bring_inputs();
}

inline void add(unsigned& before, unsigned* at) { before = atomicAdd(at, 1u); }

inline float float_of_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
inline float float_of_half(unsigned bits) { return float(__builtin_bit_cast(_Float16, Bits(bits))); }
inline Bits bf16_of(float v) {
    const unsigned bits = __float_as_uint(v);
    return v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline Bits half_of(float v) { return v != v ? 0x7fff : __builtin_bit_cast(Bits, _Float16(v)); }
inline void from_half(float& to, Bits bits) { to = float_of_half(bits); }
inline void to_half(Bits& to, float v) { to = half_of(v); }
inline void to_bf16(Bits& to, float v) { to = bf16_of(v); }
inline void to_two_halves(unsigned& to, float upper, float lower) { to = half_of(lower) | half_of(upper) << 16; }
inline void to_two_bf16(unsigned& to, float upper, float lower) { to = bf16_of(lower) | bf16_of(upper) << 16; }
inline void power_of_two(float& to, float v) {
    to = exp2f(v);
    if (to < 0x1p-126f) to = 0;
}

inline void load16(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* at) {
    if (reinterpret_cast<uintptr_t>(at) % 16) host::wrong("16 bytes are read at no multiple of 16");
    const volatile unsigned* words = static_cast<const unsigned*>(at);  // read even where nobody uses them
    a = words[0], b = words[1], c = words[2], d = words[3];
}
inline void load16_if(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* at, unsigned there) {
    if (there) load16(a, b, c, d, at);
}

struct Fragments {
    unsigned a[4], b[2];
};
template <class F> void multiply(F number, float* (&sum)[4], const Fragments& mine) {
    host::together(mine, [&](const Fragments* lanes) {
        for (int i = 0; i < 4; ++i) {
            const int row = host::lane() / 4 + i / 2 * 8, column = host::lane() % 4 * 2 + i % 2;
            double total = *sum[i];
            for (int k = 0; k < 16; ++k) {
                const int quarter = k % 8 / 2, half = k % 2 * 16;
                const unsigned a = lanes[row % 8 * 4 + quarter].a[row / 8 + k / 8 * 2] >> half;
                const unsigned b = lanes[column * 4 + quarter].b[k / 8] >> half;
                total += double(number(a & 0xffff)) * number(b & 0xffff);
            }
            *sum[i] = float(total);
        }
        return 0;
    });
}
template <class... A> void multiply_halves(float& s, float& t, float& u, float& v, A... operands) {
    float* sum[4] = {&s, &t, &u, &v};
    multiply(float_of_half, sum, Fragments{operands...});
}
template <class... A> void multiply_bf16(float& s, float& t, float& u, float& v, A... operands) {
    float* sum[4] = {&s, &t, &u, &v};
    multiply(float_of_bf16, sum, Fragments{operands...});
}

// Four matrices of eight rows, row i of matrix m at the address that lane 8 m + i brings. It is read when that lane
// comes: that all lanes meet here does not make what they wrote before known to each other.
struct Row {
    Bits numbers[8];
};
template <bool TURNED> void matrices(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
    unsigned* const to[4] = {&a, &b, &c, &d};
    Row mine;
    memcpy(&mine, host::shared_at(address, sizeof(Row), 16), sizeof(Row));
    host::together(mine, [&](const Row* rows) {
        const int high = host::lane() / 4, low = host::lane() % 4 * 2;
        for (int m = 0; m < 4; ++m, rows += 8)
            *to[m] = TURNED ? rows[low].numbers[high] | rows[low + 1].numbers[high] << 16
                            : rows[high].numbers[low] | rows[high].numbers[low + 1] << 16;
        return 0;
    });
}
inline void four_matrices(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
    matrices<false>(a, b, c, d, address);
}
inline void four_turned(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
    matrices<true>(a, b, c, d, address);
}

inline void copy16(unsigned to, const void* from, int bytes) {
    host::ask(
        host::current->asked,
        {host::shared_at(to, 16, 16), from, unsigned(bytes), unsigned(16 - bytes), host::current->groups});
}
inline void end_group() { ++host::current->groups; }
inline void await_groups(int pending) { host::await_groups(pending); }

inline void make_gate(unsigned at, int arrivals = 1) {
    host::shared_at(at, 8, 8);
    host::current->block->gates.push({at, 0, arrivals, 0, arrivals});
}
inline void expect(unsigned at, unsigned bytes) {
    host::Gate& gate = host::gate_at(at);
    --gate.arrivals, gate.bytes += bytes;
    host::settle(gate);
}
inline void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned at, unsigned long long) {
    host::Gate& gate = host::gate_at(at);
    if (bytes % 16) host::wrong("a bulk copy is of no multiple of 16 bytes");
    host::ask(host::current->block->coming, {host::shared_at(to, bytes, 16), from, bytes, 0, at});
    if (host::launch.backwards) gate.bytes -= bytes, host::settle(gate);
}
inline void await_gate(unsigned& done, unsigned at, unsigned parity) { done = host::passed(at, parity); }
inline void policy(unsigned long long& to) { to = 0; }

inline void arrive_in_cluster() {
    host::current->cluster_turn = host::cluster.turn;
    host::arrive(host::cluster, host::launch.cluster * host::launch.threads);
}
inline void await_cluster() {
    while (host::cluster.turn == host::current->cluster_turn) host::leave();
}
inline void meet_cluster() { arrive_in_cluster(), await_cluster(); }
template <class T> void read_of_block(T& to, unsigned address, unsigned rank) {
    const host::Block& block = host::blocks[rank];
    bool there = rank < host::launch.cluster;
    for (unsigned t = 0; there && t < host::launch.threads; ++t)
        if (!block.threads[t].done) return void(memcpy(&to, block.room + address, sizeof(T)));
    host::wrong("the shared memory of a block is read that has ended");
}
inline void read_four_of_block(float& a, float& b, float& c, float& d, unsigned address, unsigned rank) {
    if (address % 16) host::wrong("16 bytes are read at no multiple of 16");
    float four[4];
    read_of_block(four, address, rank);
    a = four[0], b = four[1], c = four[2], d = four[3];
}
}  // namespace ptx
