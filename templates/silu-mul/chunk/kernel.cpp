// Threads share the tokens of the chunk. A row of a token begins with whole vectors wherever the token is in its chunk,
// so each element has the same exponential (silu.h), and the same bits, in every chunk.
#include "silu.h"

extern "C" void activate(const activate_args& a, int rank, int size) {
    constexpr long row = width / tokens;
    const long n = *a.count;
    for (long t = n * rank / size; t < n * (rank + 1) / size; ++t) {
        const g_t* g = a.g + t * row;
        const u_t* u = a.u + t * row;
        y_t* y = a.y + t * row;
        each(row, [&](auto as, long i) { as.store(y + i, silu(as.load(g + i)) * as.load(u + i)); });
    }
}
