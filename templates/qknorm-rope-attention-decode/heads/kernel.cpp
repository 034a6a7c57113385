#include "attention.h"

constexpr int GROUP = q_heads / kv_heads;
using Operand = operand_t<k_cache_t>;

// The group's queries as operands; the sixteen-bit rounding is the one that the cache's keys have too.
static void load_queries(const attend_args& a, long head, Operand (&q)[GROUP][operand_room<head_dim>]) {
    alignas(64) float turned[head_dim];
    for (int g = 0; g < GROUP; ++g) {
        rotated_head<head_dim>(a.q + (head * GROUP + g) * head_dim, a.q_norm, eps, offset, a.cos, a.sin, turned);
        make_operand<k_cache_t, row_order<k_cache_t>, head_dim>(q[g], [&](auto as, long i) { return as.load(turned + i); });
    }
}

// The new key and value into their slot. The thread that reads the slot wrote it, so no barrier lies between.
static void append(const attend_args& a, long head, long position) {
    alignas(64) float turned[head_dim];
    const long at = (head * context + position) * head_dim;
    rotated_head<head_dim>(a.k + head * head_dim, a.k_norm, eps, offset, a.cos, a.sin, turned);
    each(head_dim, [&](auto as, long i) { as.store(a.k_cache + at + i, as.load(turned + i)); });
    each(head_dim, [&](auto as, long i) { as.store(a.v_cache + at + i, as.load(a.v + head * head_dim + i)); });
}

extern "C" void attend(const attend_args& a, int rank, int size) {
    const long position = a.positions[0], low = window ? std::max(0L, position - window + 1) : 0;
    alignas(64) Operand q[GROUP][operand_room<head_dim>];
    Running<GROUP, head_dim> run;
    for (long head = kv_heads * rank / size; head < kv_heads * (rank + 1) / size; ++head) {
        load_queries(a, head, q);
        append(a, head, position);
        run.clear();
        const long base = head * context * head_dim;
        attend_slots<GROUP, head_dim, BLOCK, STREAMS, AHEAD>(
            q, a.k_cache + base, a.v_cache + base, low, position + 1, scale, run);
        for (int g = 0; g < GROUP; ++g) {
            y_t* y = a.y + (head * GROUP + g) * head_dim;
            each(head_dim, [&](auto as, long i) { as.store(y + i, as.load(run.sum[g] + i) / run.total[g]); });
        }
    }
}
