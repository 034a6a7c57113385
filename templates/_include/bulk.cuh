// Matrix times vector (GEMV), row-major weights of 16 bits: each warp streams its rows through a ring in shared memory.
//
//   grid      one block per multiprocessor; PARTS warps are a team, a block has TEAMS teams
//   team t    of block b has the rows b * TEAMS + t + n * (blocks * TEAMS), n = 0, 1, ...
//   warp p    columns [p, p + 1) * K / PARTS of the team's rows, in a ring of its own:
//             | stage 0 | stage 1 | ... | stage DEPTH - 1 |   a stage: a slice of a row, one bulk copy, one mbarrier
//   lane      words lane + 32 t, eight elements each, of a row's slice (shared memory) and of the vector's (registers)
//
// The bytes in flight are DEPTH slices per warp and take no registers; the first DEPTH are issued before the kernel
// waits for its inputs. A warp waits for no other until its sums are complete. Neighbouring lanes read neighbouring
// 16-byte words of a stage: no bank conflicts. Rows are dealt singly, so no two teams differ by more than one row.
// Needs compute capability 9.0.
#include "vector.cuh"
#include "copies.cuh"

constexpr int TEAMS = WARPS / PARTS;

// A lane's elements of one slice of the vector, in registers: words `lane + 32 t` of eight elements.
template <long K> struct Slice {
    static constexpr long LENGTH = K / PARTS, LOADS = LENGTH / 8;
    static constexpr int TURNS = (LOADS + WARP - 1) / WARP;
    float x[TURNS][8];
    float squares = 0;
    Words norm[TURNS];

    static __device__ long at(int t) { return threadIdx.x % WARP + long(t) * WARP; }
    // Loads what no predecessor writes: call it before waiting for inputs.
    template <class X> __device__ void prepare(const Plain<X>&, long) {}
    template <class X, class N> __device__ void prepare(const Normalised<X, N>& in, long begin) {
#pragma unroll
        for (int t = 0; t < TURNS; ++t) norm[t] = at(t) < LOADS ? stream(in.norm + begin + at(t) * 8) : Words{};
    }
    template <class X> __device__ void load(const X* from) {
        static_assert(sizeof(X) == 2);
        Words raw[TURNS];
#pragma unroll
        for (int t = 0; t < TURNS; ++t) raw[t] = at(t) < LOADS ? load16(from + at(t) * 8) : Words{};
#pragma unroll
        for (int t = 0; t < TURNS; ++t) unpack<X>(raw[t], x[t]);
    }
    template <class X> __device__ void scale(const Plain<X>&) {}
    template <class X, class N> __device__ void scale(const Normalised<X, N>& in) {
#pragma unroll
        for (int t = 0; t < TURNS; ++t) {
            float n[8];
            unpack<N>(norm[t], n);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                squares = fmaf(x[t][i], x[t][i], squares);
                x[t][i] *= n[i] + in.offset;
            }
        }
        squares = sum_over(squares);
    }
    template <class W> __device__ float dot(const W* row) const {
        static_assert(sizeof(W) == 2);
        Words w[TURNS];
#pragma unroll
        for (int t = 0; t < TURNS; ++t) w[t] = at(t) < LOADS ? load16(row + at(t) * 8) : Words{};
        float sum[4] = {};
#pragma unroll
        for (int t = 0; t < TURNS; ++t) {
            float v[8];
            unpack<W>(w[t], v);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i % 4] = fmaf(v[i], x[t][i], sum[i % 4]);
        }
        return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
};

// A warp's ring in shared memory: DEPTH stages of BYTES, each with its barrier, filled and read in turn.
template <unsigned BYTES> struct Ring {
    unsigned char* rows;
    Barrier* full;
    int slot = 0;
    unsigned parity = 0;

    // Called by one lane of the warp, before any other use.
    __device__ void make() {
        for (int d = 0; d < DEPTH; ++d) make_barrier(full + d);
        barriers_made();
    }
    __device__ void ask(int into, const void* row) {
        expect(full + into, BYTES);
        copy(rows + into * BYTES, row, BYTES, full + into, read_once());
    }
    __device__ const void* wait() {
        wait_for(full + slot, parity);
        return rows + slot * BYTES;
    }
    __device__ void next() {
        if (++slot == DEPTH) slot = 0, parity ^= 1;
    }
};

