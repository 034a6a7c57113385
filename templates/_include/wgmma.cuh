// Matrix products of a warpgroup (four warps): `wgmma`, compute capability 9.0a, with both operands in shared memory.
//
//   operand     rows of 64 elements of 16 bits, eight words of 16 bytes; word w of row r lies at word w ^ (r % 8), and 8
//               rows are 1024 bytes, where a tile begins too. Boxes of a tensor map arrive so (boxes.cuh), and the
//               tensor cores read 8 rows of one word without a bank conflict.
//   descriptor  where it begins and 1024, the distance of groups of 8 rows, in units of 16 bytes, and the kind of
//               swizzle; the next 16 columns begin 32 bytes further
//   sums        warp w has rows 16 w .. 16 w + 15; sum[4 j + e] of lane l is row l / 4 (e < 2) or l / 4 + 8, column
//               8 j + 2 (l % 4) + e % 2
//
// The tensor cores read operands and write sums while the warps go on: 64 x 256 sums take 128 registers a lane, and one
// read of the operands gives 64 x 256 x 16 products, which shared memory can keep up with. Until `products_left`
// nobody may touch the sums or overwrite the operands.
#include "device.cuh"

using Operand = unsigned long long;

// A descriptor whose lower half is `low`; sums of halves need half the instructions.
__device__ inline Operand described(unsigned low) { return Operand(1u << 30 | 64) << 32 | low; }
// Of 64 columns that begin at `tile`.
__device__ inline Operand operand(const void* tile) { return described(shared_address(tile) >> 4 | 1u << 16); }
constexpr Operand NEXT_COLUMNS = 2;  // 16 columns, 32 bytes

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_asked() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the groups of products are unfinished.
template <int PENDING> __device__ inline void products_left() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// After a wait: no use of these sums may move before it.
template <int COUNT> __device__ inline void sums_there(float (&sum)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}
template <int COUNT> __device__ inline void products_there(float (&sum)[COUNT]) {
    products_left<0>();
    sums_there(sum);
}

// Two floats rounded and packed.
__device__ inline unsigned two_bf16(float lower, float upper) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(upper), "f"(lower));
    return r;
}
// Turns words of four lanes: word i of lane q becomes word q of lane i, of each four neighbours.
__device__ inline void turn(unsigned (&word)[4]) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned got = __shfl_xor_sync(ALL, q & 1 ? word[i] : word[i + 1], 1);
        (q & 1 ? word[i] : word[i + 1]) = got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned got = __shfl_xor_sync(ALL, q & 2 ? word[i] : word[i + 2], 2);
        (q & 2 ? word[i] : word[i + 2]) = got;
    }
}

#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)

// sum = a b^T + (add ? sum : 0): 64 rows of a, N rows of b, 16 columns of both. An instruction for every N, because its
// registers stand in its text, and each text in full, because the source check reads instructions as they stand.
template <int N> struct Product;
template <> struct Product<32> {
    static __device__ void of(float (&sum)[16], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
            "}, %16, %17, p, 1, 1, 0, 0;\n\t}"
            : SUMS_16(0)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<64> {
    static __device__ void of(float (&sum)[32], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            "}, %32, %33, p, 1, 1, 0, 0;\n\t}"
            : SUMS_16(0), SUMS_16(16)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<96> {
    static __device__ void of(float (&sum)[48], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47"
            "}, %48, %49, p, 1, 1, 0, 0;\n\t}"
            : SUMS_16(0), SUMS_16(16), SUMS_16(32)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<128> {
    static __device__ void of(float (&sum)[64], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63"
            "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
            : SUMS_64(0)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<160> {
    static __device__ void of(float (&sum)[80], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %82, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
            "%78, %79"
            "}, %80, %81, p, 1, 1, 0, 0;\n\t}"
            : SUMS_64(0), SUMS_16(64)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<192> {
    static __device__ void of(float (&sum)[96], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %98, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
            "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
            "}, %96, %97, p, 1, 1, 0, 0;\n\t}"
            : SUMS_64(0), SUMS_16(64), SUMS_16(80)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<224> {
    static __device__ void of(float (&sum)[112], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %114, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
            "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "
            "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
            "}, %112, %113, p, 1, 1, 0, 0;\n\t}"
            : SUMS_64(0), SUMS_16(64), SUMS_16(80), SUMS_16(96)
            : "l"(a), "l"(b), "r"(add));
    }
};
template <> struct Product<256> {
    static __device__ void of(float (&sum)[128], Operand a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
            "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "
            "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, "
            "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
            "}, %128, %129, p, 1, 1, 0, 0;\n\t}"
            : SUMS_64(0), SUMS_64(64)
            : "l"(a), "l"(b), "r"(add));
    }
};
