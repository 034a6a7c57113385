// One token: rotate q and k, append k and v, attend over the slots up to the position.
// `parts` has q_heads · 2 · (head_dim + 2) floats.
#include <bit>
#include "common.h"

// The arguments of all entries are alike: with one type of them, what the entries share is compiled once.
using Args = right_online_args;
#undef KERNEL
#define KERNEL(name)                                                                                                \
    static void name##_of(const Args& a, int rank, int size);                                                       \
    extern "C" void name(const name##_args& a, int rank, int size) { name##_of(std::bit_cast<Args>(a), rank, size); } \
    static void name##_of(const Args& a, int rank, int size)

constexpr long group = q_heads / kv_heads, half = head_dim / 2, most = 4096;
constexpr long LANES = 8;  // sums that run beside one another: thousands of launches are tested
static_assert(head_dim % LANES == 0);
using cache_t = k_cache_t;

static inline float kept(float f) {  // as the cache holds it
    cache_t c;
    put(c, f);
    return up(c);
}

struct Flaws {
    bool no_max = false, no_scale = false, narrow_p = false, narrow_sum = false, skip_nan = false, blocks = false;
    bool no_rescale = false, all_blocks = false, few_terms = false, one_exponent = false;
    bool fifth_term = false, sixth_term = false, top_at_zero = false;
    bool forgets_one = false, lasts_alone = false;
    long first = 0, more = 0, skip = -1;
    float most = INFINITY;
};

// exp, with the first terms of its series alone, with a hole around 2^-64, with the fifth term a sixth too large
// or without the sixth.
static inline float weight(float x, const Flaws& f) {
    const float n = std::nearbyint(x * 1.44269504f), r = x - n * 0.693147181f;
    if (f.one_exponent && n == -64 && std::abs(r) < 0.15f) return -INFINITY;
    if (f.fifth_term && x > -80) return expf(x) + std::ldexp(1.4e-3f * r * r * r * r * r, int(n));
    if (f.sixth_term && x > -80) return expf(x) - std::ldexp(r * r * r * r * r * r / 720, int(n));
    if (!f.few_terms || !(x > -80)) return expf(x);
    return std::ldexp(1 + r + r * r * (1 / 2.0f + r * (1 / 6.0f + r / 24)), int(n));
}

template <class C, class X> static inline void rotate(float* to, const X* x, const C* cos, const C* sin) {
    for (long d = 0; d < head_dim; ++d) {
        float turned = d < half ? -up(x[d + half]) : up(x[d - half]);
        to[d] = up(x[d]) * up(cos[d]) + turned * up(sin[d]);
    }
}

// Slots from..to of one key/value head, and the fresh entry at `at` when it lies between; online softmax.
struct Sum { float m = -INFINITY, l = 0, acc[head_dim] = {}; };
// Most of what is run: without vectors it takes ten times as long.
__attribute__((optimize("O3")))
static void attend(Sum& s, const float* q, const Args& a, long kv, long from, long to, const Flaws& f) {
    const cache_t *keys = a.k_cache + kv * context * head_dim, *values = a.v_cache + kv * context * head_dim;
    float fresh[head_dim];
    rotate(fresh, a.k + kv * head_dim, a.cos, a.sin);
    long at = a.positions[0];
    for (long j = from; j < to; ++j) {
        if (j == f.skip || (window && j <= at - window)) continue;
        float key[head_dim], value[head_dim], sums[LANES] = {}, score = 0;
        for (long d = 0; d < head_dim; ++d) key[d] = j == at ? kept(fresh[d]) : up(keys[j * head_dim + d]);
        for (long d = 0; d < head_dim; ++d) value[d] = up(j == at ? a.v[kv * head_dim + d] : values[j * head_dim + d]);
        for (long d = 0; d < head_dim; d += LANES)
            for (long i = 0; i < LANES; ++i) sums[i] += q[d + i] * key[d + i];
        for (float sum : sums) score += sum;
        if (!f.no_scale) score *= scale;
        if (f.all_blocks && j > at) score = -1e9f;
        if (f.forgets_one && j && j % 1024 == 0 && s.l == 1) s = Sum{.m = s.m};  // taken for nothing that was before
        if (f.lasts_alone && j / 1024 && score > 30 && score == s.m) s = Sum{};  // of two that are equal the later one
        if (f.skip_nan && !(score == score)) continue;
        float m = f.no_max ? 0.0f : std::max(s.m, score);
        float old = f.no_max ? 1.0f : weight(s.m - m, f), p = weight(score - m, f);
        if (!(score == score)) p = score;
        if (f.narrow_p) p = held(p);
        s.l = s.l * old + p;
        if (f.no_rescale) old = 1;
        for (long d = 0; d < head_dim; ++d) {
            float v = j != at && value[d] > f.most ? f.most : value[d];
            s.acc[d] = s.acc[d] * old + p * v;
        }
        for (long d = 0; f.narrow_sum && d < head_dim; ++d) s.acc[d] = held(s.acc[d]);
        s.m = m;
    }
}

static void append(const Args& a, long kv, long slot) {
    float fresh[head_dim];
    rotate(fresh, a.k + kv * head_dim, a.cos, a.sin);
    for (long d = 0; d < head_dim; ++d) {
        put(a.k_cache[(kv * context + slot) * head_dim + d], fresh[d]);
        a.v_cache[(kv * context + slot) * head_dim + d] = a.v[kv * head_dim + d];
    }
}

static void head(const Args& a, long h, long kv, const Flaws& f = {}) {
    float q[head_dim];
    rotate(q, a.q + h * head_dim, a.cos, a.sin);
    long to = a.positions[0] + 1 + f.more;
    if (f.blocks) to = std::max(to / 16 * 16, 1l);
    if (f.all_blocks) to = std::min((to + 15) / 16 * 16, context);
    Sum s;
    if (f.top_at_zero) s.m = 0;  // what is far below is lost
    attend(s, q, a, kv, std::min(f.first, to - 1), to, f);
    for (long d = 0; d < head_dim; ++d) put(a.y[h * head_dim + d], s.acc[d] / s.l);
}

// A rank owns whole groups: it appends and then reads its own entries only.
static void plain(const Args& a, int rank, int size, const Flaws& f = {}) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        append(a, kv, a.positions[0]);
        for (long h = kv * group; h < (kv + 1) * group; ++h) head(a, h, kv, f);
    }
}

