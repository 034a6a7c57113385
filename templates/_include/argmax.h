// Argmax on the way of a matrix product: NaN above everything, then the larger value, then the lower index.
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

    // Rows ascend, so only a strictly larger value replaces the best.
    template <class T> void see(const T* values, long first, int n) {
        int32_t keys[16], top = INT32_MIN;
        for (int i = 0; i < n; ++i) keys[i] = key_of(to_float(values[i]));
        for (int i = 0; i < n; ++i) top = std::max(top, keys[i]);
        if (top <= key) return;
        for (int i = 0; i < n; ++i)
            if (keys[i] > key) key = keys[i], index = first + i;
    }

    // Ranks keep a line and its neighbour apart, which adjacent-line prefetch would join.
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
