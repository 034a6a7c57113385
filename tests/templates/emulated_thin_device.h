// Stands for thin_device.cuh: tensor cores as the PTX manual lays out the fragments of m16n8k16, and copies that arrive
// when they are waited for.
#include "device.cuh"

inline void ask16(Words& into, const void* at, bool there) {
    if (there) into = load16(at);
}

struct Fragments {
    unsigned a[4], b[2];
};
template <class T> float half_of(unsigned word, int which) { return to_float(T{uint16_t(word >> which * 16)}); }
template <class T> struct Product {
    static void add(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        const Fragments mine = {{a0, a1, a2, a3}, {b0, b1}};
        host::together(mine, [&](const Fragments* lanes) {
            for (int i = 0; i < 4; ++i) {
                const int row = host::lane() / 4 + i / 2 * 8, column = host::lane() % 4 * 2 + i % 2;
                double total = sum[i];
                for (int k = 0; k < 16; ++k) {
                    const int quarter = k % 8 / 2;
                    const unsigned a = lanes[row % 8 * 4 + quarter].a[row / 8 + k / 8 * 2];
                    const unsigned b = lanes[column * 4 + quarter].b[k / 8];
                    total += double(half_of<T>(a, k % 2)) * half_of<T>(b, k % 2);
                }
                sum[i] = float(total);
            }
            return 0;
        });
    }
};

inline unsigned shared_at(const void* at) { return unsigned(static_cast<const unsigned char*>(at) - host::shared); }
inline void copy16(unsigned to, const void* from, bool there) {
    host::current->asked.push_back({host::shared + to, from, there});
}
inline void copies_asked() {
    host::current->groups.push_back(host::current->asked);
    host::current->asked.clear();
}
template <int PENDING> void copies_there() {
    auto& groups = host::current->groups;
    while (long(groups.size()) > PENDING) {
        for (const host::Copied& one : groups.front())
            one.there ? std::memcpy(one.to, one.from, 16) : std::memset(one.to, 0, 16);
        groups.erase(groups.begin());
    }
}
