// Skinny matrix product by multiply-adds in float: row-major weights of 16 bits times `tokens` vectors, 2 to 4. A
// weight is read and unpacked once for all of them.
//
//   warp    one unit of ROWS rows, as in gemv.cuh: ROWS * LOADS loads of 16 bytes per lane in flight, in registers
//   lane    sums[tokens][ROWS] over its columns; butterfly sums at the end; lane token * ROWS + row runs the epilogue
//   vectors | vector 0, permuted as in gemv.cuh | vector 1 | ...     floats in shared memory, LENGTH apart
//
// Unlike thin.cuh it needs no exchange between warps, and a normalised vector is not rounded to 16 bits. Each 16-byte
// read of a vector serves ROWS rows, without bank conflicts. The first loads are issued before the kernel waits for its
// inputs; an RMS norm's scale multiplies the finished sums (vector.cuh).
#include "gemv.cuh"
#include "thin_device.cuh"
#include "thin_units.cuh"

constexpr int SAME_TOKEN = ROWS;  // neighbouring lanes whose results are of one token
// Blocks per multiprocessor, for the launch bounds: 16 warps, so 128 registers per thread at most. While one block
// waits for loads, others multiply.
constexpr int RESIDENT = 16 / WARPS;
static_assert(tokens * ROWS <= WARP);

// Rows as in gemv.cuh with a sum for every vector.
template <class W, long K> struct ThinRows : Rows<W, K> {
    using Base = Rows<W, K>;
    static constexpr long LENGTH = (K + Base::SPAN - 1) / Base::SPAN * Base::SPAN;  // of a vector in shared memory
    static_assert(PER_LOAD<W> == 8);
    float sums[tokens][ROWS] = {};

    __device__ void fetch(long step) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const long k = Base::column(step, j);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                ask16(this->held[r][j], this->base + (r < this->last ? r : this->last) * K + k, k < K);
        }
    }
    __device__ void multiply_all(long step, const float* x) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const long k = Base::column(step, j);
            if (k >= K) continue;
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                float w[ROWS][8];  // four are used: unpacking all eight would take as many registers again
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const Words& words = this->held[r][j];
                    unpack<W>(Words{words.word[i / 2], words.word[i / 2 + 1]}, w[r]);
                }
                const float* at = x + place<8>(k + i);
#pragma unroll
                for (int b = 0; b < tokens; ++b) {
                    const float4 v = *reinterpret_cast<const float4*>(at + b * LENGTH);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        sums[b][r] = fmaf(w[r][0], v.x, sums[b][r]);
                        sums[b][r] = fmaf(w[r][1], v.y, sums[b][r]);
                        sums[b][r] = fmaf(w[r][2], v.z, sums[b][r]);
                        sums[b][r] = fmaf(w[r][3], v.w, sums[b][r]);
                    }
                }
            }
        }
    }
    // All steps, the first of which has been fetched already. Returns the sum that this lane writes.
    __device__ float run_all(const float* x, const float (&factors)[tokens]) {
#pragma unroll 1
        for (long step = 0;; ++step) {
            multiply_all(step, x);
            if (step + 1 == Base::STEPS) break;
            fetch(step + 1);
        }
        float mine = 0;
#pragma unroll
        for (int b = 0; b < tokens; ++b)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float v = sum_over(sums[b][r]) * factors[b];
                mine = threadIdx.x % WARP == b * ROWS + r ? v : mine;
            }
        return mine;
    }
};

// Writes all vectors to shared memory as floats and ends with a block barrier. `factors` are those of each one's sums.
template <long K, class W, class X>
__device__ inline void stage_all(const Plain<X>& in, float* room, float (&factors)[tokens]) {
#pragma unroll
    for (int b = 0; b < tokens; ++b) factors[b] = 1;
    for (long k = threadIdx.x * 8; k < K; k += THREADS * 8)
#pragma unroll
        for (int b = 0; b < tokens; ++b) {
            float v[8];
            unpack<X>(load16(in.x + b * K + k), v);
#pragma unroll
            for (int i = 0; i < 8; ++i) room[b * ThinRows<W, K>::LENGTH + place<8>(k + i)] = v[i];
        }
    __syncthreads();
}
template <long K, class W, class X, class N>
__device__ inline void stage_all(const Normalised<X, N>& in, float* room, float (&factors)[tokens]) {
    __shared__ float partial[tokens][WARPS];
    float squares[tokens] = {};
    for (long k = threadIdx.x * 8; k < K; k += THREADS * 8) {
        float gain[8];
        unpack<N>(stream(in.norm + k), gain);
#pragma unroll
        for (int b = 0; b < tokens; ++b) {
            float v[8];
            unpack<X>(load16(in.x + b * K + k), v);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                squares[b] = fmaf(v[i], v[i], squares[b]);
                room[b * ThinRows<W, K>::LENGTH + place<8>(k + i)] = v[i] * (gain[i] + in.offset);
            }
        }
    }
#pragma unroll
    for (int b = 0; b < tokens; ++b) {
        squares[b] = sum_over(squares[b]);
        if (threadIdx.x % WARP == 0) partial[b][threadIdx.x / WARP] = squares[b];
    }
    __syncthreads();
#pragma unroll
    for (int b = 0; b < tokens; ++b) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += partial[b][w];
        factors[b] = inverse_of(in, total, K);
    }
}

// The interface of `thin_times` in thin.cuh.
template <class W, long K, int SIDE, int COUNT, class In, class At, class More, class Emit>
__device__ inline void thin_times(const long (&rows_of)[COUNT], const In& in, At at, More more, Emit emit) {
    extern __shared__ __align__(16) float room[];
    let_successor_start();
    const Unit unit = unit_of<ROWS>(rows_of, long(blockIdx.x) * WARPS + threadIdx.x / WARP);
    ThinRows<W, K> here[SIDE];
#pragma unroll
    for (int m = 0; m < SIDE; ++m) here[m].begin(at(m, unit.matrix), unit.row, unit.left), here[m].fetch(0);
    wait_for_inputs();
    const int token = threadIdx.x % WARP / ROWS, row = threadIdx.x % WARP % ROWS;
    const bool mine = token < tokens && row < unit.left;
    const float extra = mine ? more(unit.matrix, unit.row + row, token) : 0.0f;
    float factors[tokens], sums[SIDE];
    stage_all<K, W>(in, room, factors);
#pragma unroll
    for (int m = 0; m < SIDE; ++m) sums[m] = here[m].run_all(room, factors);
    if (mine) emit(unit.matrix, unit.row + row, token, sums, extra);
}
