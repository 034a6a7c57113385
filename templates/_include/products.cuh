// Tensor cores by mma.sync m16n8k16 (compute capability 8.0):
// C[16, 8] += A[16, 16] * B[16, 8], 16-bit operands, float C.
//
// Fragments, by lane = 4 g + q (PTX ISA, "Matrix fragments for
// mma.m16n8k16"); two elements of 16 bits share a register:
//   A          k = 2q, 2q+1   k = 2q+8, 2q+9     B                column g     C        columns 2q, 2q+1
//   row g          a[0]            a[2]          k = 2q, 2q+1        b0        row g       c[0], c[1]
//   row g + 8      a[1]            a[3]          k = 2q+8, 2q+9      b1        row g + 8   c[2], c[3]
//
// C's pairs of columns lie as A's pairs of k do, so what one product gives can be the left operand of the next without
// a shuffle. 16 rows of weights meet up to 8 vectors (thin.cuh), and the queries of a GQA group, each as two rows, meet
// 8 cache slots (attention_tiles.cuh). A product takes as long for one column that is used as for eight.
#include "device.cuh"

template <class T> struct Product;
template <> struct Product<bf16> {
    // Two floats rounded and packed, the first in the low half.
    static __device__ unsigned two(float first, float second) {
        unsigned r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
        return r;
    }
    // C += A * B: one instruction of the whole warp.
    static __device__ void add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
template <> struct Product<fp16> {
    static __device__ unsigned two(float first, float second) {
        unsigned r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
        return r;
    }
    static __device__ void add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