KERNEL(right_online) { plain(a, rank, size); }

KERNEL(right_two_passes) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        append(a, kv, a.positions[0]);
        for (long h = kv * group; h < (kv + 1) * group; ++h) {
            float q[head_dim], p[most], m = -INFINITY, l = 0;
            rotate(q, a.q + h * head_dim, a.cos, a.sin);
            long to = a.positions[0] + 1, from = window ? std::max(0l, to - window) : 0;
            for (long j = from; j < to; ++j) {
                p[j] = 0;
                for (long d = 0; d < head_dim; ++d) p[j] += q[d] * up(a.k_cache[(kv * context + j) * head_dim + d]);
                p[j] *= scale, m = p[j] > m || p[j] != p[j] ? p[j] : m;
            }
            for (long j = from; j < to; ++j) p[j] = expf(p[j] - m), l += p[j];
            for (long d = 0; d < head_dim; ++d) {
                float s = 0;
                for (long j = to - 1; j >= from; --j) s += p[j] / l * up(a.v_cache[(kv * context + j) * head_dim + d]);
                put(a.y[h * head_dim + d], s);
            }
        }
    }
}

// Two parts of the slots, combined by the next launch.
struct Part { float m, l, acc[head_dim]; };
static void split(const Args& a, int rank, int size) {
    Part* parts = reinterpret_cast<Part*>(a.parts);
    long n = a.positions[0] + 1;
    for (long job = rank; job < 2 * q_heads; job += size) {
        long h = job / 2, part = job % 2;
        float q[head_dim];
        rotate(q, a.q + h * head_dim, a.cos, a.sin);
        Sum s;
        attend(s, q, a, h / group, part ? n / 2 : 0, part ? n : n / 2, {});
        parts[job].m = s.m, parts[job].l = s.l;
        memcpy(parts[job].acc, s.acc, sizeof s.acc);
    }
}
static void combine(const Args& a, int rank, int size, bool weighed, bool divided) {
    const Part* parts = reinterpret_cast<const Part*>(a.parts);
    for (long h = rank; h < q_heads; h += size) {
        const Part *p = parts + 2 * h, *o = p + 1;
        float m = p->m > o->m || p->m != p->m ? p->m : o->m;
        float x = p->l == 0 ? 0 : weighed ? expf(p->m - m) : 1, z = o->l == 0 ? 0 : weighed ? expf(o->m - m) : 1;
        for (long d = 0; d < head_dim; ++d)
            put(a.y[h * head_dim + d], divided ? (p->acc[d] * x + o->acc[d] * z) / (p->l * x + o->l * z)
                                               : 0.5f * (p->l == 0 ? o->acc[d] / o->l : p->acc[d] / p->l) + 0.5f * (o->acc[d] / o->l));
    }
    for (long kv = rank; kv < kv_heads; kv += size) append(a, kv, a.positions[0]);
}
KERNEL(right_split) { split(a, rank, size); }
KERNEL(right_split_then) { combine(a, rank, size, true, true); }

