// The right operand of thin.cuh: RMS-normalised vectors, x * rsqrt(mean(x^2) + eps) * (norm + offset) (Zhang and
// Sennrich 2019), rounded once to 16 bits as the graph's own value is, because tensor cores take 16 bits.
//
//   sums of squares    the diagonal of X X^T by m16n8k16, the vectors being both operands: element (g, g) ends in lane
//                      4 g + g / 2; each warp has the part of its slice, and they are added in order in shared memory
//   each lane          normalises its own words of vector g in shared memory, in place
//
// Every block normalises for itself, while its first weights are in flight: so the norm needs no kernel before and no
// trip through memory. Norm weights are no predecessor's output and are loaded before the kernel waits for its inputs.
#include "thin_slice.cuh"

template <class T> __device__ inline Words packed(const float (&v)[8]) {
    Words out;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        out.word[i] = unsigned(Rounded<T>::of(v[2 * i]).bits) | unsigned(Rounded<T>::of(v[2 * i + 1]).bits) << 16;
    return out;
}

template <class W, long K, class X, class N> struct Vectors<W, K, Normalised<X, N>> {
    using S = Slice<K>;
    using Held = HeldVectors<K>;
    static constexpr bool STAGED = true;
    static constexpr int NORM = S::CHUNKS * QUAD;  // words of the weights of the norm in a slice
    static constexpr long BYTES = Held::BYTES + WARPS * (NORM * sizeof(Words) + COLUMNS * sizeof(float));
    const Normalised<X, N>& in;
    Held held;
    Words* norm;
    float* squares;

    __device__ Vectors(const Normalised<X, N>& in, unsigned char* room)
        : in(in), held(room), norm(reinterpret_cast<Words*>(room + Held::BYTES) + threadIdx.x / WARP * NORM),
          squares(reinterpret_cast<float*>(room + Held::BYTES + WARPS * NORM * sizeof(Words))) {}
    __device__ void prepare() {
        for (int i = threadIdx.x % WARP; i < NORM; i += WARP) {
            const long k = (long(threadIdx.x / WARP) * NORM + i) * 8;
            norm[i] = k < K ? stream(in.norm + k) : Words{};
        }
    }
    __device__ void stage() {
        static_assert(sizeof(N) == 2);
        held.bring(in.x);
        float sum[2][4] = {};
#pragma unroll 4
        for (int c = 0; c < S::CHUNKS; ++c) multiply<X>(sum[0], sum[1], held.at(c), Words{}, held.at(c));
        const int diagonal = group() % 2;
        if (group() / 2 == quarter())
            squares[threadIdx.x / WARP * COLUMNS + group()] = diagonal ? sum[0][1] + sum[1][1] : sum[0][0] + sum[1][0];
        __syncthreads();
        if (group() >= tokens) return;
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += squares[w * COLUMNS + group()];
        const float inverse = inverse_of(in, total, K);
#pragma unroll 4
        for (int c = 0; c < S::CHUNKS; ++c) {
            float v[8], gain[8];
            unpack<X>(held.at(c), v);
            unpack<N>(norm[c * QUAD + quarter()], gain);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] *= inverse * (gain[i] + in.offset);
            held.held[c * Held::LANES] = packed<W>(v);
        }
    }
    __device__ Words at(int c) const { return held.at(c); }
};
