// How the elements of rows and vectors lie in the lanes of a warp, for m16n8k16 (products.cuh) after 16-byte loads.
//
//   the instruction wants, lane 4 g + q     rows g and g + 8, vector g, at k = 2q, 2q + 1, 2q + 8, 2q + 9 of 16
//   the lane loads, 16 bytes of each        elements 8q ... 8q + 7 of a chunk of 32: four for each of two instructions
//
//       chunk    | q = 0        | q = 1        | q = 2        | q = 3        |     64 contiguous bytes of each row
// A sum over k may take k in any order as long as both operands agree on it. So k is permuted: what lies at 8q ... 8q +
// 3 of the chunk is the first instruction's k = 2q, 2q + 1, 2q + 8, 2q + 9. Fragments come straight from 16-byte loads
// of row-major memory: no ldmatrix, no shuffle, no packed copy of the weights.
#include "thin_device.cuh"
#include "vector.cuh"

constexpr int QUAD = 4, CHUNK = QUAD * 8, COLUMNS = 8;
static_assert(tokens <= COLUMNS);

__device__ inline int group() { return threadIdx.x % WARP / QUAD; }
__device__ inline int quarter() { return threadIdx.x % QUAD; }

// The two instructions of a chunk. `top`, `bottom` and `column` are a lane's words of row g, row g + 8 and vector g.
template <class T>
__device__ inline void multiply(
    float (&first)[4], float (&second)[4], const Words& top, const Words& bottom, const Words& column) {
    const unsigned(&a)[4] = top.word, (&b)[4] = bottom.word, (&x)[4] = column.word;
    Product<T>::add(first, {a[0], b[0], a[1], b[1]}, x[0], x[1]);
    Product<T>::add(second, {a[2], b[2], a[3], b[3]}, x[2], x[3]);
}

// A warp's slice of k: CHUNKS chunks that follow one another, taken in STEPS of HELD, the number in flight at once.
template <long K> struct Slice {
    static constexpr int CHUNKS = ((K + CHUNK - 1) / CHUNK + WARPS - 1) / WARPS;
    static constexpr int STEPS = (CHUNKS + LOADS - 1) / LOADS;
    static constexpr int HELD = (CHUNKS + STEPS - 1) / STEPS;
    static constexpr bool WHOLE = CHUNKS == STEPS * HELD, EVEN = WHOLE && K == long(CHUNKS) * CHUNK * WARPS;

    static __device__ long column(int c) { return (long(threadIdx.x / WARP) * CHUNKS + c) * CHUNK + quarter() * 8; }
    // Whether chunk c belongs to the slice, and whether the row reaches this lane's eight elements: all or none.
    static __device__ bool mine(int c) { return WHOLE || c < CHUNKS; }
    static __device__ bool there(int c) { return EVEN || (mine(c) && column(c) < K); }
};

// The vectors of a warp's slice, the right operand, in BYTES of shared memory. `prepare` loads what no predecessor
// writes, `stage` the rest, called by all threads; then `at` gives a lane's word of a chunk.
template <class W, long K, class In> struct Vectors;

// The vectors in shared memory as fragments, [warp][chunk][lane]: a lane reads what it alone has written.
template <long K> struct HeldVectors {
    using S = Slice<K>;
    static constexpr int LANES = QUAD * tokens;
    static constexpr long BYTES = long(WARPS) * S::CHUNKS * LANES * sizeof(Words);
    Words* held;

    __device__ explicit HeldVectors(unsigned char* room)
        : held(reinterpret_cast<Words*>(room) + (threadIdx.x / WARP) * (S::CHUNKS * LANES) + threadIdx.x % WARP) {}
    __device__ Words at(int c) const { return group() < tokens ? held[c * LANES] : Words{}; }
    // With RING by plain loads: groups of cp.async complete in order, so waiting for the vectors would mean waiting for
    // the weights that were issued before them.
    template <class X> __device__ void bring(const X* x) {
        static_assert(sizeof(X) == 2);
        if (group() < tokens) {
            const X* first = x + group() * K;
            const unsigned to = shared_address(held);
#pragma unroll 8
            for (int c = 0; c < S::CHUNKS; ++c) {
                const bool there = S::there(c);
                const X* from = first + (there ? S::column(0) + c * CHUNK : 0);
                if constexpr (RING)
                    held[c * LANES] = there ? load16(from) : Words{};
                else
                    copy16(to + c * LANES * int(sizeof(Words)), from, there);
            }
        }
        if constexpr (!RING) {
            copies_asked();
            copies_there<0>();
        }
        __syncwarp();  // mma.sync takes whole warps
    }
};