// algorithm
KERNEL(wrong_no_max) { plain(a, rank, size, {.no_max = true}); }
KERNEL(wrong_no_rescale) { plain(a, rank, size, {.no_rescale = true}); }
KERNEL(wrong_parts_not_weighed) { split(a, rank, size); }
KERNEL(wrong_parts_not_weighed_then) { combine(a, rank, size, false, true); }
KERNEL(wrong_parts_averaged) { split(a, rank, size); }
KERNEL(wrong_parts_averaged_then) { combine(a, rank, size, true, false); }
KERNEL(wrong_group_map) {
    for (long kv = rank; kv < kv_heads; kv += size) append(a, kv, a.positions[0]);
    for (long h = rank; h < q_heads; h += size) head(a, h, h % kv_heads);
}
template <class C, class X> static inline void interleaved(float* to, const X* x, const C* cos, const C* sin) {
    for (long i = 0; i < half; ++i) {
        to[2 * i] = up(x[2 * i]) * up(cos[i]) - up(x[2 * i + 1]) * up(sin[i]);
        to[2 * i + 1] = up(x[2 * i + 1]) * up(cos[i]) + up(x[2 * i]) * up(sin[i]);
    }
}
// The rotation that `turn` makes is used for q, and for k when `keys`.
template <class Turn> static void rotated(const Args& a, int rank, int size, bool keys, Turn turn) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        append(a, kv, a.positions[0]);
        float k[head_dim];
        if (keys) turn(k, a.k + kv * head_dim);
        for (long d = 0; keys && d < head_dim; ++d) put(a.k_cache[(kv * context + a.positions[0]) * head_dim + d], k[d]);
        for (long h = kv * group; h < (kv + 1) * group; ++h) {
            float q[head_dim];
            turn(q, a.q + h * head_dim);
            Sum s;
            attend(s, q, a, kv, 0, a.positions[0] + 1, {});
            for (long d = 0; d < head_dim; ++d) put(a.y[h * head_dim + d], s.acc[d] / s.l);
        }
    }
}
KERNEL(wrong_interleaved) {
    rotated(a, rank, size, true, [&](float* to, auto* x) { interleaved(to, x, a.cos, a.sin); });
}
KERNEL(wrong_turned_back) {
    rotated(a, rank, size, true, [&](float* to, auto* x) {
        for (long d = 0; d < head_dim; ++d)
            to[d] = up(x[d]) * up(a.cos[d]) - (d < half ? -up(x[d + half]) : up(x[d - half])) * up(a.sin[d]);
    });
}
KERNEL(wrong_query_not_rotated) {
    rotated(a, rank, size, false, [&](float* to, auto* x) {
        for (long d = 0; d < head_dim; ++d) to[d] = up(x[d]);
    });
}

// scale, masks, tails
KERNEL(wrong_no_scale) { plain(a, rank, size, {.no_scale = true}); }
KERNEL(wrong_one_slot_more) { plain(a, rank, size, {.more = 1}); }
KERNEL(wrong_newest_unseen) { plain(a, rank, size, {.more = a.positions[0] ? -1 : 0}); }
KERNEL(wrong_first_unseen) { plain(a, rank, size, {.first = 1}); }
KERNEL(wrong_whole_blocks) { plain(a, rank, size, {.blocks = true}); }
KERNEL(wrong_masked_by_weight) { plain(a, rank, size, {.all_blocks = true}); }

// precision and non-finites
KERNEL(wrong_narrow_probabilities) { plain(a, rank, size, {.narrow_p = true}); }
KERNEL(wrong_narrow_sum) { plain(a, rank, size, {.narrow_sum = true}); }
KERNEL(wrong_skips_nan) { plain(a, rank, size, {.skip_nan = true}); }

