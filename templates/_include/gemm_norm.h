// The RMS-normalised tokens of a chunk as the operand of its products: x / sqrt(mean(x^2) + eps) * (norm + offset).
//
// One thread sums a token's row and scales it while it is in the first cache. The row is rounded where the products
// take bf16, and otherwise stays in float.
#include "gemm_operand.h"
#include "rmsnorm.h"

// x [n, K]
template <class E, long K, class X, class N>
inline void norm_operand(
    const X* x, const N* norm, float eps, float offset, typename E::operand* xs, long n, int rank, int size) {
    make_operand<E, K>(xs, n, rank, size, [&](long t, auto* out) {
        const X* row = x + t * K;
        const float inverse = inverse_rms<K>(row, eps);
        each(K, [&](auto as, long i) {
            as.store(out + i, as.load(row + i) * inverse * (as.load(norm + i) + offset));
        });
    });
}
