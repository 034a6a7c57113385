// The right operand of thin.cuh: vectors as they are, [tokens][K] in memory, no norm.
//
//   HOLD 1    each lane copies its words of its warp's slice to shared memory once, and reads them for every unit
//   HOLD 0    each lane loads its words again for every step of every unit, from the caches, straight to registers
//
// Lane 4 g + q has vector g; lanes of vectors that do not exist hold zeros. HOLD 1 takes WARPS * CHUNKS * 64 bytes per
// vector of shared memory; vectors too wide for that want HOLD 0.
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
