#include "rmsnorm.h"

extern "C" void normalise(const normalise_args& a, int rank, int size) {
    for (long group = groups * rank / size; group < groups * (rank + 1) / size; ++group) {
        const x_t* x = a.x + group * hidden;
        y_t* y = a.y + group * hidden;
        const float inverse = inverse_rms<hidden>(x, eps);
        each(hidden, [&](auto as, long i) {
            as.store(y + i, as.load(x + i) * inverse * (as.load(a.norm + i) + offset));
        });
    }
}
