// AMX: eight tile registers of 16 rows x 64 bytes, and a product of two of them (TDPBF16PS).
//
//   c [rows][16 floats]  +=  a [rows][16 pairs of bf16]  x  b [16 pairs][16 columns of 2 bf16]
//
//   tiles 0-3   sums        tiles 4-5   tokens, `rows` of them        tiles 6-7   weights, always 16 pairs
//
// Every operand is zeroed after its last product. Where the core's other hardware thread runs too, even if it only spins,
// a load of a tile waits for the product that read the tile before, as if no register were left to rename it to; a zeroed
// tile seems to need none. Four loads and four products then take 64 ns instead of 116, and 23 ns either way where the
// other thread sleeps (measured on a Xeon, family 6 model 207, at 2.8 GHz).
//
// The configuration is the thread's: one launch sets it and releases it, as an unreleased one slows context switches
// and keeps the core from deeper sleep. Numbers below the smallest normal one count as zero, as the instruction has it.
//
// Where the instructions are missing, and with TILES_EMULATED, plain C++ has their semantics, the order of the sums
// included, so that a kernel's arithmetic can be tested on any machine.
#include "simd.h"

#if ISA_AMX_BF16 && !defined(TILES_EMULATED)

struct TileUnit {
    TileUnit() { shape(TILE_ROWS); }
    ~TileUnit() { _tile_release(); }
    TileUnit(const TileUnit&) = delete;
    TileUnit& operator=(const TileUnit&) = delete;
    static constexpr int TILE_ROWS = 16;

    // Sums and tokens have `rows` rows from here on; all tiles become zero.
    static void shape(int rows) {
        alignas(64) volatile uint8_t config[64] = {};  // the intrinsic says that it reads 8 bytes, so others must stay
        config[0] = 1;
        for (int tile = 0; tile < 8; ++tile) {
            config[16 + 2 * tile] = 64;
            config[48 + tile] = uint8_t(tile < 6 ? rows : TILE_ROWS);
        }
        _tile_loadconfig(const_cast<const uint8_t*>(config));
    }

    // The intrinsics paste the number of a tile into their text.
#define TILES_EACH(DO) \
    if constexpr (N == 0) DO(0); \
    else if constexpr (N == 1) DO(1); \
    else if constexpr (N == 2) DO(2); \
    else if constexpr (N == 3) DO(3); \
    else if constexpr (N == 4) DO(4); \
    else if constexpr (N == 5) DO(5); \
    else if constexpr (N == 6) DO(6); \
    else DO(7)
#define TILES_ZERO(number) _tile_zero(number)
#define TILES_LOAD(number) _tile_loadd(number, from, stride)
#define TILES_STORE(number) _tile_stored(number, to, stride)
    template <int N> static void zero() { TILES_EACH(TILES_ZERO); }
    // Rows lie `stride` bytes apart. The fence: the intrinsic does not say that it reads memory.
    template <int N> static void load(const void* from, long stride) {
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        TILES_EACH(TILES_LOAD);
    }
    template <int N> static void store(void* to, long stride) { TILES_EACH(TILES_STORE); }

    // Adds the product of tokens A and weights B, 0 or 1 each, to their sums.
    template <int A, int B> static void multiply() {
        if constexpr (A == 0 && B == 0) _tile_dpbf16ps(0, 4, 6);
        else if constexpr (A == 0) _tile_dpbf16ps(1, 4, 7);
        else if constexpr (B == 0) _tile_dpbf16ps(2, 5, 6);
        else _tile_dpbf16ps(3, 5, 7);
    }
};

#else

struct TileUnit {
    static constexpr int TILE_ROWS = 16;
    uint8_t data[8][TILE_ROWS][64] = {};
    int rows = TILE_ROWS;

    void shape(int count) {
        rows = count;
        std::memset(data, 0, sizeof data);
    }
    template <int N> int rows_of() const { return N < 6 ? rows : TILE_ROWS; }
    template <int N> void zero() { std::memset(data[N], 0, sizeof data[N]); }
    template <int N> void load(const void* from, long stride) {
        for (int r = 0; r < rows_of<N>(); ++r) std::memcpy(data[N][r], static_cast<const char*>(from) + r * stride, 64);
    }
    template <int N> void store(void* to, long stride) const {
        for (int r = 0; r < rows_of<N>(); ++r) std::memcpy(static_cast<char*>(to) + r * stride, data[N][r], 64);
    }
    static float normal(float v) { return std::fabs(v) < 1.17549435e-38f ? std::copysign(0.0f, v) : v; }
    static float half(uint32_t high) {
        float f;
        std::memcpy(&f, &high, 4);
        return normal(f);
    }

    // The first elements of the pairs and the second ones are added up apart, and both sums to the old one.
    template <int A, int B> void multiply() {
        for (int m = 0; m < rows; ++m) {
            float first[16] = {}, second[16] = {}, old[16];
            for (int k = 0; k < 16; ++k) {
                uint32_t a, b[16];
                std::memcpy(&a, data[4 + A][m] + 4 * k, 4);
                std::memcpy(b, data[6 + B][k], 64);
                const float left = half(a << 16), right = half(a & 0xffff0000u);
                for (int n = 0; n < 16; ++n) first[n] = normal(std::fma(left, half(b[n] << 16), first[n]));
                for (int n = 0; n < 16; ++n) second[n] = normal(std::fma(right, half(b[n] & 0xffff0000u), second[n]));
            }
            std::memcpy(old, data[2 * A + B][m], 64);
            for (int n = 0; n < 16; ++n) old[n] = normal(normal(old[n]) + normal(first[n] + second[n]));
            std::memcpy(data[2 * A + B][m], old, 64);
        }
    }
};

#endif
