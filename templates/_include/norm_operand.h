// The RMS-normalised activation, x / sqrt(mean(x^2) + eps) * (norm + offset), as the operand of dot products: in the
// type and order that dot.h wants, rounded once at most.
//
// Every CPU thread makes the whole vector for itself, in a buffer of its own: at these sizes that costs less than the
// barrier that sharing would take, and the buffer stays in the cache of the core that reads it for every row.
#include "dot.h"
#include "rmsnorm.h"

template <class W, Order O, long K, class X, class N>
inline const operand_t<W>* norm_operand(const X* x, const N* norm, float eps, float offset, operand_t<W>* room) {
    const float inverse = inverse_rms<K>(x, eps);
    return make_operand<W, O, K>(
        room, [&](auto as, long i) { return as.load(x + i) * inverse * (as.load(norm + i) + offset); });
}