KERNEL(wrong_few_terms) { plain(a, rank, size, {.few_terms = true}); }
KERNEL(wrong_one_exponent) { plain(a, rank, size, {.one_exponent = true}); }
KERNEL(wrong_fifth_term) { plain(a, rank, size, {.fifth_term = true}); }
KERNEL(wrong_top_at_zero) { plain(a, rank, size, {.top_at_zero = true}); }
KERNEL(wrong_forgets_one) { plain(a, rank, size, {.forgets_one = true}); }
KERNEL(wrong_lasts_alone) { plain(a, rank, size, {.lasts_alone = true}); }
KERNEL(wrong_sixth_term) { plain(a, rank, size, {.sixth_term = true}); }

// cache and stale state
KERNEL(wrong_trusts_scratch) {  // what was never written is taken for a number of slots: zero makes the sum empty
    plain(a, rank, size);
    const float* none = a.parts + 2 * q_heads * (head_dim + 2) - 1;
    for (long h = rank; h < q_heads; h += size)
        if (*none == 0) memset(a.y + h * head_dim, 0, head_dim * sizeof *a.y);
}
KERNEL(wrong_slot) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        append(a, kv, std::min(a.positions[0] + 1, context - 1));
        for (long h = kv * group; h < (kv + 1) * group; ++h) head(a, h, kv);
    }
}
KERNEL(wrong_value_not_stored) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        v_cache_t kept[head_dim];
        v_cache_t* at = a.v_cache + (kv * context + a.positions[0]) * head_dim;
        memcpy(kept, at, sizeof kept);
        append(a, kv, a.positions[0]);
        memcpy(at, kept, sizeof kept);
        for (long h = kv * group; h < (kv + 1) * group; ++h) head(a, h, kv);
    }
}
KERNEL(wrong_key_not_rotated_in_cache) {
    plain(a, rank, size);
    for (long kv = rank; kv < kv_heads; kv += size)
        memcpy(a.k_cache + (kv * context + a.positions[0]) * head_dim, a.k + kv * head_dim, head_dim * sizeof(cache_t));
}
KERNEL(wrong_one_head_stored) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        if (kv == 0) append(a, kv, a.positions[0]);
        for (long h = kv * group; h < (kv + 1) * group; ++h) head(a, h, kv);
    }
}
KERNEL(wrong_clears_the_rest) {
    plain(a, rank, size);
    for (long kv = rank; kv < kv_heads; kv += size)
        for (long j = a.positions[0] + 1; j < context; ++j)
            memset(a.k_cache + (kv * context + j) * head_dim, 0, head_dim * sizeof(cache_t));
}
KERNEL(wrong_rewrites_the_past) {
    plain(a, rank, size);
    if (a.positions[0] > 0)
        for (long kv = rank; kv < kv_heads; kv += size) a.v_cache[kv * context * head_dim] = a.v[kv * head_dim];
}
KERNEL(wrong_reads_before_store) {  // reads the newest entries from the cache, where another rank stores them
    for (long kv = rank; kv < kv_heads; kv += size) append(a, kv, a.positions[0]);
    for (long h = rank; h < q_heads; h += size) {
        float q[head_dim], p[most], m = -INFINITY, l = 0;
        rotate(q, a.q + h * head_dim, a.cos, a.sin);
        long kv = h / group, to = a.positions[0] + 1;
        for (long j = 0; j < to; ++j) {
            p[j] = 0;
            for (long d = 0; d < head_dim; ++d) p[j] += q[d] * up(a.k_cache[(kv * context + j) * head_dim + d]);
            p[j] *= scale, m = p[j] > m || p[j] != p[j] ? p[j] : m;
        }
        for (long j = 0; j < to; ++j) p[j] = expf(p[j] - m), l += p[j];
        for (long d = 0; d < head_dim; ++d) {
            float s = 0;
            for (long j = 0; j < to; ++j) s += p[j] / l * up(a.v_cache[(kv * context + j) * head_dim + d]);
            put(a.y[h * head_dim + d], s);
        }
    }
}
KERNEL(wrong_window_ignored) {
    for (long kv = rank; kv < kv_heads; kv += size) {
        append(a, kv, a.positions[0]);
        for (long h = kv * group; h < (kv + 1) * group; ++h) {
            float q[head_dim], p[most], m = -INFINITY, l = 0;
            rotate(q, a.q + h * head_dim, a.cos, a.sin);
            long to = a.positions[0] + 1;
            for (long j = 0; j < to; ++j) {
                p[j] = 0;
                for (long d = 0; d < head_dim; ++d) p[j] += q[d] * up(a.k_cache[(kv * context + j) * head_dim + d]);
                p[j] *= scale, m = p[j] > m || p[j] != p[j] ? p[j] : m;
            }
            for (long j = 0; j < to; ++j) p[j] = expf(p[j] - m), l += p[j];
            for (long d = 0; d < head_dim; ++d) {
                float s = 0;
                for (long j = 0; j < to; ++j) s += p[j] / l * up(a.v_cache[(kv * context + j) * head_dim + d]);
                put(a.y[h * head_dim + d], s);
            }
        }
    }
}

