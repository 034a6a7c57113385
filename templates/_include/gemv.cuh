// Matrix times vector (GEMV), row-major weights: a warp owns one unit of ROWS rows and keeps ROWS * LOADS 16-byte loads
// per lane in flight, in registers.
//
//   row r     | lane 0 | lane 1 | ... | lane 31 | lane 0 | ...     PER elements (16 bytes) each; 32 PER are a span
//   vector    | elements 0-3 of lanes 0 to 31 | elements 4-7 of lanes 0 to 31 | next span ...   floats in shared memory
//
// The first LOADS spans of every row are loaded before the kernel waits for its inputs (PDL). Every block converts the
// vector to float once, for all its warps, and every read of it serves ROWS rows. Permuted as drawn (16-bit weights),
// the eight lanes that a 16-byte shared read serves at once cover all 32 banks; in natural order they would be 32 bytes
// apart, and two would meet in each bank. Sums end in all lanes; lane r stores row r.
#include "vector.cuh"

// Where element k of the vector lies in shared memory; lane k / PER % 32 multiplies it.
template <int PER> __device__ inline long place(long k) {
    const long span = long(WARP) * PER, in = k % span;
    return k - in + (in % PER) / 4 * (WARP * 4) + in / PER * 4 + in % 4;
}

// ROWS rows of a matrix with K columns; a row past the end reads the last one again, and its sum is discarded.
template <class W, long K> struct Rows {
    static constexpr long SPAN = long(WARP) * PER_LOAD<W>;
    static constexpr long STEPS = (K + SPAN * LOADS - 1) / (SPAN * LOADS);
    const W* base;
    long last;
    Words held[ROWS][LOADS];
    float sum[ROWS];

    __device__ void begin(const W* matrix, long row, long left) {
        base = matrix + row * K, last = left > 0 ? left - 1 : 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = 0;
    }
    __device__ static long column(long step, int j) {
        return (step * LOADS + j) * SPAN + threadIdx.x % WARP * PER_LOAD<W>;
    }
    __device__ void fetch(long step) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const long k = column(step, j);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                held[r][j] = k < K ? stream(base + (r < last ? r : last) * K + k) : Words{};
        }
    }
    __device__ void multiply(long step, const float* x) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const long k = column(step, j);
            if (k >= K) continue;
            float v[PER_LOAD<W>];
#pragma unroll
            for (int i = 0; i < PER_LOAD<W>; i += 4) {
                const float4 four = *reinterpret_cast<const float4*>(x + place<PER_LOAD<W>>(k + i));
                v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float w[PER_LOAD<W>];
                unpack<W>(held[r][j], w);
#pragma unroll
                for (int i = 0; i < PER_LOAD<W>; ++i) sum[r] = fmaf(w[i], v[i], sum[r]);
            }
        }
    }
    // All steps, the first of which has been fetched already; afterwards every lane has every sum.
    __device__ void run(const float* x) {
        for (long step = 0;; ) {
            multiply(step, x);
            if (++step == STEPS) break;
            fetch(step);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = sum_over(sum[r]);
    }
    // The sum of the row that this lane writes.
    __device__ float mine() const {
        float v = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) v = threadIdx.x % WARP == r ? sum[r] : v;
        return v;
    }
};

// Writes the vector to shared memory as floats and ends with a block barrier. Returns the factor of the sums.
template <long K, class W, class X> __device__ inline float stage(const Plain<X>& in, float* room) {
    for (long k = threadIdx.x * PER_LOAD<X>; k < K; k += THREADS * PER_LOAD<X>) {
        float v[PER_LOAD<X>];
        unpack<X>(load16(in.x + k), v);
#pragma unroll
        for (int i = 0; i < PER_LOAD<X>; ++i) room[place<PER_LOAD<W>>(k + i)] = v[i];
    }
    __syncthreads();
    return 1;
}
template <long K, class W, class X, class N> __device__ inline float stage(const Normalised<X, N>& in, float* room) {
    __shared__ float partial[WARPS];
    float squares = 0;
    for (long k = threadIdx.x * PER_LOAD<X>; k < K; k += THREADS * PER_LOAD<X>) {
        float v[PER_LOAD<X>], n[PER_LOAD<X>];
        unpack<N>(stream(in.norm + k), n);
        unpack<X>(load16(in.x + k), v);
#pragma unroll
        for (int i = 0; i < PER_LOAD<X>; ++i) {
            squares = fmaf(v[i], v[i], squares);
            room[place<PER_LOAD<W>>(k + i)] = v[i] * (n[i] + in.offset);
        }
    }
    return inverse_of(in, sum_over_block<WARPS>(squares, partial), K);
}

// Rows of SIDE matrices, side by side, times the vector `in`. at(side, matrix) is the pointer to a matrix. more(matrix,
// row) loads what the epilogue adds to a row, before its sums are there. emit(matrix, row, sums, more) is the epilogue,
// called in the one lane that holds the sums.
template <class W, long K, int SIDE, int COUNT, class In, class At, class More, class Emit>
__device__ inline void rows_times(const long (&rows_of)[COUNT], const In& in, At at, More more, Emit emit) {
    extern __shared__ __align__(16) float room[];
    let_successor_start();
    const Unit unit = unit_of<ROWS>(rows_of, long(blockIdx.x) * WARPS + threadIdx.x / WARP);
    Rows<W, K> here[SIDE];
#pragma unroll
    for (int m = 0; m < SIDE; ++m) here[m].begin(at(m, unit.matrix), unit.row, unit.left), here[m].fetch(0);
    wait_for_inputs();
    const int lane = threadIdx.x % WARP;
    const bool mine = lane < ROWS && lane < unit.left;
    const float extra = mine ? more(unit.matrix, unit.row + lane) : 0.0f;
    const float factor = stage<K, W>(in, room);
    float sums[SIDE];
#pragma unroll
    for (int m = 0; m < SIDE; ++m) here[m].run(room), sums[m] = here[m].mine() * factor;
    if (mine) emit(unit.matrix, unit.row + lane, sums, extra);
}
