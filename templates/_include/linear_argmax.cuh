// The head: rows times the staged vector, rounded as logits are, and the index of the largest.
#include "argmax.cuh"
#include "gemv.cuh"

template <class W, long K, class L, class A, int COUNT, class S>
__device__ inline void choose_row(const A& a, const long (&rows_of)[COUNT], S stage_vector) {
    Key key = 0;
    gemv_rows<W, K>(a.w, rows_of, stage_vector, [&](int, long row, float v) {
        if (has_b) v += to_float(a.b[row]);
        const L rounded = Rounded<L>::of(v);
        if (has_logits) a.logits[row] = rounded;
        key = key_of(to_float(rounded), row);
    });
    choose<WARPS>(key, reinterpret_cast<Key*>(a.best), reinterpret_cast<unsigned*>(a.arrived), a.token);
}
