// The head: rows rounded as logits are, and the index of the largest. Needs `rows_times`.
#include "argmax.cuh"

template <class W, long K, class L, int COUNT, class A, class In>
__device__ inline void choose_row(const A& a, const long (&rows_of)[COUNT], const In& in) {
    Key key = 0;
    rows_times<W, K, 1>(
        rows_of, in, [&](int, int) { return a.w; }, [&](int, long row) { return has_b ? to_float(a.b[row]) : 0.0f; },
        [&](int, long row, const float (&v)[1], float bias) {
            const L rounded = Rounded<L>::of(v[0] + bias);
            if (has_logits) a.logits[row] = rounded;
            const Key one = key_of(to_float(rounded), row);
            key = one > key ? one : key;
        });
    choose<WARPS>(key, reinterpret_cast<Key*>(a.best), reinterpret_cast<unsigned*>(a.arrived), a.token);
}
