// Prologue of decode attention on CPU threads: normalises and rotates the group's queries, and writes the new key and
// value to their cache slot.
//
// A thread prepares the queries of its key/value heads in a buffer of its own, as operands in the cache's type and the
// order of dot.h: it is small, stays in the first-level cache and is read for every slot. The new slot is written by
// the thread that will read it (the owner of the head, or of its split with the newest slot), so no barrier is needed
// between cache write and attention, and one launch does both.
#include "attention.h"

constexpr int GROUP = q_heads / kv_heads;
using Operand = operand_t<k_cache_t>;

// The group's queries as operands; where the cache is bf16 they are rounded to bf16, as in the model's graph.
template <class A>
inline void load_queries(const A& a, long head, float eps, float offset, Operand (&q)[GROUP][operand_room<head_dim>]) {
    alignas(64) float turned[head_dim];
    for (int g = 0; g < GROUP; ++g) {
        const auto* x = a.q + (head * GROUP + g) * head_dim;
        if constexpr (requires { a.q_norm; }) rotated_head<head_dim>(x, a.q_norm, eps, offset, a.cos, a.sin, turned);
        else rotated_head<head_dim>(x, (const q_t*)nullptr, eps, offset, a.cos, a.sin, turned);
        make_operand<k_cache_t, row_order<k_cache_t>, head_dim>(q[g], [&](auto as, long i) { return as.load(turned + i); });
    }
}

// Writes the new key, normalised and rotated, and the new value to their slot.
template <class A> inline void append(const A& a, long head, long position, float eps, float offset) {
    alignas(64) float turned[head_dim];
    const long at = (head * context + position) * head_dim;
    const auto* x = a.k + head * head_dim;
    if constexpr (requires { a.k_norm; }) rotated_head<head_dim>(x, a.k_norm, eps, offset, a.cos, a.sin, turned);
    else rotated_head<head_dim>(x, (const k_t*)nullptr, eps, offset, a.cos, a.sin, turned);
    each(head_dim, [&](auto as, long i) { as.store(a.k_cache + at + i, as.load(turned + i)); });
    each(head_dim, [&](auto as, long i) { as.store(a.v_cache + at + i, as.load(a.v + head * head_dim + i)); });
}

// The first slot that the query at `position` attends to: 0, or the start of the sliding window.
inline long first_slot(long position) { return window ? std::max(0L, position - window + 1) : 0; }
