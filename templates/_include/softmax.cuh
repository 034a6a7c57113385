// What the softmax of every attention here is made of: scores are scaled by log2(e), so that a weight is a power of two.
#include "device.cuh"

constexpr float LOG2E = 1.4426950408889634f;

// Flushes subnormal results: weights below 2^-126 of the largest are 0.
__device__ inline float power_of_two(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
// What is subtracted from scores: 0 while `top` is -inf, as -inf - -inf would make a masked slot's weight NaN.
__device__ inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }
