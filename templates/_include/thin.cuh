// Skinny matrix product on tensor cores (mma.sync m16n8k16): row-major weights of 16 bits times `tokens` vectors, 8 at
// most. A weight is read once for all of them.
//
//   grid        persistent: block b takes the units b, b + gridDim.x, ...; a unit is TILES tiles of 16 rows
//   warp w      | slice 0 | ... | slice w of k: CHUNKS chunks of 32 columns | ...     split-K over a block's warps
//   lane        4 g + q: rows g and g + 8 of a tile, vector g, 8 columns of a chunk (thin_slice.cuh); loads them itself
//   sums        accumulator fragments --> shared memory [warp][matrix][tile][token][20 floats] --> one thread per row
//               and token adds them in the order of the warps and runs the epilogue
//
// HELD chunks per warp are in flight, 1 KiB each per tile and matrix, in registers or with RING in shared memory
// (cp.async). The first are issued before the kernel waits for its inputs, and a chunk that was multiplied makes room
// at once for the next step's, also the next unit's: the stream of weights never drains. Warps wait for one another
// once per unit, since the exchange has two halves; 20 floats per column of 16 rows make its stores free of bank
// conflicts. Needs `Vectors` (thin_plain.cuh or thin_normalised.cuh).
#include "thin_slice.cuh"
#include "thin_units.cuh"

constexpr int TILE = 16, UNIT = TILE * TILES;
constexpr int SAME_TOKEN = TILE;  // neighbouring lanes whose results are of one token, at least
// Blocks per multiprocessor, for the launch bounds: 16 warps, so 128 registers per thread at most. Where fewer blocks
// run, those of the next kernel find room beside them.
constexpr int RESIDENT = 16 / WARPS;
static_assert(tokens * UNIT <= THREADS);

// One unit of SIDE matrices. A row past the end reads the last one again.
template <class W, long K, int SIDE> struct Tile {
    Unit unit;
    const W* base[SIDE];

    template <int COUNT, class At> __device__ Tile(const long (&rows_of)[COUNT], long index, At at) {
        unit = unit_of<UNIT>(rows_of, index);
#pragma unroll
        for (int m = 0; m < SIDE; ++m) base[m] = at(m, unit.matrix) + unit.row * K;
    }
    // Offset in elements of this lane's row of tile r, g or g + 8, from the unit's first row: less than 2^31.
    __device__ int row(int r, int half) const {
        const int last = unit.left < UNIT ? int(unit.left) - 1 : UNIT - 1, row = r * TILE + half * 8 + group();
        return (row < last ? row : last) * int(K);
    }
};

// A lane's words of the HELD chunks in flight: in registers, or with RING in shared memory, [warp][word][lane].
template <class W, long K, int SIDE> struct Flight {
    using S = Slice<K>;
    static constexpr int WORDS = S::HELD * SIDE * TILES * 2;
    static constexpr long BYTES = RING ? long(WARPS) * WORDS * WARP * sizeof(Words) : 0;
    Words held[RING ? 1 : S::HELD][SIDE][TILES][2] = {};
    Words* ring;
    unsigned address;

    __device__ explicit Flight(unsigned char* room)
        : ring(reinterpret_cast<Words*>(room) + threadIdx.x / WARP * (WORDS * WARP) + threadIdx.x % WARP),
          address(shared_address(ring)) {}
    __device__ static int slot(int j, int m, int r, int half) {
        return (((j * SIDE + m) * TILES + r) * 2 + half) * WARP;
    }
    // Loads chunk j of a step. With RING it commits a group in any case: HELD are pending at every wait.
    __device__ void ask(int j, const Tile<W, K, SIDE>& tile, int step) {
        const int c = step * S::HELD + j;
        const bool there = tile.unit.left > 0 && S::there(c);
#pragma unroll
        for (int m = 0; m < SIDE; ++m)
#pragma unroll
            for (int r = 0; r < TILES; ++r)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int begin = tile.row(r, half) + int(S::column(0)) + step * (S::HELD * CHUNK);
                    const W* from = tile.base[m] + begin + j * CHUNK;
                    if constexpr (RING) {
                        copy16(address + slot(j, m, r, half) * int(sizeof(Words)), from, there);
                    } else {
                        if constexpr (!S::EVEN) held[j][m][r][half] = Words{};
                        ask16(held[j][m][r][half], from, there);
                    }
                }
        if constexpr (RING) copies_asked();
    }
    // Until the oldest chunk in flight has arrived; with registers the first use waits.
    __device__ void wait() const {
        if constexpr (RING) copies_there<S::HELD - 1>();
    }
    // Before the block ends: copies still in flight would write to shared memory that may be another block's by then.
    __device__ void end() const {
        if constexpr (RING) copies_there<0>();
    }
    __device__ Words take(int j, int m, int r, int half) const {
        if constexpr (RING) return ring[slot(j, m, r, half)];
        return held[RING ? 0 : j][m][r][half];
    }
};

