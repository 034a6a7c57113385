// Argmax as the epilogue of a matrix product on CPU threads: a NaN comes before everything, then the larger value, then
// the lower index.
//
//   thread (rank)    key and index of the best of its rows, in registers: rows ascend, so only a larger key replaces it
//   memory           rank r writes slots[16 r] (key) and slots[16 r + 1] (index); of_all, in the next launch, reads
//                    them in the order of ranks, which is the order of rows
//
// Keys are integers that keep the order of floats, so comparisons need no special cases, and vectorise: most tiles of
// 16 values do no more than take their maximum and find it no larger. Ranks are 128 bytes apart, two cache lines,
// because the adjacent-line prefetcher fetches lines in pairs: no false sharing.
#include "simd.h"

struct Best {
    int32_t key = INT32_MIN;
    long index = 0;

    // Order-preserving integers: adding zero joins the two zeros, and what is above infinity is a NaN of either sign.
    static int32_t key_of(float v) {
        v += 0.0f;
        int32_t bits;
        std::memcpy(&bits, &v, 4);
        const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
        return (bits & 0x7fffffff) > 0x7f800000 ? INT32_MAX : key;
    }

    // Takes n values, 16 at most, of rows from `first` on. Rows ascend: only a strictly larger one replaces the best.
    template <class T> void see(const T* values, long first, int n) {
        int32_t keys[16], top = INT32_MIN;
        for (int i = 0; i < n; ++i) keys[i] = key_of(to_float(values[i]));
        for (int i = 0; i < n; ++i) top = std::max(top, keys[i]);
        if (top <= key) return;
        for (int i = 0; i < n; ++i)
            if (keys[i] > key) key = keys[i], index = first + i;
    }

    // 16 words apart: a cache line and its neighbour per rank.
    void leave(int64_t* slots, int rank) const {
        slots[rank * 16] = key;
        slots[rank * 16 + 1] = index;
    }
    static int64_t of_all(const int64_t* slots, int size) {
        int64_t key = slots[0], index = slots[1];
        for (int r = 1; r < size; ++r)
            if (slots[r * 16] > key) key = slots[r * 16], index = slots[r * 16 + 1];
        return index;
    }
};
