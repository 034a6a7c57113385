// Attention of a chunk of prompt tokens on CPU threads, after the tokens' keys and values are in the cache: causal,
// blocked, with the online softmax (Milakov and Gimelshein 2018; Dao 2022), so no scores of a whole context exist.
//
//   a task           a KV head x consecutive tokens, with all GROUP query heads of the head: up to ROWS rows of queries
//   a block          BLOCK slots, counted from slot 0: keys packed once for all rows, lane = slot, and values,
//                    lane = element; widened to float, but keys where vdpbf16ps multiplies them
//   HIGH rows at a   1. scores   weights[r][s] = scale * q[r] . k[s]                (chunk_tiles.h)
//   time, a block    2. softmax  new maximum, weights[r][s] = exp(weights[r][s] - maximum), lane = slot
//                    3. values   sum[r] = sum[r] * keep[r] + sum_s weights[r][s] * v[s]
//
// GQA packs the heads of a group: they share keys and values, so a pass over a block has GROUP times as many rows, and
// packing, which costs a load and a store an element, is shared among ROWS multiply-adds an element. Scores of HIGH
// rows stay in the first-level cache; keys, values and sums are in the second.
//
// The blocks of a query and the order of its sums follow from its position alone: neither the chunk, nor the rows
// beside it, nor the number of threads change a bit. Slots that a query does not see are not read into its results.
// Tasks with later tokens see more slots. Threads take them from the longest on, forward and backward in turns, which
// balances them without a look at the time.
#include "chunk_tiles.h"
#include "rmsnorm.h"

constexpr long GROUP = q_heads / kv_heads;
constexpr long QUERIES = ROWS / GROUP;
constexpr long WIDTH = whole_panels(head_dim);
constexpr long CELLS = cells_of<k_cache_t, head_dim>;

// One head from `x`: RMS-normalised when `norm` is not null, then rotated (RoPE by halves, Su et al. 2021).
template <class X, class N, class C>
inline void turned_head(const X* x, const N* norm, float eps, float offset, const C* cos, const C* sin, float* out) {
    constexpr long half = head_dim / 2;
    alignas(64) float plain[head_dim];
    if (norm) {
        const float inverse = inverse_rms<head_dim>(x, eps);
        each(head_dim, [&](auto as, long i) {
            as.store(plain + i, as.load(x + i) * inverse * (as.load(norm + i) + offset));
        });
    } else {
        each(head_dim, [&](auto as, long i) { as.store(plain + i, as.load(x + i)); });
    }
    each(half, [&](auto as, long i) {
        as.store(out + i, as.load(plain + i) * as.load(cos + i) - as.load(plain + half + i) * as.load(sin + i));
    });
    each(half, [&](auto as, long i) {
        const auto far = as.load(plain + half + i) * as.load(cos + half + i);
        as.store(out + half + i, far + as.load(plain + i) * as.load(sin + half + i));
    });
}

// Writes the queries of a chunk, normalised and rotated, to `queries` as [kv_heads, n, GROUP] rows of CELLS cells, and
// its keys and values to their slots. Threads share the heads of all tokens.
template <class A> inline void turn_chunk(const A& a, float eps, float offset, int rank, int size) {
    constexpr long heads = q_heads + kv_heads;
    const long n = *a.count, items = n * heads;
    const q_t *q_norm = nullptr, *k_norm = nullptr;
    if constexpr (requires { a.q_norm; }) q_norm = a.q_norm, k_norm = a.k_norm;
    alignas(64) float turned[head_dim];
    for (long item = items * rank / size; item < items * (rank + 1) / size; ++item) {
        const long token = item / heads, at = item % heads, head = at - q_heads;
        const auto *cos = a.cos + token * head_dim, *sin = a.sin + token * head_dim;
        if (at < q_heads) {
            const q_t* x = a.q + (token * q_heads + at) * head_dim;
            turned_head(x, q_norm, eps, offset, cos, sin, turned);
            float* out = a.queries + ((at / GROUP * n + token) * GROUP + at % GROUP) * CELLS;
            using Query = std::conditional_t<paired<k_cache_t>, bf16, float>;
            Query* query = reinterpret_cast<Query*>(out);
            each(head_dim, [&](auto as, long i) { as.store(query + i, as.load(turned + i)); });
        } else {
            turned_head(a.k + (token * kv_heads + head) * head_dim, k_norm, eps, offset, cos, sin, turned);
            const long slot = (head * context + a.positions[token]) * head_dim;
            const v_t* v = a.v + (token * kv_heads + head) * head_dim;
            each(head_dim, [&](auto as, long i) { as.store(a.k_cache + slot + i, as.load(turned + i)); });
            each(head_dim, [&](auto as, long i) { as.store(a.v_cache + slot + i, as.load(v + i)); });
        }
    }
}

// The largest lane; no lane is a NaN.
inline float top_lane(vf v) {
#if ISA_AVX512F && LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float lanes[LANES], top = -INFINITY;
    wide::store(lanes, v);
    for (float lane : lanes) top = lane > top ? lane : top;
    return top;
#endif
}