// A lane's accumulators. A single tile has two chains, one for each of the two instructions of a chunk, because an
// instruction waits for the one before it on the same accumulator.
template <class W, int SIDE> struct Sums {
    static constexpr int CHAINS = SIDE * TILES == 1 ? 2 : 1;
    float sum[CHAINS][SIDE][TILES][4] = {};

    __device__ void add(int m, int r, const Words& top, const Words& bottom, const Words& column) {
        multiply<W>(sum[0][m][r], sum[CHAINS - 1][m][r], top, bottom, column);
    }
    __device__ float of(int m, int r, int i) const {
        return CHAINS == 1 ? sum[0][m][r][i] : sum[0][m][r][i] + sum[CHAINS - 1][m][r][i];
    }
};

// The exchange of sums through shared memory, double-buffered: a warp that is ahead writes the other half, so one
// barrier per unit is enough. A column of 16 rows takes 20 floats: a warp's store goes to banks 8 q + g, each once.
template <int SIDE> struct Exchange {
    static constexpr int COLUMN = 20, WARP_FLOATS = SIDE * TILES * tokens * COLUMN;
    float* half;
    int other = WARPS * WARP_FLOATS;

    __device__ explicit Exchange(unsigned char* room) : half(reinterpret_cast<float*>(room)) {}
    __device__ static int place(int warp, int m, int r, int column) {
        return warp * WARP_FLOATS + ((m * TILES + r) * int(tokens) + column) * COLUMN;
    }
    template <class W> __device__ void leave(const Sums<W, SIDE>& sums) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = quarter() * 2 + i % 2;
            if (column >= tokens) continue;
#pragma unroll
            for (int m = 0; m < SIDE; ++m)
#pragma unroll
                for (int r = 0; r < TILES; ++r)
                    half[place(threadIdx.x / WARP, m, r, column) + i / 2 * 8 + group()] = sums.of(m, r, i);
        }
    }
    __device__ void take(float (&sum)[SIDE], int row, int token) const {
#pragma unroll
        for (int m = 0; m < SIDE; ++m) {
            sum[m] = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum[m] += half[place(w, m, row / TILE, token) + row % TILE];
        }
    }
    __device__ void turn() { half += other, other = -other; }
};

// Rows of SIDE matrices, side by side, times all vectors of `in`. at(side, matrix) is the pointer to a matrix.
// more(matrix, row, token) loads what the epilogue adds, before the sums are there. emit(matrix, row, token, sums,
// more) is the epilogue, called in the one thread that holds the sums; a thread has one token's alone.
template <class W, long K, int SIDE, int COUNT, class In, class At, class More, class Emit>
__device__ inline void thin_times(const long (&rows_of)[COUNT], const In& in, At at, More more, Emit emit) {
    using S = Slice<K>;
    using V = Vectors<W, K, In>;
    using F = Flight<W, K, SIDE>;
    extern __shared__ __align__(16) unsigned char room[];
    let_successor_start();
    F flight(room);
    V vectors(in, room + F::BYTES);
    Exchange<SIDE> exchange(room + F::BYTES + V::BYTES);
    long index = blockIdx.x;
    Tile<W, K, SIDE> here(rows_of, index, at);
#pragma unroll
    for (int j = 0; j < S::HELD; ++j) flight.ask(j, here, 0);
    vectors.prepare();
    wait_for_inputs();
    vectors.stage();
    __syncwarp();

    const int token = threadIdx.x / UNIT, row = threadIdx.x % UNIT;
    while (here.unit.left) {  // the same for all warps of the block: they meet at the barrier
        const bool mine = token < tokens && row < here.unit.left;
        const float extra = mine ? more(here.unit.matrix, here.unit.row + row, token) : 0.0f;
        const Tile<W, K, SIDE> after(rows_of, index += gridDim.x, at);
        Tile<W, K, SIDE> next = here;
        Sums<W, SIDE> sums;
#pragma unroll 1
        for (int step = 0; step < S::STEPS; ++step) {
            const int following = step + 1 < S::STEPS ? step + 1 : 0;
            if (following == 0) next = after;
            Words column[S::HELD];
            if constexpr (!V::STAGED) {
#pragma unroll
                for (int j = 0; j < S::HELD; ++j) column[j] = vectors.at(step * S::HELD + j);
            }
#pragma unroll
            for (int j = 0; j < S::HELD; ++j) {
                flight.wait();
                const int c = step * S::HELD + j;
                if (S::mine(c)) {
                    if constexpr (V::STAGED) column[j] = vectors.at(c);
#pragma unroll
                    for (int m = 0; m < SIDE; ++m)
#pragma unroll
                        for (int r = 0; r < TILES; ++r)
                            sums.add(m, r, flight.take(j, m, r, 0), flight.take(j, m, r, 1), column[j]);
                }
                flight.ask(j, next, following);
                if constexpr (!RING) __syncwarp();  // else ptxas gathers the loads behind the last product
            }
        }
        exchange.leave(sums);
        __syncthreads();
        float total[SIDE];
        if (mine) {
            exchange.take(total, row, token);
            emit(here.unit.matrix, here.unit.row + row, token, total, extra);
        }
        __syncwarp();  // mma.sync takes whole warps
        exchange.turn();
        here = after;
    }
    flight.end();
}
