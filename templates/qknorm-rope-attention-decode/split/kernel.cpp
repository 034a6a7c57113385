#include "attention_head.h"

// Floats of a split's partial result: maximum, sum of weights, and from the second cache line on the weighted values.
constexpr long RECORD = head_dim + 16;

extern "C" void attend(const attend_args& a, int rank, int size) {
    const long position = a.positions[0], low = first_slot(position);
    const long length = position + 1 - low, part = ((length + SPLITS - 1) / SPLITS + 15) / 16 * 16;
    constexpr long items = kv_heads * SPLITS;
    alignas(64) Operand q[GROUP][operand_room<head_dim>];
    Running<GROUP, head_dim> run;
    long loaded = -1;
    for (long item = items * rank / size; item < items * (rank + 1) / size; ++item) {
        const long head = item / SPLITS, split = item % SPLITS;
        const long begin = low + split * part, end = std::min(begin + part, position + 1);
        run.clear();
        if (begin < end) {
            if (loaded != head) load_queries(a, head, eps, offset, q), loaded = head;
            if (end == position + 1) append(a, head, position, eps, offset);
            const long base = head * context * head_dim;
            attend_slots<GROUP, head_dim, BLOCK, 2, AHEAD>(
                q, a.k_cache + base, a.v_cache + base, begin, end, scale, run);
        }
        for (int g = 0; g < GROUP; ++g) {
            float* record = a.partial + ((head * GROUP + g) * SPLITS + split) * RECORD;
            record[0] = run.top[g];
            record[1] = run.total[g];
            if (begin < end) std::memcpy(record + 16, run.sum[g], sizeof run.sum[g]);
        }
    }
}

extern "C" void join(const join_args& a, int rank, int size) {
    for (long head = q_heads * rank / size; head < q_heads * (rank + 1) / size; ++head) {
        const float* record = a.partial + head * SPLITS * RECORD;
        float top = -INFINITY, total = 0;
        for (long s = 0; s < SPLITS; ++s) {
            const float here = record[s * RECORD];
            if (record[s * RECORD + 1] != 0 && (here > top || here != here)) top = here;
        }
        alignas(64) float sum[head_dim] = {};
        for (long s = 0; s < SPLITS; ++s) {
            const float* part = record + s * RECORD;
            if (part[1] == 0) continue;  // an empty split has no weight, and its values were never written
            const float keep = std::exp(part[0] - top);
            total += part[1] * keep;
            each(head_dim, [&](auto as, long i) { as.store(sum + i, as.load(sum + i) + as.load(part + 16 + i) * keep); });
        }
        y_t* y = a.y + head * head_dim;
        each(head_dim, [&](auto as, long i) { as.store(y + i, as.load(sum + i) / total); });
    }
}
