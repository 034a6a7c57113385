// SiLU in float: silu(v) = v * sigmoid(v) = v / (1 + exp(-v)) (Hendrycks and Gimpel 2016).
//
// One value per thread, in registers: the epilogue of gate and up projections, or one pass over both. `__expf` is a
// multiplication by log2(e) and ex2.approx on the special function unit, where expf is a longer sequence. Where exp(-v)
// overflows to infinity the quotient is 0, as it should be.
#include "device.cuh"

__device__ inline float silu(float v) { return v / (1.0f + __expf(-v)); }
