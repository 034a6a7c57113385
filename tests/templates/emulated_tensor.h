// Boxes of tensor maps and products of warpgroups (compute capability 9.0a), as the PTX manual describes them.
//
// A map is where a matrix lies, its rows and columns, and the rows of a box. Boxes arrive like bulk copies; products are
// made when they are waited for and not before, so that what is overwritten too early is overwritten in time.
namespace ptx {
struct Matrix {
    const unsigned char* at;
    unsigned long rows, columns, box;
};
// The swizzle of 128 bytes: bits 4 to 6 of an address are changed by bits 7 to 9.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

inline void announce(const void*) {}
inline void box_for(host::Block& block, unsigned to, const void* map, int column, int row, unsigned at) {
    const Matrix& from = *static_cast<const Matrix*>(map);
    host::Gate& gate = host::gate_in(block, at);
    host::shared_at(to, from.box * 128, 128);
    for (unsigned r = 0; r < from.box; ++r)
        for (unsigned word = 0; word < 8; ++word) {
            const unsigned long y = row + r, x = column + 8 * word;
            const bool there = y < from.rows && x < from.columns;
            unsigned char* place = block.room + swizzled(to + r * 128 + word * 16);
            host::ask(
                block.coming, {place, there ? from.at + 2 * (y * from.columns + x) : from.at, there ? 16u : 0u,
                               there ? 0u : 16u, at});
        }
    if (host::launch.backwards) gate.bytes -= from.box * 128, host::settle(gate);
}
inline void copy_box(unsigned to, const void* map, int column, int row, unsigned at, unsigned long long) {
    box_for(*host::current->block, to, map, column, row, at);
}
inline bool at_work(const host::Block& block) {
    for (unsigned t = 0; t < host::launch.threads; ++t)
        if (!block.threads[t].done) return true;
    return false;
}
inline void copy_box_to_cluster(
    unsigned to, const void* map, int column, int row, unsigned at, unsigned short blocks, unsigned long long) {
    if (blocks >> host::launch.cluster) host::wrong("a copy goes to a block that is not in the cluster");
    for (unsigned b = 0; b < host::launch.cluster; ++b) {
        if (!(blocks >> b & 1)) continue;
        if (!at_work(host::blocks[b])) host::wrong("a copy goes to a block that has ended");
        box_for(host::blocks[b], to, map, column, row, at);
    }
}
inline void arrive_at(host::Block& block, unsigned at) {
    host::Gate& gate = host::gate_in(block, at);
    --gate.arrivals, ++host::progress;
    host::settle(gate);
}
inline void arrive_at_gate(unsigned at) { arrive_at(*host::current->block, at); }
inline void arrive_in_block(unsigned at, unsigned rank) {
    if (rank >= host::launch.cluster || !at_work(host::blocks[rank]))
        host::wrong("a thread arrives at a barrier of a block that has ended");
    arrive_at(host::blocks[rank], at);
}

// An element of an operand whose descriptor this is, by its distance in bytes from where that begins, unswizzled.
inline double element_at(unsigned long long operand, unsigned distance) {
    if (operand >> 32 != (1ull << 30 | 64)) host::wrong("an operand is described in a way that is not emulated");
    const unsigned address = swizzled(unsigned(operand & 0x3fff) * 16 + distance);
    Bits bits;
    memcpy(&bits, host::current->block->room + address, sizeof(bits));
    return float_of_bf16(bits);
}
// Element `column` of row `row` of an operand whose descriptor this is.
inline double element(unsigned long long operand, unsigned row, unsigned column) {
    return element_at(operand, row * 128 + column * 2);
}
// The same of a right operand that is turned: its rows are columns in memory, 64 of them in a group.
inline double turned_element(unsigned long long operand, unsigned row, unsigned column) {
    const unsigned apart = unsigned(operand >> 16 & 0x3fff) * 16;  // of groups
    return element_at(operand, row / 64 * apart + column * 128 + row % 64 * 2);
}
// Element `column` of row 0 or 8 of a lane's rows, of a left operand in the registers of four lanes.
inline double held_element(const host::Product& one, unsigned lower, unsigned column) {
    const unsigned word = one.words[column % 8 / 2][column / 8 * 2 + lower];
    return float_of_bf16(word >> column % 2 * 16 & 0xffff);
}
struct Quad {
    unsigned words[4];
};
template <class... A> void multiply_held(float& sum, A&&... rest) {
    constexpr unsigned COUNT = sizeof...(rest) - 5;
    const unsigned long long last[] = {(unsigned long long)(rest)...};
    host::Thread& mine = *host::current;
    host::Product made = {&sum, COUNT, 0, last[COUNT + 3], last[COUNT + 4] != 0, true, mine.product_groups, {}};
    const Quad own = {{unsigned(last[COUNT - 1]), unsigned(last[COUNT]), unsigned(last[COUNT + 1]), unsigned(last[COUNT + 2])}};
    host::together(own, [&](const Quad* all) {
        for (unsigned q = 0; q < 4; ++q)
            for (unsigned i = 0; i < 4; ++i) made.words[q][i] = all[host::lane() / 4 * 4 + q].words[i];
        return 0;
    });
    mine.products.push(made);
}
template <class... A> void multiply_tile(float& sum, A&&... rest) {
    constexpr unsigned COUNT = sizeof...(rest) - 2;
    const unsigned long long last[] = {(unsigned long long)(rest)...};
    host::Thread& mine = *host::current;
    mine.products.push(
        {&sum, COUNT, last[COUNT - 1], last[COUNT], last[COUNT + 1] != 0, false, mine.product_groups, {}});
}
inline void end_products() { ++host::current->product_groups; }
inline void await_products(unsigned pending) {
    host::Thread& mine = *host::current;
    size_t made = 0;
    for (; made < mine.products.count && mine.products.items[made].group + pending < mine.product_groups; ++made) {
        const host::Product& one = mine.products.items[made];
        for (unsigned i = 0; i < one.count; ++i) {
            const unsigned row = host::warp() % 4 * 16 + host::lane() / 4 + i % 4 / 2 * 8;
            const unsigned column = i / 4 * 8 + host::lane() % 4 * 2 + i % 2;
            double total = one.add ? one.sums[i] : 0.0;
            for (unsigned k = 0; k < 16; ++k)
                total += one.held ? held_element(one, i % 4 / 2, k) * turned_element(one.b, column, k)
                                  : element(one.a, row, k) * element(one.b, column, k);
            one.sums[i] = float(total);
        }
    }
    mine.products.drop(made);
    if (made) host::meet(mine.block->four_warps[host::warp() / 4], 4 * host::LANES);  // their products end together
}
}  // namespace ptx
