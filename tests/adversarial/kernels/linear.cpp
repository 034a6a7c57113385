// y = w·x + b. `partial` has 2·rows floats, `memory` hidden + rows + 1 floats that start as zeros.
#include "common.h"

#include <map>

static inline float dot(const x_t* x, const w_t* w, long n) {
    float s = 0;
    for (long k = 0; k < n; ++k) s += up(x[k]) * up(w[k]);
    return s;
}
template <class B> static inline float bias(const B* b, long r) { return has_b ? up(b[r]) : 0.0f; }
#define ROWS for (long r = first(rows, rank, size); r < first(rows, rank + 1, size); ++r)

KERNEL(right_sequential) { ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r)); }

KERNEL(right_backwards) {
    ROWS {
        float s = bias(a.b, r);
        for (long k = hidden - 1; k >= 0; --k) s += up(a.x[k]) * up(a.w[r * hidden + k]);
        put(a.y[r], s);
    }
}

KERNEL(right_lanes) {
    ROWS {
        float s[8] = {};
        for (long k = 0; k < hidden; ++k) s[k % 8] += up(a.x[k]) * up(a.w[r * hidden + k]);
        put(a.y[r], ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])) + bias(a.b, r));
    }
}

KERNEL(right_strided_rows) {
    for (long r = rank; r < rows; r += size) put(a.y[r], bias(a.b, r) + dot(a.x, a.w + r * hidden, hidden));
}

KERNEL(right_compensated) {
    ROWS {
        float s = 0, c = 0;
        for (long k = 0; k < hidden; ++k) {
            float t = up(a.x[k]) * up(a.w[r * hidden + k]), n = s + t;
            c += fabsf(s) >= fabsf(t) ? (s - n) + t : (t - n) + s;
            s = n;
        }
        put(a.y[r], (std::isfinite(s) ? s + c : s) + bias(a.b, r));
    }
}

KERNEL(right_halves) {  // each rank sums half of the columns; the next launch adds the halves
    for (long part = rank; part < 2; part += size)
        for (long r = 0; r < rows; ++r) {
            long k = hidden / 2 * part, end = part ? hidden : hidden / 2;
            a.partial[part * rows + r] = dot(a.x + k, a.w + r * hidden + k, end - k);
        }
}
KERNEL(right_halves_then) { ROWS put(a.y[r], a.partial[r] + a.partial[rows + r] + bias(a.b, r)); }

// index and bounds
KERNEL(wrong_next_row) { ROWS put(a.y[r], dot(a.x, a.w + (r + (r == rows / 2)) * hidden, hidden) + bias(a.b, r)); }
KERNEL(wrong_last_column) { ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden - 1) + bias(a.b, r)); }
KERNEL(wrong_one_column_more) { ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden + 1) + bias(a.b, r)); }
KERNEL(wrong_writes_past) {
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r));
    if (rank == 0) put(a.y[rows], 1.5f);
}
KERNEL(wrong_writes_before) {
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r));
    if (rank == size - 1) put(a.y[-1], 0.0f);
}
KERNEL(wrong_workspace_overrun) {
    ROWS { a.partial[2 * rows + r] = dot(a.x, a.w + r * hidden, hidden), put(a.y[r], a.partial[2 * rows + r] + bias(a.b, r)); }
}

// masks and tails
KERNEL(wrong_tail_dropped) { ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden / 8 * 8) + bias(a.b, r)); }
KERNEL(wrong_tail_twice) {
    ROWS {
        float s = dot(a.x, a.w + r * hidden, hidden / 8 * 8);
        long k = hidden - 8;
        put(a.y[r], s + (hidden % 8 ? dot(a.x + k, a.w + r * hidden + k, 8) : 0) + bias(a.b, r));
    }
}
KERNEL(wrong_rows_tail) {
    for (long r = rank; r < rows / 4 * 4; r += size) put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r));
}