// 2^r = 1 + r (EXP2[0] + r (EXP2[1] + ...)) for r in [-0.5, 0.5], within 9.2e-8: the least largest relative error.
constexpr float EXP2[] = {6.931469776e-1f, 2.402224208e-1f, 5.550733745e-2f, 9.671512895e-3f, 1.326472728e-3f};

// The larger one of each lane: `second` where `first` is a NaN.
inline vf larger(vf first, vf second) {
#if ISA_AVX512F && LANES == 16
    return (vf)_mm512_max_ps((__m512)first, (__m512)second);
#else
    return first > second ? first : second;
#endif
}

// exp(x) of x <= 0, 2 ulp, with one power of two: below the smallest normal number it is 0, which is no weight beside
// the largest score's, 1. A NaN stays one. With AVX-512 it is 2^(x / ln 2), of which one instruction makes the power:
// half as many instructions as the other one, which is that of silu.h.
inline vf exponential_below(vf x) {
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const vf lowest = splat(-87.0f);
#if ISA_AVX512F && LANES == 16
    const vf turns = splat(1.44269504f), n = fused(x, turns, magic) - magic, r = fused(x, turns, -n);
    vf p = splat(EXP2[4]);
#pragma GCC unroll 4
    for (int i = 3; i >= 0; --i) p = fused(p, r, splat(EXP2[i]));
    p = fused(p, r, splat(1.0f));
    const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, (__m512)lowest, _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(counts, (__m512)p, (__m512)n);
#else
    const vf held = x < lowest ? lowest : x, shifted = held * 1.44269504f + magic, n = shifted - magic;
    vf r = held - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    // The low bits of `shifted` are n; moved to the exponent they give 2^n.
    const vf power = (vf)(((vu)shifted << 23) + (127u << 23));
    return x < lowest ? vf{} : p * power;
#endif
}

// Makes weights of the scores [low, high) of a row and adds them to the lanes of `total`, of which slot s has lane
// s % LANES. Returns the factor for what was summed before. A NaN among the scores becomes a weight, and so the result.
inline float soften(float* w, long low, long high, float& top, vf& total) {
    const long first = low / LANES * LANES;
    vi lane;
    for (int j = 0; j < LANES; ++j) lane[j] = j;
    const auto whole = [&](long i) { return i >= low && i + LANES <= high; };
    const auto seen = [&](long i) { return (lane + int(i) >= int(low)) & (lane + int(i) < int(high)); };
    vf tops = splat(-INFINITY);
    for (long i = first; i < high; i += LANES) {
        vf score = wide::load(w + i);
        if (!whole(i)) score = seen(i) ? score : splat(-INFINITY);
        tops = larger(score, tops);
    }
    const float here = top_lane(tops), next = here > top ? here : top;
    // Scores that are all -inf have no weight; -inf - -inf would make it NaN.
    const float shift = next == -INFINITY ? 0.0f : next;
    const float keep = next == top ? 1.0f : std::exp(top - shift);
    total = total * keep;
    for (long i = first; i < high; i += LANES) {
        vf weight = exponential_below(wide::load(w + i) - shift);
        if (!whole(i)) weight = seen(i) ? weight : vf{};
        wide::store(w + i, weight);
        total = total + weight;
    }
    top = next;
    return keep;
}

