// Shared by the planted kernels: number formats, and the macro that declares an entry.
#include <atomic>
#define KERNEL(name) extern "C" void name(const name##_args& a, int rank, int size)

static inline float up(bf16 v) {
    uint32_t u = uint32_t(v.bits) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float up(float v) { return v; }
static inline bf16 nearest(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{uint16_t((u >> 16) | 0x40)};
    return bf16{uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
static inline bf16 nearly(float f, uint32_t half) {  // what lies half way goes up when `half` is 0x8000
    uint32_t u;
    memcpy(&u, &f, 4);
    return f != f ? nearest(f) : bf16{uint16_t((u + half) >> 16)};
}
static inline void put(bf16& to, float f) { to = nearest(f); }
static inline void put(float& to, float f) { to = f; }
static inline float held(float f) { return up(nearest(f)); }  // a float rounded to bf16 and back
static inline long first(long n, int rank, int size) { return n * rank / size; }
