// The intrinsics of AVX-512 and AVX-512 BF16 that CPU kernels call, in plain C++, so that a machine without them runs
// their text. Stands behind <immintrin.h>; the kernel's `_mm512_` is spelled `emulated_512_`.
inline __m512i emulated_512_loadu_si512(const void* p) {
    __m512i v;
    std::memcpy(&v, p, 64);
    return v;
}
inline __m512i emulated_512_set1_epi32(int32_t value) {
    int32_t lanes[16];
    for (int32_t& lane : lanes) lane = value;
    return emulated_512_loadu_si512(lanes);
}
inline float emulated_512_reduce_add_ps(__m512 v) {
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += v[i];
    return sum;
}
// The pairs' second elements are added first.
inline __m512 emulated_512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    uint32_t left[16], right[16];
    std::memcpy(left, &a, 64);
    std::memcpy(right, &b, 64);
    const auto widened = [](uint32_t high) {
        float f;
        std::memcpy(&f, &high, 4);
        return f;
    };
    for (int i = 0; i < 16; ++i) {
        sum[i] += widened(left[i] & 0xffff0000u) * widened(right[i] & 0xffff0000u);
        sum[i] += widened(left[i] << 16) * widened(right[i] << 16);
    }
    return sum;
}
struct emulated_halves { uint16_t bits[16]; };
inline emulated_halves emulated_512_cvtneps_pbh(__m512 v) {
    emulated_halves made;
    for (int i = 0; i < 16; ++i) {
        uint32_t u;
        const float one = v[i];
        std::memcpy(&u, &one, 4);
        made.bits[i] = one != one ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
    }
    return made;
}
