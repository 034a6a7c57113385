#include "attention_head.h"

extern "C" void attend(const attend_args& a, int rank, int size) {
    const long position = a.positions[0], low = first_slot(position);
    alignas(64) Operand q[GROUP][operand_room<head_dim>];
    Running<GROUP, head_dim> run;
    for (long head = kv_heads * rank / size; head < kv_heads * (rank + 1) / size; ++head) {
        load_queries(a, head, 0.0f, 0.0f, q);
        append(a, head, position, 0.0f, 0.0f);
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
