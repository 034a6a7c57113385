// linear/rows, specialised; generated: edit the template instead
#include <cstdint>
#include <cstddef>
#include <cmath>
#include <cstring>
#include <algorithm>
#include <immintrin.h>
struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };
constexpr long tokens = 1;
constexpr long hidden = 64;
constexpr long rows = 48;
constexpr long cache_l1 = 49152;
constexpr long cache_l2 = 1048576;
constexpr long cache_l3 = 33554432;
constexpr long threads = 2;
constexpr long line_bytes = 64;
constexpr long weight_bytes = 2;
constexpr long ROWS = 4;
constexpr long UNROLL = 1;
constexpr bool isa_sse4_2 = false;
#define ISA_SSE4_2 0
constexpr bool isa_avx = true;
#define ISA_AVX 1
constexpr bool isa_avx2 = true;
#define ISA_AVX2 1
constexpr bool isa_fma = true;
#define ISA_FMA 1
constexpr bool isa_f16c = false;
#define ISA_F16C 0
constexpr bool isa_bmi2 = false;
#define ISA_BMI2 0
constexpr bool isa_avx_vnni = false;
#define ISA_AVX_VNNI 0
constexpr bool isa_avx512f = true;
#define ISA_AVX512F 1
constexpr bool isa_avx512cd = false;
#define ISA_AVX512CD 0
constexpr bool isa_avx512dq = false;
#define ISA_AVX512DQ 0
constexpr bool isa_avx512bw = true;
#define ISA_AVX512BW 1
constexpr bool isa_avx512vl = true;
#define ISA_AVX512VL 1
constexpr bool isa_avx512_vnni = false;
#define ISA_AVX512_VNNI 0
constexpr bool isa_avx512_bf16 = true;
#define ISA_AVX512_BF16 1
constexpr bool isa_avx512_fp16 = false;
#define ISA_AVX512_FP16 0
constexpr bool isa_avx512_vbmi = false;
#define ISA_AVX512_VBMI 0
constexpr bool isa_amx_tile = false;
#define ISA_AMX_TILE 0
constexpr bool isa_amx_bf16 = false;
#define ISA_AMX_BF16 0
constexpr bool isa_amx_int8 = false;
#define ISA_AMX_INT8 0
constexpr bool isa_neon = false;
#define ISA_NEON 0
constexpr bool isa_bf16 = false;
#define ISA_BF16 0
constexpr bool isa_sve = false;
#define ISA_SVE 0
using x_t = bf16;
constexpr bool has_x = true;
constexpr int x_count = 1;
constexpr long x_numel[] = {64};
constexpr long x_rows[] = {1};
using w_t = bf16;
constexpr bool has_w = true;
constexpr int w_count = 2;
constexpr long w_numel[] = {1536, 1536};
constexpr long w_rows[] = {24, 24};
using y_t = bf16;
constexpr bool has_y = true;
constexpr int y_count = 2;
constexpr long y_numel[] = {24, 24};
constexpr long y_rows[] = {1, 1};
using b_t = w_t;
constexpr bool has_b = false;
constexpr int b_count = 0;
constexpr long b_numel[] = {0};
constexpr long b_rows[] = {0};
struct linear_rows_args {
    const x_t* x;
    const w_t* w[2];
    const b_t* b[1];
    y_t* y[2];
    float* partial;
};
#line 1 "linear/rows/kernel.cpp"
#line 1 "_include/vec.h"

static inline int one() { return 1; }
#line 2 "linear/rows/kernel.cpp"
extern "C" void linear_rows(const linear_rows_args& a, int rank, int size) {}
