// A group is a row of `hidden` elements: a token's, or one of several heads of a token. Threads share the groups of the
// chunk; one thread makes a group, float inside and rounded once, so that its bits depend on the group alone.
#include "rmsnorm.h"

extern "C" void normalise(const normalise_args& a, int rank, int size) {
    const long count = groups / tokens * *a.count;
    for (long group = count * rank / size; group < count * (rank + 1) / size; ++group) {
        const x_t* x = a.x + group * hidden;
        y_t* y = a.y + group * hidden;
        const float inverse = inverse_rms<hidden>(x, eps);
        each(hidden, [&](auto as, long i) {
            as.store(y + i, as.load(x + i) * inverse * (as.load(a.norm + i) + offset));
        });
    }
}
