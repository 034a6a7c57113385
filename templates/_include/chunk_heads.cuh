// Heads of a prefill chunk's tokens: queries and keys RMS-normalised (QK-norm, where the model has it) and rotated
// (RoPE by halves, Su et al. 2021); queries written head by head, keys and values to the cache slots of their
// positions.
//
//   grid (tokens, SHARES)   a block has one token; SHARES blocks share the token's q_heads + 2 kv_heads heads, or its
//                           2 kv_heads where the attention behind it normalises and rotates the queries itself
//   warp                    SIDE heads at a time, LANES lanes each
//   lane                    | piece p of the low half | piece p of the high half |   PER elements each, in registers
//
// What rotates together, x[i] and x[i + HALF], is in one thread: no shuffle but for the sums
// of the norm. The token's cosines, sines and norm weights stay in registers for all heads
// that a warp takes. Each element is read and written once, by 16-byte accesses; norm
// weights, angles, positions and the pitch are loaded before the kernel waits for its inputs.
#include "pieces.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int HALF = head_dim / 2;
constexpr int PIECES = HALF / PER;  // pieces of half a head
constexpr int LANES = PIECES <= 1 ? 1 : PIECES <= 2 ? 2 : PIECES <= 4 ? 4 : PIECES <= 8 ? 8 : PIECES <= 16 ? 16 : 32;
constexpr int SIDE = WARP / LANES;  // heads of a warp at a time
static_assert(head_dim % (2 * PER) == 0 && PIECES <= WARP);

// Piece p of both halves of a row, as it lies in memory.
template <class T> struct Halves {
    Piece<T> low, high;

    __device__ void load(const T* row, int from) { low.load(row + from), high.load(row + HALF + from); }
};

// Piece p of both halves of a head, in float.
struct Head {
    float low[PER], high[PER];

    template <class T> __device__ void take(const T* row, int from) {
        load_piece(row + from, low);
        load_piece(row + HALF + from, high);
    }
    template <class T> __device__ void give(T* row, int from) const {
        store_piece(row + from, low);
        store_piece(row + HALF + from, high);
    }
    __device__ float squares() const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PER; ++i) sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
        return sum;
    }
    template <class N> __device__ void scale(float inverse, const Halves<N>& norm, float offset) {
        float gain[PER];
        norm.low.floats(gain);
#pragma unroll
        for (int i = 0; i < PER; ++i) low[i] *= inverse * (gain[i] + offset);
        norm.high.floats(gain);
#pragma unroll
        for (int i = 0; i < PER; ++i) high[i] *= inverse * (gain[i] + offset);
    }
    template <class C, class S> __device__ void rotate(const Halves<C>& cos, const Halves<S>& sin) {
        float c[PER], s[PER], turned[PER];
        cos.low.floats(c), sin.low.floats(s);
#pragma unroll
        for (int i = 0; i < PER; ++i) turned[i] = low[i] * c[i] - high[i] * s[i];
        cos.high.floats(c), sin.high.floats(s);
#pragma unroll
        for (int i = 0; i < PER; ++i) high[i] = high[i] * c[i] + low[i] * s[i], low[i] = turned[i];
    }
};

// Queries, keys and values are dense, or all `pitch` elements apart from token to token. Before the wait only norm
// weights are read, the pitch, and the positions and angles, which the manifest names `early`. Lanes without a piece,
// and groups of lanes without a head, work on another's and write nothing: the norm's shuffles take whole warps.
template <bool NORM, bool QUERIES = true, class A, class N>
__device__ inline void append_heads(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    constexpr int ASKING = QUERIES ? q_heads : 0, HEADS = ASKING + 2 * kv_heads;
    let_successor_start();
    const long token = blockIdx.x;
    const int lane = threadIdx.x % WARP, piece = lane % LANES;
    const int from = piece < PIECES ? piece * PER : 0;
    Halves<N> of_q{}, of_k{};
    if (NORM && QUERIES) of_q.load(norm_q, from);
    if (NORM) of_k.load(norm_k, from);
    Halves<cos_t> cos;
    Halves<sin_t> sin;
    cos.load(a.cos + token * head_dim, from);
    sin.load(a.sin + token * head_dim, from);
    const long slot = a.positions[token], pitch = *a.pitch;
    const long of_queries = pitch ? pitch : q_heads * head_dim, of_keys = pitch ? pitch : kv_heads * head_dim;
    wait_for_inputs();
    const int warp = int(blockIdx.y) * WARPS + int(threadIdx.x) / WARP;
    for (int first = warp * SIDE; first < HEADS; first += int(SHARES) * WARPS * SIDE) {
        const int wanted = first + lane / LANES, head = wanted < HEADS ? wanted : HEADS - 1;
        const int key = head - ASKING, value = key - int(kv_heads);
        const bool mine = wanted < HEADS && piece < PIECES;
        Head x;
        if (value >= 0) {
            x.take(a.v + token * of_keys + value * head_dim, from);
        } else if (key >= 0) {
            x.take(a.k + token * of_keys + key * head_dim, from);
        } else {
            if constexpr (QUERIES) x.take(a.q + token * of_queries + head * head_dim, from);
        }
        if (NORM) {
            const float squares = sum_over<LANES>(piece < PIECES ? x.squares() : 0.0f);
            const float inverse = rsqrtf(squares / float(head_dim) + eps);
            if (key < 0)
                x.scale(inverse, of_q, offset);
            else if (value < 0)
                x.scale(inverse, of_k, offset);
        }
        if (value < 0) x.rotate(cos, sin);
        if (!mine) continue;
        if (value >= 0) {
            x.give(a.v_cache + (long(value) * context + slot) * head_dim, from);
        } else if (key >= 0) {
            x.give(a.k_cache + (long(key) * context + slot) * head_dim, from);
        } else {
            if constexpr (QUERIES) x.give(a.y + (head * long(gridDim.x) + token) * head_dim, from);
        }
    }
}
