// Stands for device.cuh: the same names on the host.
constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;
inline void let_successor_start() {}
inline void wait_for_inputs() {}

inline float to_float(float v) { return v; }
inline float to_float(bf16 v) { return __uint_as_float(unsigned(v.bits) << 16); }
inline float to_float(fp16 v) { return float(__builtin_bit_cast(_Float16, v)); }
template <class T> struct Rounded;
template <> struct Rounded<bf16> {
    static bf16 of(float v) {
        const unsigned bits = __float_as_uint(v);
        return v != v ? bf16{0x7fff} : bf16{uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    }
};
template <> struct Rounded<fp16> {
    static fp16 of(float v) { return __builtin_bit_cast(fp16, _Float16(v)); }
};
template <class T> void put(T* at, float v) { *at = Rounded<T>::of(v); }

struct alignas(16) Words {
    unsigned word[4];
};
template <class T> constexpr int PER_LOAD = 16 / sizeof(T);
inline Words load16(const void* at) { return *static_cast<const Words*>(at); }
inline Words stream(const void* at) { return load16(at); }
template <class T> void unpack(const Words& v, float (&out)[PER_LOAD<T>]) {
    for (int i = 0; i < PER_LOAD<T>; ++i) out[i] = to_float(T{uint16_t(v.word[i / 2] >> i % 2 * 16)});
}
template <int WIDTH = WARP> float sum_over(float v) {
    for (int step = WIDTH / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    return v;
}
template <int WARPS> float sum_over_block(float v, float* room) {
    v = sum_over(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < WARPS; ++w) total += room[w];
    return total;
}