// What a task knows of its rows between two blocks; with those that fill the last of `AT_ONCE`.
template <int AT_ONCE> struct Rows {
    static constexpr long held = (QUERIES * GROUP + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    float top[held];
    alignas(64) vf total[held];  // by lane: summed over lanes at the end
    alignas(64) float sum[held][WIDTH];
};

// One way to compute: how a block of slots is packed, and what it adds to AT_ONCE rows.
struct Vectors {
    static constexpr int at_once = HIGH;
    alignas(64) float keys[BLOCK * whole_vectors(CELLS)], values[BLOCK * WIDTH];

    void pack(const k_cache_t* k, const v_cache_t* v, long here) {
        pack_rows_across<k_cache_t, head_dim>(k, here, keys);
        pack_columns<v_cache_t, head_dim, BLOCK>(v, here, values);
    }
    void attend(
        const float* q, const long (&low)[HIGH], const long (&high)[HIGH], long /* some */, long row, Rows<HIGH>& rows);
};

// One block of slots for HIGH rows: `low` and `high` are the slots that each row sees, counted in the block.
inline void Vectors::attend(
    const float* q, const long (&low)[HIGH], const long (&high)[HIGH], long /* some */, long row, Rows<HIGH>& rows) {
    alignas(64) float weights[HIGH][BLOCK], keep[HIGH];
    long first = BLOCK, last = 0, all_from = 0, all_to = BLOCK;
    for (int r = 0; r < HIGH; ++r) {
        first = std::min(first, low[r]), all_from = std::max(all_from, low[r]);
        last = std::max(last, high[r]), all_to = std::min(all_to, high[r]);
    }
    if (first >= last) return;
    for (long s = first / ACROSS * ACROSS; s < last; s += ACROSS) {
        Tile scores = {};
        multiply<paired<k_cache_t>, CELLS>(scores, q, keys + s * whole_vectors(CELLS), CELLS);
        for (int r = 0; r < HIGH; ++r)
            for (int c = 0; c < 2; ++c) wide::store(&weights[r][s + c * LANES], scores[r][c] * scale);
    }
    for (int r = 0; r < HIGH; ++r)
        keep[r] = low[r] < high[r] ? soften(weights[r], low[r], high[r], rows.top[row + r], rows.total[row + r]) : 1.0f;
    all_from = std::min(all_from, last), all_to = std::max(all_from, all_to);
    for (long column = 0; column < WIDTH; column += ACROSS) {
        const float* panel = values + column * BLOCK;
        Tile sums;
        for (int r = 0; r < HIGH; ++r)
            for (int c = 0; c < 2; ++c) sums[r][c] = wide::load(&rows.sum[row + r][column + c * LANES]) * keep[r];
        multiply_some<BLOCK>(sums, weights[0], panel, first, all_from, low, high);
        multiply<false, BLOCK>(sums, weights[0] + all_from, panel + all_from * ACROSS, all_to - all_from);
        multiply_some<BLOCK>(sums, weights[0], panel, all_to, last, low, high);
        for (int r = 0; r < HIGH; ++r)
            for (int c = 0; c < 2; ++c) wide::store(&rows.sum[row + r][column + c * LANES], sums[r][c]);
    }
}

// Prefetches rows [begin, end) into the second cache.
template <class T> inline void fetch_rows(const T* rows, long begin, long end) {
    const char* p = reinterpret_cast<const char*>(rows + begin * head_dim);
    for (long i = 0; i < (end - begin) * head_dim * long(sizeof(T)); i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Attention of the tokens [begin, end) of a chunk, all query heads of one KV head.
template <class Way, class A>
inline void attend_task(const A& a, long head, long begin, long end, Rows<Way::at_once>& rows, Way& way) {
    constexpr int at_once = Way::at_once;
    const long n = *a.count, count = (end - begin) * GROUP;
    const float* q = a.queries + (head * n + begin) * GROUP * CELLS;
    // The slots that the query of row r reads; rows that only fill a tile go with the last token.
    const auto position = [&](long r) { return a.positions[std::min(begin + r / GROUP, end - 1)]; };
    const auto lowest = [&](long r) { return window ? std::max<long>(0, position(r) - window + 1) : 0; };
    for (long r = 0; r < rows.held; ++r) rows.top[r] = -INFINITY, rows.total[r] = vf{};
    std::memset(rows.sum, 0, sizeof rows.sum);
    const long stop = position(count - 1) + 1;
    for (long slot = lowest(0) / BLOCK * BLOCK; slot < stop; slot += BLOCK) {
        const long here = std::min(BLOCK, stop - slot), from = (head * context + slot) * head_dim;
        way.pack(a.k_cache + from, a.v_cache + from, here);
        // While a tile is computed, its share of the next block comes closer.
        const long next = std::clamp<long>(stop - slot - BLOCK, 0, BLOCK);
        for (long row = 0; row < count; row += at_once) {
            const long near = next * row / count, far = next * std::min(row + at_once, count) / count;
            fetch_rows(a.k_cache + from + BLOCK * head_dim, near, far);
            fetch_rows(a.v_cache + from + BLOCK * head_dim, near, far);
            long low[at_once], high[at_once];
            for (int r = 0; r < at_once; ++r) {
                high[r] = std::clamp<long>(position(row + r) + 1 - slot, 0, here);
                low[r] = std::clamp<long>(lowest(row + r) - slot, 0, here);
            }
            way.attend(q + row * CELLS, low, high, count - row, row, rows);
        }
    }
    for (long r = 0; r < count; ++r) {
        y_t* y = a.y + ((head * GROUP + r % GROUP) * n + begin + r / GROUP) * head_dim;
        const float total = sum(rows.total[r]);
        each(head_dim, [&](auto as, long i) { as.store(y + i, as.load(rows.sum[r] + i) / total); });
    }
}

template <class Way = Vectors, class A> inline void attend_chunk(const A& a, int rank, int size) {
    Way way;
    Rows<Way::at_once> rows;
    // A short chunk, or few heads, still gives every thread a task.
    const long n = *a.count, queries = std::min(QUERIES, (n * kv_heads + size - 1) / size);
    const long blocks = (n + queries - 1) / queries;
    for (long task = 0; task < blocks * kv_heads; ++task) {
        const long turn = task / size, place = task % size, owner = turn % 2 ? size - 1 - place : place;
        if (owner != rank) continue;
        const long begin = (blocks - 1 - task / kv_heads) * queries;
        attend_task(a, task % kv_heads, begin, std::min(n, begin + queries), rows, way);
    }
}
