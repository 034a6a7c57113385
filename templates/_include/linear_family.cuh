// Rows of every matrix of a family times the staged vector, each with its bias, to its own output.
#include "gemv.cuh"

template <class W, long K, class A, int COUNT, class S>
__device__ inline void family_rows(const A& a, const long (&rows_of)[COUNT], S stage_vector) {
    gemv_rows<W, K>(a.w, rows_of, stage_vector, [&](int matrix, long row, float v) {
        if (has_b) v += to_float(item(a.b, matrix)[row]);
        put(item(a.y, matrix) + row, v);
    });
}