// The interface of `rows_times` in gemv.cuh. In a warp's ring the SIDE matrices' slices of one row follow one another,
// then come those of its next row. Lane l keeps the sums of the l-th of every 32 rows of its team, so that 32 rows are
// reduced over the team's warps between two barriers, and the epilogue runs in 32 lanes.
template <class W, long K, int SIDE, int COUNT, class In, class At, class More, class Emit>
__device__ inline void rows_times(const long (&rows_of)[COUNT], const In& in, At at, More more, Emit emit) {
    using S = Slice<K>;
    constexpr unsigned BYTES = S::LENGTH * sizeof(W);
    extern __shared__ __align__(128) unsigned char room[];
    Barrier* barriers = reinterpret_cast<Barrier*>(room + long(WARPS) * DEPTH * BYTES);
    float* sums = reinterpret_cast<float*>(barriers + WARPS * DEPTH);
    float* squares = sums + WARPS * SIDE * WARP;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, part = warp % PARTS;
    Ring<BYTES> ring{room + long(warp) * DEPTH * BYTES, barriers + warp * DEPTH};
    let_successor_start();

    const long step = long(gridDim.x) * TEAMS, first = long(blockIdx.x) * TEAMS + warp / PARTS;
    const auto ask = [&](int into, long turn, int side) {
        const Unit unit = unit_of<1>(rows_of, first + turn * step);
        if (unit.left) ring.ask(into, at(side, unit.matrix) + unit.row * K + part * S::LENGTH);
    };
    if (lane == 0) {
        ring.make();
        for (int d = 0; d < DEPTH; ++d) ask(d, d / SIDE, d % SIDE);
    }
    __syncwarp();
    S slice;
    slice.prepare(in, part * S::LENGTH);
    wait_for_inputs();
    slice.load(in.x + part * S::LENGTH);
    slice.scale(in);
    if (PARTS > 1 && lane == 0) squares[warp] = slice.squares;

    // The count of turns is the block's, not the team's, so that all warps meet at the barriers.
    for (long base = 0; unit_of<1>(rows_of, long(blockIdx.x) * TEAMS + base * step).left; base += WARP) {
        const Unit mine = unit_of<1>(rows_of, first + (base + lane) * step);
        const bool here = mine.left && part == 0;
        const float extra = here ? more(mine.matrix, mine.row) : 0.0f;
        float sum[SIDE] = {};
        for (long turn = base; turn < base + WARP && unit_of<1>(rows_of, first + turn * step).left; ++turn) {
#pragma unroll 1
            for (int side = 0; side < SIDE; ++side) {
                float one = slice.dot(static_cast<const W*>(ring.wait()));
                __syncwarp();
                if (lane == 0) {
                    reads_done();
                    ask(ring.slot, turn + (side + DEPTH) / SIDE, (side + DEPTH) % SIDE);
                }
                ring.next();
                one = sum_over(one);
#pragma unroll
                for (int i = 0; i < SIDE; ++i) sum[i] = turn - base == lane && side == i ? one : sum[i];
            }
        }
        float all = slice.squares;
        if (PARTS > 1) {
#pragma unroll
            for (int i = 0; i < SIDE; ++i) sums[(warp * SIDE + i) * WARP + lane] = sum[i];
            __syncthreads();
            if (part == 0) {
                all = 0;
                for (int p = 0; p < PARTS; ++p) all += squares[warp + p];
#pragma unroll
                for (int i = 0; i < SIDE; ++i) {
                    sum[i] = 0;
                    for (int p = 0; p < PARTS; ++p) sum[i] += sums[((warp + p) * SIDE + i) * WARP + lane];
                }
            }
            __syncthreads();
        }
        if (here) {
            const float factor = inverse_of(in, all, K);
#pragma unroll
            for (int i = 0; i < SIDE; ++i) sum[i] *= factor;
            emit(mine.matrix, mine.row, sum, extra);
        }
    }
}
