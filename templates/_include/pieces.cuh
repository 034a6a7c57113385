// Vector loads and stores of rows for kernels over many tokens: a piece is PER elements, 16 bytes of the region's
// narrowest type (its weights').
//
//   thread    PER elements in float registers, whatever the types of the operands
//   memory    16-bit type: 1 load of 16 bytes;  float beside 16-bit weights: 2 loads of 16 bytes
//
// Every load and store is 16 bytes per thread, neighbouring threads take neighbouring pieces, and each element is
// rounded once, when it is stored. Pieces must begin at multiples of 16 bytes.
#include "device.cuh"

constexpr int PER = 16 / weight_bytes;

// A piece in registers as it lies in memory; a type wider than the narrowest takes two loads.
template <class T> struct Piece {
    static constexpr int LOADS = PER * int(sizeof(T)) / 16;
    static_assert(LOADS >= 1 && LOADS * PER_LOAD<T> == PER, "an operand is narrower than the weights or states");
    Words words[LOADS];

    __device__ void load(const T* at) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) words[j] = load16(at + j * PER_LOAD<T>);
    }
    __device__ void floats(float (&out)[PER]) const {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            float some[PER_LOAD<T>];
            unpack<T>(words[j], some);
#pragma unroll
            for (int i = 0; i < PER_LOAD<T>; ++i) out[j * PER_LOAD<T> + i] = some[i];
        }
    }
};

template <class T> __device__ inline void load_piece(const T* at, float (&out)[PER]) {
    Piece<T> piece;
    piece.load(at);
    piece.floats(out);
}

// Each element rounded once.
template <class T> __device__ inline void store_piece(T* at, const float (&v)[PER]) {
#pragma unroll
    for (int j = 0; j < Piece<T>::LOADS; ++j) {
        Words made;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (sizeof(T) == 4) {
                made.word[i] = __float_as_uint(v[4 * j + i]);
            } else {
                const auto bits = [](float one) { return unsigned(Rounded<T>::of(one).bits); };
                made.word[i] = bits(v[2 * i]) | bits(v[2 * i + 1]) << 16;
            }
        }
        reinterpret_cast<Words*>(at)[j] = made;
    }
}
