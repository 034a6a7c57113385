// What every decode attention does before it attends: turn the group's queries, put the new key and value in their slot.
#include "attention.h"

constexpr int GROUP = q_heads / kv_heads;
using Operand = operand_t<k_cache_t>;

// The group's queries as operands; where the cache is bf16 they round to it, as the model's own do.
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

// The new key and value into their slot. The thread that reads the slot wrote it, so no barrier lies between.
template <class A> inline void append(const A& a, long head, long position, float eps, float offset) {
    alignas(64) float turned[head_dim];
    const long at = (head * context + position) * head_dim;
    const auto* x = a.k + head * head_dim;
    if constexpr (requires { a.k_norm; }) rotated_head<head_dim>(x, a.k_norm, eps, offset, a.cos, a.sin, turned);
    else rotated_head<head_dim>(x, (const k_t*)nullptr, eps, offset, a.cos, a.sin, turned);
    each(head_dim, [&](auto as, long i) { as.store(a.k_cache + at + i, as.load(turned + i)); });
    each(head_dim, [&](auto as, long i) { as.store(a.v_cache + at + i, as.load(a.v + head * head_dim + i)); });
}

// The first slot that the query at `position` sees.
inline long first_slot(long position) { return window ? std::max(0L, position - window + 1) : 0; }
