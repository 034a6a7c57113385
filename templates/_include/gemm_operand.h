// The operand of a chunk's products: its tokens as rows of floats, or of bf16 for instructions that multiply those.
//
//   xs    token 0   | K elements | zeros to a multiple of 32 | a gap of 32 |      stride_of<K> in all
//         token 1   | ...
//
// A launch of its own writes it, the tokens shared among the threads, so that the products widen no activation again
// for every panel, read neither past a row nor past the chunk, and a norm is made once a token. Rounded once at most.
#include "gemm.h"

// Fills xs for n tokens, row(token, out) writes the K elements of one.
template <class E, long K, class F>
inline void make_operand(typename E::operand* xs, long n, int rank, int size, F row) {
    constexpr long whole = stride_of<K> - 32;
    for (long t = n * rank / size; t < n * (rank + 1) / size; ++t) {
        typename E::operand* out = xs + t * stride_of<K>;
        row(t, out);
        for (long i = K; i < whole; ++i) one::store(out + i, 0.0f);
    }
}

// x [n, K]
template <class E, long K, class X>
inline void rows_operand(const X* x, typename E::operand* xs, long n, int rank, int size) {
    make_operand<E, K>(xs, n, rank, size, [&](long t, auto* out) {
        each(K, [&](auto as, long i) { as.store(out + i, as.load(x + t * K + i)); });
    });
}

// x [HEADS, n, D], read as [n, HEADS * D]: what attention leaves.
template <class E, long HEADS, long D, class X>
inline void heads_operand(const X* x, typename E::operand* xs, long n, int rank, int size) {
    make_operand<E, HEADS * D>(xs, n, rank, size, [&](long t, auto* out) {
        for (long h = 0; h < HEADS; ++h)
            each(D, [&](auto as, long i) { as.store(out + h * D + i, as.load(x + (h * n + t) * D + i)); });
    });
}
