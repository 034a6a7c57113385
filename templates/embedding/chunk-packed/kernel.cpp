// Every 64 bytes of the layout rows16-k2 hold 2 elements of each of 16 rows. So a row is gathered from hidden / 2
// cache lines, each of which is read once. Threads share the tokens.
extern "C" void lookup(const lookup_args& a, int rank, int size) {
    constexpr long group = 2, groups = (hidden + group - 1) / group;
    const long n = *a.count;
    for (long t = n * rank / size; t < n * (rank + 1) / size; ++t) {
        const table_t* tile = a.table + a.ids[t] / 16 * groups * group * 16 + a.ids[t] % 16 * group;
        y_t* y = a.y + t * hidden;
        for (long k = 0; k < groups; ++k)
            for (long j = 0; j < group && k * group + j < hidden; ++j) y[k * group + j] = tile[k * group * 16 + j];
    }
}
