// The language-model head of one token: logits = W x (+ bias) rounded to their type, and the index of the largest.
//
// The lane that holds a row's sum (`emit` of `rows_times`) rounds it, stores it where logits are asked for, and keeps
// the greatest key of its rows in registers; keys meet over lanes, warps and blocks at the end (argmax.cuh). So the
// logits of the whole vocabulary need not be written and read again by a second kernel. Ties are those of rounded
// logits, as in the graph. Needs a `rows_times`: gemv.cuh or bulk.cuh.
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
