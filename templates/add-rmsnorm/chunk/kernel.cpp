// y = RMSNorm(a + b). Normalises the float sum, not its rounded copy `s`, which is stored for later readers. Threads
// share the rows; a row's sum stays in a thread's first-level cache between the two passes.
#include "rmsnorm.h"

static_assert(a_numel[0] == y_numel[0] && b_numel[0] == y_numel[0], "an operand is broadcast");

extern "C" void normalise(const normalise_args& args, int rank, int size) {
    alignas(64) float added[hidden];
    const long count = groups / tokens * *args.count;
    for (long group = count * rank / size; group < count * (rank + 1) / size; ++group) {
        const long row = group * hidden;
        each(hidden, [&](auto as, long i) {
            const auto both = as.load(args.a + row + i) + as.load(args.b + row + i);
            as.store(added + i, both);
            if constexpr (has_s) as.store((y_t*)args.s + row + i, both);
        });
        const float inverse = inverse_rms<hidden>(added, eps);
        each(hidden, [&](auto as, long i) {
            as.store(args.y + row + i, as.load(added + i) * inverse * (as.load(args.norm + i) + offset));
        });
    }
}
