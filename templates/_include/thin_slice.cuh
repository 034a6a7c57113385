// How the elements of a row and of a vector meet in the lanes of a warp, for one instruction after another.
//
// For m16n8k16 lane 4 g + q brings rows g and g + 8 and vector g, at elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of 16.
// A sum does not care for the order of k so long as both operands agree on it. So a lane takes eight neighbours, of 16
// bytes: four lanes have 32 elements of a row, a chunk, whose halves of every eight feed two instructions.
#include "thin_device.cuh"
#include "vector.cuh"

constexpr int QUAD = 4, CHUNK = QUAD * 8, COLUMNS = 8;
static_assert(tokens <= COLUMNS);

__device__ inline int group() { return threadIdx.x % WARP / QUAD; }
__device__ inline int quarter() { return threadIdx.x % QUAD; }

// A lane's words of rows g and g + 8 and of vector g: the first halves of every eight, then the others.
template <class T>
__device__ inline void multiply(
    float (&first)[4], float (&second)[4], const Words& top, const Words& bottom, const Words& column) {
    const unsigned(&a)[4] = top.word, (&b)[4] = bottom.word, (&x)[4] = column.word;
    Product<T>::add(first, {a[0], b[0], a[1], b[1]}, x[0], x[1]);
    Product<T>::add(second, {a[2], b[2], a[3], b[3]}, x[2], x[3]);
}

// A warp's chunks of a row, all warps' in turn, taken in STEPS of HELD: so many are in flight at once.
template <long K> struct Slice {
    static constexpr int CHUNKS = ((K + CHUNK - 1) / CHUNK + WARPS - 1) / WARPS;
    static constexpr int STEPS = (CHUNKS + LOADS - 1) / LOADS;
    static constexpr int HELD = (CHUNKS + STEPS - 1) / STEPS;
    static constexpr bool WHOLE = CHUNKS == STEPS * HELD, EVEN = WHOLE && K == long(CHUNKS) * CHUNK * WARPS;

    static __device__ long column(int c) { return (long(threadIdx.x / WARP) * CHUNKS + c) * CHUNK + quarter() * 8; }
    // Whether a step's chunk is one of the slice, and whether the row reaches there: at least eight elements or none.
    static __device__ bool mine(int c) { return WHOLE || c < CHUNKS; }
    static __device__ bool there(int c) { return EVEN || (mine(c) && column(c) < K); }
};

// The vectors of a warp's slice, one a column. In BYTES of shared memory: `prepare` what no kernel before writes,
// `stage` the rest, all threads together; then `at` gives a lane's words of a chunk.
template <class W, long K, class In> struct Vectors;

// Words of the vectors in shared memory: a lane reads what it alone has written.
template <long K> struct HeldVectors {
    using S = Slice<K>;
    static constexpr int LANES = QUAD * tokens;
    static constexpr long BYTES = long(WARPS) * S::CHUNKS * LANES * sizeof(Words);
    Words* held;

    __device__ explicit HeldVectors(unsigned char* room)
        : held(reinterpret_cast<Words*>(room) + (threadIdx.x / WARP) * (S::CHUNKS * LANES) + threadIdx.x % WARP) {}
    __device__ Words at(int c) const { return group() < tokens ? held[c * LANES] : Words{}; }
    // Weights on their way to shared memory would have to arrive first if the vectors came by the same road.
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
        __syncwarp();  // tensor cores take whole warps
    }
};
