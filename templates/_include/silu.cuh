#include "device.cuh"

__device__ inline float silu(float v) { return v / (1.0f + __expf(-v)); }
