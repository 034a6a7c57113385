// Products of a prompt's tokens with packed weights, read where they lie. Stands after `draw.h`
// and before `executor.cpp`.
//
// A panel of weights, some tiles of 16 rows, is multiplied with a few tokens at a time: their sums stay in registers
// over the whole row, a lane a row, so the panel comes from memory once and from the caches for the other tokens. Every sum
// is added up in the order of its row, whatever tokens stand beside it and however many threads there are.
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace products {

#pragma GCC diagnostic ignored "-Wpsabi"  // wide vectors pass between functions of this text alone
constexpr int TILE = 16;  // of the layouts
typedef float vf __attribute__((vector_size(4 * TILE)));
typedef uint32_t vu __attribute__((vector_size(4 * TILE)));
typedef uint16_t vh __attribute__((vector_size(2 * TILE)));

// Sums of PANEL tiles and BLOCK tokens fill the vector registers, but for those that hold operands.
#if defined(__AVX512F__)
constexpr int PANEL = 2, BLOCK = 12;
#elif defined(__AVX2__)
constexpr int PANEL = 1, BLOCK = 4;
#else
constexpr int PANEL = 1, BLOCK = 2;
#endif

template <class V> inline V load(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// How weights of a layout are multiplied: `step` rows' neighbours at a time with as many of a token's elements.
struct Floats {  // rows16-k1
    using element = float;
    using operand = float;
    static constexpr int64_t step = 1;
    static void add(vf& sum, const float* w, const float* x) { sum += load<vf>(w) * *x; }
};
struct Pairs {  // rows16-k2, bfloat16 widened by a shift
    using element = uint16_t;
    using operand = float;
    static constexpr int64_t step = 2;
    static void add(vf& sum, const uint16_t* w, const float* x) {
        vu pairs = load<vu>(w);
        sum += (vf)(pairs << 16) * x[0];
        sum += (vf)(pairs & 0xffff0000u) * x[1];
    }
};
#if defined(__AVX512BF16__)
struct Dots {  // rows16-k2, bfloat16 as it is
    using element = uint16_t;
    using operand = uint16_t;
    static constexpr int64_t step = 2;
    static void add(vf& sum, const uint16_t* w, const uint16_t* x) {
        __m512bh pair = (__m512bh)_mm512_set1_epi32(load<int32_t>(x));
        sum = (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)load<__m512i>(w), pair);
    }
};
using Bfloats = Dots;
#else
using Bfloats = Pairs;
#endif

struct Task {
    const void* x;     // operands [tokens, stride], zero between `hidden` and `stride`
    const void* w;     // packed [rows, hidden]
    const void* bias;  // [rows], or null
    void* y;           // [tokens, rows]
    int64_t tokens, hidden, rows, stride;
};

inline void store(float* y, const float* bias, vf sums, int64_t count) {
    for (int64_t i = 0; i < count; ++i) y[i] = sums[i] + (bias ? bias[i] : 0.0f);
}
// Rounded once, to nearest, ties to even; a NaN stays one.
inline void store(uint16_t* y, const uint16_t* bias, vf sums, int64_t count) {
    if (bias)
        for (int64_t i = 0; i < count; ++i) sums[i] += widened(bias[i]);
    vu bits = (vu)sums, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40;
    vh kept = __builtin_convertvector((vu)((sums == sums) ? rounded : quiet), vh);
    std::memcpy(y, &kept, count * sizeof *y);
}

// T tiles from number `tile` on with the M tokens from `token` on.
template <class O, int T, int M> void block(const Task& task, int64_t tile, int64_t token) {
    using W = typename O::element;
    const int64_t steps = (task.hidden + O::step - 1) / O::step, width = O::step * TILE;
    const W* w = static_cast<const W*>(task.w) + tile * steps * width;
    const auto* x = static_cast<const typename O::operand*>(task.x) + token * task.stride;
    vf sums[M][T] = {};
    for (int64_t k = 0; k < steps; ++k) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) O::add(sums[m][t], w + (t * steps + k) * width, x + m * task.stride + k * O::step);
        }
    }
    for (int t = 0; t < T; ++t) {
        const int64_t row = (tile + t) * TILE, left = task.rows - row;
        const W* bias = task.bias ? static_cast<const W*>(task.bias) + row : nullptr;
        for (int m = 0; m < M; ++m)
            store(static_cast<W*>(task.y) + (token + m) * task.rows + row, bias, sums[m][t], left < TILE ? left : TILE);
    }
}

// All tokens from `token` on: M at a time, and the rest by the powers of two.
template <class O, int T, int M> void blocks(const Task& task, int64_t tile, int64_t token) {
    for (; token + M <= task.tokens; token += M) block<O, T, M>(task, tile, token);
    if constexpr (M > 1) blocks<O, T, (M > 8 ? 8 : M / 2)>(task, tile, token);
}

// The panels of one thread of `size`: every thread has as many as another, but for one.
template <class O> void share(const Task& task, int rank, int size) {
    const int64_t tiles = (task.rows + TILE - 1) / TILE, panels = (tiles + PANEL - 1) / PANEL;
    for (int64_t panel = panels * rank / size; panel < panels * (rank + 1) / size; ++panel) {
        const int64_t tile = panel * PANEL;
        if (tile + PANEL <= tiles) blocks<O, PANEL, BLOCK>(task, tile, 0);
        else
            for (int64_t one = tile; one < tiles; ++one) blocks<O, 1, BLOCK>(task, one, 0);
    }
}

// A team of OpenMP threads of whoever has the cores already: GOMP_parallel of libgomp, and who is who in it.
struct Team {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*rank)();
    int (*size)();
    int64_t threads;
};

template <class O> void multiply(const Team& team, Task task) {
    using X = typename O::operand;
    using W = typename O::element;
    std::vector<X> room;
    task.stride = (task.hidden + O::step - 1) / O::step * O::step;
    if (!std::is_same_v<X, W> || task.stride != task.hidden) {
        room.resize(task.tokens * task.stride);
        for (int64_t m = 0; m < task.tokens; ++m)
            for (int64_t k = 0; k < task.hidden; ++k) {
                const W one = static_cast<const W*>(task.x)[m * task.hidden + k];
                if constexpr (std::is_same_v<X, W>) room[m * task.stride + k] = one;
                else room[m * task.stride + k] = widened(one);
            }
        task.x = room.data();
    }
    struct Shared {
        const Team& team;
        const Task& task;
    } shared{team, task};
    team.parallel(
        [](void* given) {
            auto& [team, task] = *static_cast<Shared*>(given);
            share<O>(task, team.rank(), team.size());
        },
        &shared, unsigned(team.threads), 0);
}

}  // namespace products

extern "C" {

// y [tokens, rows] = x [tokens, hidden] times w [rows, hidden] transposed, plus a bias [rows] unless that is null; all of
// float32 with w in rows16-k1 when `wide`, else all of bfloat16 with w in rows16-k2.
void ac_product(
    const products::Team* team, const void* x, const void* w, const void* bias, void* y, int64_t tokens, int64_t hidden,
    int64_t rows, int64_t wide) {
    const products::Task task{x, w, bias, y, tokens, hidden, rows, 0};
    if (wide) products::multiply<products::Floats>(*team, task);
    else products::multiply<products::Bfloats>(*team, task);
}
}
