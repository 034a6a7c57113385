// Vectors as they are: HOLD 1 keeps them in shared memory, 0 reads them again for every tile, straight to registers.
#include "thin_slice.cuh"

template <class W, long K, class X> struct Vectors<W, K, Plain<X>> {
    using Held = HeldVectors<K>;
    static constexpr bool STAGED = HOLD;
    static constexpr long BYTES = HOLD ? Held::BYTES : 0;
    const X* x;
    Held held;

    __device__ Vectors(const Plain<X>& in, unsigned char* room) : x(in.x), held(room) {}
    __device__ void prepare() {}
    __device__ void stage() {
        if constexpr (HOLD) held.bring(x);
    }
    __device__ Words at(int c) const {
        if constexpr (HOLD) return held.at(c);
        return group() < tokens && Slice<K>::there(c) ? load16(x + group() * K + Slice<K>::column(c)) : Words{};
    }
};