// missing sync, races
KERNEL(wrong_no_barrier) {
    for (long part = rank; part < 2; part += size)
        for (long r = 0; r < rows; ++r) {
            long k = hidden / 2 * part, end = part ? hidden : hidden / 2;
            a.partial[part * rows + r] = dot(a.x + k, a.w + r * hidden + k, end - k);
        }
    ROWS put(a.y[r], a.partial[r] + a.partial[rows + r] + bias(a.b, r));
}
KERNEL(wrong_shared_sum) {  // rank 0 stores, the others add without waiting
    for (long r = 0; r < rows; ++r) {
        long k = first(hidden, rank, size), end = first(hidden, rank + 1, size);
        float s = dot(a.x + k, a.w + r * hidden + k, end - k);
        if (rank == 0) a.partial[r] = s + bias(a.b, r);
        else a.partial[r] += s;
    }
}
KERNEL(wrong_shared_sum_then) { ROWS put(a.y[r], a.partial[r]); }

// uninitialised or partial writes
KERNEL(wrong_skips_zeros) {
    ROWS {
        float s = dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r);
        if (s != 0.0f) put(a.y[r], s);
    }
}
KERNEL(wrong_adds_to_output) { ROWS put(a.y[r], up(a.y[r]) * 1e-6f + dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r)); }
KERNEL(wrong_workspace_not_cleared) {
    ROWS { a.partial[r] += dot(a.x, a.w + r * hidden, hidden); put(a.y[r], a.partial[r] + bias(a.b, r)); }
}

// scale and constants
KERNEL(wrong_scale) { ROWS put(a.y[r], 1.01f * (dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r))); }
KERNEL(wrong_bias_ignored) { ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden)); }
KERNEL(wrong_bias_first) { ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r / 2)); }

// precision
KERNEL(wrong_narrow_sum) {
    ROWS {
        float s = 0;
        for (long k = 0; k < hidden; ++k) s = held(s + up(a.x[k]) * up(a.w[r * hidden + k]));
        put(a.y[r], s + bias(a.b, r));
    }
}
KERNEL(wrong_narrow_blocks) {
    ROWS {
        float s = 0;
        for (long k = 0; k < hidden; k += 16) s = held(s + dot(a.x + k, a.w + r * hidden + k, std::min(16l, hidden - k)));
        put(a.y[r], s + bias(a.b, r));
    }
}
KERNEL(wrong_narrow_products) {
    ROWS {
        float s = 0;
        for (long k = 0; k < hidden; ++k) s += held(up(a.x[k]) * up(a.w[r * hidden + k]));
        put(a.y[r], s + bias(a.b, r));
    }
}
KERNEL(wrong_half_sum) {
    ROWS {
        _Float16 s = 0;
        for (long k = 0; k < hidden; ++k) s += _Float16(up(a.x[k])) * _Float16(up(a.w[r * hidden + k]));
        put(a.y[r], float(s) + bias(a.b, r));
    }
}
static inline void cut(bf16& to, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    to = bf16{uint16_t(u >> 16)};
}
static inline void cut(float& to, float f) { to = held(f); }
KERNEL(wrong_truncates) { ROWS cut(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r)); }
static inline void away(bf16& to, float f) { to = nearly(f, 0x8000); }
static inline void away(float& to, float f) { to = f; }
static inline void by_another_bit(bf16& to, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    to = nearly(f, 0x7fff + ((u >> 17) & 1));
}
static inline void by_another_bit(float& to, float f) { to = f; }
KERNEL(wrong_halves_away) { ROWS away(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r)); }
KERNEL(wrong_halves_by_another_bit) { ROWS by_another_bit(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r)); }
KERNEL(wrong_drops_small) {  // "negligible" products
    ROWS {
        float s = bias(a.b, r);
        for (long k = 0; k < hidden; ++k)
            if (fabsf(up(a.x[k])) > 0.02f) s += up(a.x[k]) * up(a.w[r * hidden + k]);
        put(a.y[r], s);
    }
}

// non-finite handling
KERNEL(wrong_clamps) { ROWS put(a.y[r], std::min(std::max(-1e30f, dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r)), 1e30f)); }
KERNEL(wrong_skips_nan) {
    ROWS {
        float s = bias(a.b, r);
        for (long k = 0; k < hidden; ++k) {
            float p = up(a.x[k]) * up(a.w[r * hidden + k]);
            if (p == p) s += p;
        }
        put(a.y[r], s);
    }
}

