#include "silu.h"

extern "C" void activate(const activate_args& a, int rank, int size) {
    constexpr long lines = (width + 31) / 32;
    const long begin = lines * rank / size * 32, end = std::min(width, lines * (rank + 1) / size * 32);
    each(end - begin, [&](auto as, long i) {
        as.store(a.y + begin + i, silu(as.load(a.g + begin + i)) * as.load(a.u + begin + i));
    });
}