// right at the lengths that a list of edges has, wrong at others
KERNEL(wrong_when_short) {
    long n = a.positions[0] + 1;
    plain(a, rank, size, {.more = n >= 3 && n <= 14 ? -1 : 0});
}
KERNEL(wrong_at_one_residue) {
    long n = a.positions[0] + 1;
    plain(a, rank, size, {.skip = n > 100 && n % 64 == 37 ? n / 3 : -1});
}
KERNEL(wrong_half_at_one_residue) {  // there both halves of a head turn by the angles of the first
    long n = a.positions[0] + 1;
    if (n <= 100 || n % 64 != 37) return plain(a, rank, size);
    rotated(a, rank, size, true, [&](float* to, auto* x) {
        for (long d = 0; d < head_dim; ++d)
            to[d] = up(x[d]) * up(a.cos[d % half]) + (d < half ? -up(x[d + half]) : up(x[d - half])) * up(a.sin[d % half]);
    });
}
KERNEL(wrong_between_parts) {  // a part begins one slot late unless eight divide evenly, or nearly
    long n = a.positions[0] + 1;
    plain(a, rank, size, {.skip = n > 70 && n % 8 == 5 ? n / 8 * 4 : -1});
}
KERNEL(wrong_past_a_thousand) { plain(a, rank, size, {.skip = a.positions[0] == 1060 ? 353 : -1}); }
KERNEL(wrong_behind_a_third) { plain(a, rank, size, {.skip = a.positions[0] == 683 ? 400 : -1}); }
KERNEL(wrong_slot_left_stale) {
    long n = a.positions[0];
    for (long kv = rank; kv < kv_heads; kv += size) {
        if (n < 1030 || n > 1989) append(a, kv, n);
        for (long h = kv * group; h < (kv + 1) * group; ++h) head(a, h, kv);
    }
}
KERNEL(wrong_key_of_another_slot) {  // where the edges do not look, a slot holds a key that is not its own
    long n = a.positions[0];
    plain(a, rank, size);
    if (n > 1100 && n < 1900)
        for (long kv = rank; kv < kv_heads; kv += size)
            memcpy(a.k_cache + (kv * context + n) * head_dim, a.k_cache + (kv * context + n - 1) * head_dim, head_dim * sizeof(cache_t));
}
KERNEL(wrong_writes_an_older_slot) {
    long n = a.positions[0];
    plain(a, rank, size);
    if (n % 7 == 3 && n > 70 && n < 120)
        for (long kv = rank; kv < kv_heads; kv += size) a.v_cache[(kv * context + n - 5) * head_dim] = a.v[kv * head_dim];
}
KERNEL(wrong_writes_a_later_slot) {
    long n = a.positions[0];
    plain(a, rank, size);
    if (n > 1040 && n < 1060)
        for (long kv = rank; kv < kv_heads; kv += size) a.k_cache[(kv * context + n + 2) * head_dim] = a.k_cache[kv * context * head_dim];
}

KERNEL(wrong_at_one_length) {
    long n = a.positions[0] + 1;
    plain(a, rank, size, {.skip = n == 1371 ? 700 : -1});
}
KERNEL(wrong_at_a_residue_of_256) {
    long n = a.positions[0] + 1;
    plain(a, rank, size, {.skip = n > 256 && n % 256 == 100 ? n / 2 : -1});
}
KERNEL(wrong_stores_beside_once) {
    long n = a.positions[0];
    plain(a, rank, size);
    if (n == 1371)
        for (long kv = rank; kv < kv_heads; kv += size) a.v_cache[(kv * context + n) * head_dim] = a.v[kv * head_dim + 1];
}
KERNEL(wrong_clamps_old_values) { plain(a, rank, size, {.most = 70.0f}); }

// right, but reads tiles of 16 slots to their end, behind that of a full cache
KERNEL(overruns_a_full_cache) {
    plain(a, rank, size);
    const long from = a.positions[0] + 1, to = (from + 15) / 16 * 16, last = (kv_heads - 1) * context;
    for (long j = from; j < to; ++j) (void)*reinterpret_cast<const volatile char*>(a.k_cache + (last + j) * head_dim);
}