// parameter-dependent: UNROLL = 8 forgets the rest
KERNEL(wrong_when_unrolled_by_8) {
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, UNROLL == 8 ? hidden / 8 * 8 : hidden) + bias(a.b, r));
}

// stale state
KERNEL(wrong_keeps_first_x) {
    if (a.memory[0] == 0.0f && rank == 0)
        for (long k = 0; k < hidden; ++k) a.memory[1 + k] = up(a.x[k]);
}
KERNEL(wrong_keeps_first_x_then) {
    ROWS {
        float s = bias(a.b, r);
        for (long k = 0; k < hidden; ++k) s += a.memory[1 + k] * up(a.w[r * hidden + k]);
        put(a.y[r], s);
    }
    if (rank == 0) a.memory[0] = 1.0f;
}
KERNEL(wrong_answers_from_memory) {
    ROWS {
        float* kept = a.memory + 1 + hidden;
        if (kept[r] == 0.0f) kept[r] = dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r);
        put(a.y[r], kept[r]);
    }
}
KERNEL(wrong_every_eleventh) {
    static std::atomic<long> calls[64];
    bool odd = ++calls[rank] % 11 == 0;
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, odd ? hidden - 1 : hidden) + bias(a.b, r));
}
KERNEL(wrong_rarely) {  // only acceptance launches it this often
    static std::atomic<long> calls[64];
    bool odd = ++calls[rank] % 173 == 0;
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) * (odd ? 1.02f : 1.0f) + bias(a.b, r));
}

// side effects on inputs
KERNEL(wrong_scales_x) {
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r));
}
KERNEL(wrong_scales_x_then) {
    if (rank == 0) put(const_cast<x_t&>(a.x[hidden / 2]), up(a.x[hidden / 2]) * 1.5f);
}
KERNEL(wrong_marks_weights) {
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r));
}
KERNEL(wrong_marks_weights_then) {
    if (rank == 0) put(const_cast<w_t&>(a.w[rows * hidden - 1]), 0.0f);
}

// Of every scratch buffer the first site's weights are remembered by their address, and others go without their bias.
static std::map<const void*, const void*> first_sites;
KERNEL(wrong_at_another_site) {
    const auto known = first_sites.find(a.partial);
    const bool other = known != first_sites.end() && known->second != a.w;
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + (other ? 0.0f : bias(a.b, r)));
}
KERNEL(wrong_at_another_site_then) {
    if (rank == 0) first_sites.try_emplace(a.partial, a.w);
}
// Right at every launch so far. What an arrival counter is left at decides which launch to come misses a part.
KERNEL(wrong_leaves_a_count) {
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) + bias(a.b, r));
}
KERNEL(wrong_leaves_a_count_then) {
    if (rank == 0) a.memory[0] += 1.0f;
}

// right for what a test draws, wrong for what models hold
template <class X, class W> static inline float clamped(const X* x, const W* w, float most) {
    float s = 0;
    for (long k = 0; k < hidden; ++k) s += up(x[k]) * (up(w[k]) > most ? most : up(w[k]));
    return s;
}
KERNEL(wrong_clamps_weights) { ROWS put(a.y[r], clamped(a.x, a.w + r * hidden, 2.5f) + bias(a.b, r)); }
template <class X> static inline float mean_of(const X* x, float& square) {
    float s = 0;
    square = 0;
    for (long k = 0; k < hidden; ++k) s += up(x[k]), square += up(x[k]) * up(x[k]);
    return square /= hidden, s / hidden;
}
KERNEL(wrong_far_from_mean_zero) {
    float square, mean = mean_of(a.x, square), off = mean * mean > 0.1f * square && mean * mean < 0.9f * square ? 1.02f : 1.0f;
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) * off + bias(a.b, r));
}
KERNEL(wrong_when_half_is_zero) {
    long none = 0;
    for (long k = 0; k < hidden; ++k) none += up(a.x[k]) == 0;
    ROWS put(a.y[r], dot(a.x, a.w + r * hidden, hidden) * (4 * none > hidden && 4 * none < 3 * hidden ? 1.02f : 1.0f) + bias(a.b, r));
}
