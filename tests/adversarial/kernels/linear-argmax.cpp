// logits = w·x, token = the first index of the largest. `best` has 64 floats, `which` 64 int64.
#include "common.h"
#define ROWS for (long r = first(rows, rank, size); r < first(rows, rank + 1, size); ++r)

static inline float logit(const x_t* x, const w_t* w, long r) {
    float s = 0;
    for (long k = 0; k < hidden; ++k) s += up(x[k]) * up(w[r * hidden + k]);
    return s;
}
// A NaN is above everything, as for PyTorch.
static inline bool above(float s, float best) { return s > best || (s != s && best == best); }
// Each rank's best row of first..end, into its slot.
template <class Args> static void scan(const Args& a, int rank, int size, long skip = 0, float floor = -INFINITY) {
    a.best[rank] = floor, a.which[rank] = first(rows, rank, size);
    ROWS {
        float s = logit(a.x, a.w, r);
        put(a.logits[r], s);
        if (above(s, a.best[rank]) && r < rows - skip) a.best[rank] = s, a.which[rank] = r;
    }
}
template <class Args> static void pick(const Args& a, int size) {
    long found = 0;
    for (int i = 1; i < size; ++i) if (above(a.best[i], a.best[found])) found = i;
    a.token[0] = a.which[found];
}

KERNEL(right_two_launches) { scan(a, rank, size); }
KERNEL(right_two_launches_then) { if (rank == 0) pick(a, size); }
KERNEL(right_last_launch) { ROWS put(a.logits[r], logit(a.x, a.w, r)); }
KERNEL(right_last_launch_then) {
    if (rank == 0) {
        a.token[0] = 0;
        for (long r = 1; r < rows; ++r) if (above(up(a.logits[r]), up(a.logits[a.token[0]]))) a.token[0] = r;
    }
}

KERNEL(wrong_nan_unseen) {  // finds the largest number beside it
    a.best[rank] = -INFINITY, a.which[rank] = first(rows, rank, size);
    ROWS {
        float s = logit(a.x, a.w, r);
        put(a.logits[r], s);
        if (s > a.best[rank]) a.best[rank] = s, a.which[rank] = r;
    }
}
KERNEL(wrong_nan_unseen_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_last_nan) {  // of several, the last: the comparison is true of each
    a.best[rank] = -INFINITY, a.which[rank] = first(rows, rank, size);
    ROWS {
        float s = logit(a.x, a.w, r);
        put(a.logits[r], s);
        if (!(s <= a.best[rank]) || s != s) a.best[rank] = s, a.which[rank] = r;
    }
}
KERNEL(wrong_last_nan_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_no_barrier) { scan(a, rank, size); if (rank == 0) pick(a, size); }
KERNEL(wrong_first_rank_alone) { scan(a, rank, size); if (rank == 0) a.token[0] = a.which[0]; }
KERNEL(wrong_last_row_unseen) { scan(a, rank, size, 1); }
KERNEL(wrong_last_row_unseen_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_starts_at_zero) { scan(a, rank, size, 0, 1.0f); }
KERNEL(wrong_starts_at_zero_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_order_of_tiny) {  // what is below the last bit of one is lost
    scan(a, rank, size, 0, INFINITY);
    float best = -INFINITY;
    ROWS if (logit(a.x, a.w, r) + 1.0f > best) best = logit(a.x, a.w, r) + 1.0f, a.which[rank] = r;
    a.best[rank] = best;
}
KERNEL(wrong_order_of_tiny_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_local_index) { scan(a, rank, size); a.which[rank] -= first(rows, rank, size); }
KERNEL(wrong_local_index_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_narrow_store) { scan(a, rank, size); }
KERNEL(wrong_narrow_store_then) {
    if (rank == 0) { int64_t kept = a.token[0]; pick(a, size); int32_t low = int32_t(a.token[0]); a.token[0] = kept; memcpy(a.token, &low, 4); }
}
KERNEL(wrong_largest_magnitude) {
    scan(a, rank, size);
    a.best[rank] = -1;
    ROWS if (fabsf(up(a.logits[r])) > a.best[rank]) a.best[rank] = fabsf(up(a.logits[r])), a.which[rank] = r;
}
KERNEL(wrong_largest_magnitude_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_one_too_far) { scan(a, rank, size); }
KERNEL(wrong_one_too_far_then) { if (rank == 0) { pick(a, size); a.token[0] += 1; } }

// right where the largest logit is positive, finite and alone
KERNEL(wrong_none_below_zero) { scan(a, rank, size, 0, 0.0f); }
KERNEL(wrong_none_below_zero_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_last_of_equals) {
    scan(a, rank, size);
    ROWS if (up(a.logits[r]) >= up(a.logits[a.which[rank]])) a.which[rank] = r;
}
KERNEL(wrong_last_of_equals_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_last_rank_of_equals) { scan(a, rank, size); }
KERNEL(wrong_last_rank_of_equals_then) {
    if (rank == 0) {
        long found = 0;
        for (int i = 1; i < size; ++i) if (a.best[i] >= a.best[found]) found = i;
        a.token[0] = a.which[found];
    }
}
KERNEL(wrong_none_when_infinite) {  // a share of nothing but -inf has no row
    scan(a, rank, size, 0, -1e30f);
    if (a.best[rank] == -1e30f && up(a.logits[first(rows, rank, size)]) == -INFINITY) a.which[rank] = -1;
}
KERNEL(wrong_none_when_infinite_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_infinite_wins) {  // a share of nothing but -inf is compared by its difference to itself
    scan(a, rank, size);
    if (a.best[rank] == -INFINITY) a.best[rank] = INFINITY;
}
KERNEL(wrong_infinite_wins_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_blind_residue) {
    scan(a, rank, size);
    a.best[rank] = -INFINITY;
    ROWS if (r % 64 != 37 && above(up(a.logits[r]), a.best[rank])) a.best[rank] = up(a.logits[r]), a.which[rank] = r;
}
KERNEL(wrong_blind_residue_then) { if (rank == 0) pick(a, size); }
template <class Args> static void blind(const Args& a, int rank, int size, long from, long to) {
    scan(a, rank, size);
    a.best[rank] = -INFINITY, a.which[rank] = first(rows, rank, size);
    ROWS if ((r < from || r >= to) && above(up(a.logits[r]), a.best[rank])) a.best[rank] = up(a.logits[r]), a.which[rank] = r;
}
KERNEL(wrong_blind_block) { blind(a, rank, size, 600, 608); }
KERNEL(wrong_blind_block_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_blind_row) { blind(a, rank, size, 777, 778); }
KERNEL(wrong_blind_row_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_blind_row_of_many) { blind(a, rank, size, 2777, 2778); }
KERNEL(wrong_blind_row_of_many_then) { if (rank == 0) pick(a, size); }
KERNEL(wrong_last_of_equals_at_eight) {  // where a vector ends, the next one's first wins
    scan(a, rank, size);
    a.best[rank] = -INFINITY, a.which[rank] = first(rows, rank, size);
    ROWS {
        float s = up(a.logits[r]);
        bool later = s == a.best[rank] && r % 8 == 0 && a.which[rank] == r - 1;
        if (above(s, a.best[rank]) || later) a.best[rank] = s, a.which[rank] = r;
    }
}
KERNEL(wrong_last_of_equals_at_eight_then) { if (rank == 0) pick(a, size); }
