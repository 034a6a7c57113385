// Decode attention on CPU threads: the GROUP query heads of a GQA group against the cache slots of their key/value
// head, by the online softmax (Milakov and Gimelshein 2018) over blocks of BLOCK slots.
//
//   each block of slots   1. scores    weights[g][s] = q[g] . k[s], 16 keys at a time (row_tile, dot.h), lane = element
//                         2. softmax   new maximum, weights[g][s] = exp(scale * score - maximum), lane = slot
//                         3. values    sum[g] = sum[g] * keep[g] + sum_s weights[g][s] * v[s], lane = element of v
//   a thread              GROUP maxima, totals and sums [GROUP][head_dim] of its own, in its cache; in step 3 up to 16
//                         vectors of sums in registers
//
// A key is read from memory once for all GROUP query heads: BLOCK slots and their weights stay in the first-level
// cache, and sums are rescaled once per block. Scores and weights are float; queries and keys meet in the cache's type.
// Slots outside the range are never read: they may hold NaN.
#include "dot.h"
#include "rmsnorm.h"
#include "silu.h"

// One head of D floats from `x`: RMS-normalised when `norm` is not null, then rotated (RoPE by halves, Su et al. 2021).
template <long D, class X, class N, class C>
inline void rotated_head(const X* x, const N* norm, float eps, float offset, const C* cos, const C* sin, float* out) {
    constexpr long half = D / 2;
    alignas(64) float plain[D];
    if (norm) {
        const float inverse = inverse_rms<D>(x, eps);
        each(D, [&](auto as, long i) { as.store(plain + i, as.load(x + i) * inverse * (as.load(norm + i) + offset)); });
    } else {
        each(D, [&](auto as, long i) { as.store(plain + i, as.load(x + i)); });
    }
    each(half, [&](auto as, long i) {
        as.store(out + i, as.load(plain + i) * as.load(cos + i) - as.load(plain + half + i) * as.load(sin + i));
    });
    each(half, [&](auto as, long i) {
        const auto far = as.load(plain + half + i) * as.load(cos + half + i);
        as.store(out + half + i, far + as.load(plain + i) * as.load(sin + half + i));
    });
}

// Running softmax of GROUP queries: maximum, sum of weights, weighted sum of values (not yet divided).
template <int GROUP, long D> struct Running {
    float top[GROUP], total[GROUP];
    alignas(64) float sum[GROUP][D];

    void clear() {
        for (int g = 0; g < GROUP; ++g) {
            top[g] = -INFINITY;
            total[g] = 0;
        }
        std::memset(sum, 0, sizeof sum);
    }
};

// Adds weights[g][s] * values[s] for n slots to `sum`, after scaling it by `keep`: WIDE vectors from `column` on,
// whose GROUP * WIDE accumulators stay in registers over all slots.
template <int GROUP, long D, int WIDE, long AHEAD, long BLOCK, class V>
inline void weigh(float (&sum)[GROUP][D], const float* keep, const float (&weights)[GROUP][BLOCK], const V* values, long n, long column) {
    vf acc[GROUP][WIDE];
    for (int g = 0; g < GROUP; ++g)
        for (int c = 0; c < WIDE; ++c) acc[g][c] = wide::load(&sum[g][column + c * LANES]) * keep[g];
    for (long s = 0; s < n; ++s) {
        const V* row = values + s * D + column;
#pragma GCC unroll 16
        for (int c = 0; c < WIDE; ++c) {
            if (c * LANES * sizeof(V) % 64 == 0) fetch<AHEAD>(row + c * LANES);
            const vf v = wide::load(row + c * LANES);
#pragma GCC unroll 16
            for (int g = 0; g < GROUP; ++g) acc[g][c] += v * weights[g][s];
        }
    }
    for (int g = 0; g < GROUP; ++g)
        for (int c = 0; c < WIDE; ++c) wide::store(&sum[g][column + c * LANES], acc[g][c]);
}

// Adds slots [low, high) of one key/value head to `run`. `q`: the group's queries as operands of the cache's type.
template <int GROUP, long D, long BLOCK, int STREAMS, long AHEAD, class K, class V>
inline void attend_slots(
    const operand_t<K> (&q)[GROUP][operand_room<D>], const K* keys, const V* values, long low, long high, float scale,
    Running<GROUP, D>& run) {
    constexpr int unroll = D / step_of<K> >= 4 && STREAMS <= 2 ? 4 : D / step_of<K> >= 2 ? 2 : 1;
    constexpr int wide_columns = std::max<long>(1, std::min<long>(D / LANES, 16 / GROUP));
    alignas(64) float weights[GROUP][BLOCK];
    for (long begin = low; begin < high; begin += BLOCK) {
        const long n = std::min(BLOCK, high - begin);
        float keep[GROUP];
        for (long s = 0; s < n; s += TILE)
            for (int g = 0; g < GROUP; ++g)
                row_tile<K, D, STREAMS, unroll, AHEAD>(keys + (begin + s) * D, q[g], int(std::min<long>(TILE, n - s)), weights[g] + s);
        for (int g = 0; g < GROUP; ++g) {
            float* w = weights[g];
            each(n, [&](auto as, long i) { as.store(w + i, as.load(w + i) * scale); });
            const float top = largest(w, n), next = top > run.top[g] || top != top ? top : run.top[g];
            keep[g] = run.total[g] == 0 ? 0.0f : std::exp(run.top[g] - next);
            // A block whose scores are all -inf has no weight; -inf - -inf would make it NaN.
            const float shift = next == -INFINITY ? 0.0f : next;
            float total = 0;
            vf totals = {};
            each(n, [&](auto as, long i) {
                const auto weight = exponential(as.load(w + i) - shift);
                as.store(w + i, weight);
                if constexpr (as.lanes == 1) total += weight;
                else totals += weight;
            });
            run.total[g] = run.total[g] * keep[g] + (total + sum(totals));
            run.top[g] = next;
        }
        const V* rows = values + begin * D;
        long column = 0;
        for (; column + wide_columns * LANES <= D; column += wide_columns * LANES)
            weigh<GROUP, D, wide_columns, AHEAD>(run.sum, keep, weights, rows, n, column);
        for (; column + LANES <= D; column += LANES)
            weigh<GROUP, D, 1, 0>(run.sum, keep, weights, rows, n, column);
        for (; column < D; ++column)
            for (int g = 0; g < GROUP; ++g) {
                float sum = run.sum[g][column] * keep[g];
                for (long s = 0; s < n; ++s) sum += weights[g][s] * to_float(rows[s * D + column]);
                run.sum[g][column] = sum;
            }
    }
}
