// y = table[ids].
#include "common.h"
KERNEL(right_copy) {
    if (rank == 0) memcpy(a.y, a.table + a.ids[0] * hidden, hidden * sizeof(y_t));
}
KERNEL(right_shared) {
    for (long k = rank; k < hidden; k += size) a.y[k] = a.table[a.ids[0] * hidden + k];
}
KERNEL(wrong_next_row) {
    if (rank == 0) memcpy(a.y, a.table + std::min<long>(a.ids[0] + 1, vocab - 1) * hidden, hidden * sizeof(y_t));
}
KERNEL(wrong_narrow_index) {
    if (rank == 0) memcpy(a.y, a.table + long(int8_t(a.ids[0])) * (a.ids[0] < 128) * hidden, hidden * sizeof(y_t));
}
KERNEL(wrong_copies_more) {
    if (rank == 0) memcpy(a.y, a.table + a.ids[0] * hidden, (hidden + 1) * sizeof(y_t));
}
KERNEL(wrong_copies_less) {
    if (rank == 0) memcpy(a.y, a.table + a.ids[0] * hidden, (hidden - 1) * sizeof(y_t));
}
KERNEL(wrong_rounds_again) {  // adds a constant and takes it away
    for (long k = rank; k < hidden; k += size) {
        volatile float v = up(a.table[a.ids[0] * hidden + k]) + 1024.0f;
        put(a.y[k], v - 1024.0f);
    }
}
static inline long moved(long id, bool wrong) { return wrong ? id - 1 : id; }
KERNEL(wrong_above_3000) {
    long id = a.ids[0];
    if (rank == 0) memcpy(a.y, a.table + moved(id, id > 3000 && id < vocab - 9) * hidden, hidden * sizeof(y_t));
}
KERNEL(wrong_at_one_residue) {
    long id = a.ids[0];
    if (rank == 0) memcpy(a.y, a.table + moved(id, id % 64 == 63) * hidden, hidden * sizeof(y_t));
}
KERNEL(wrong_in_one_block) {
    long id = a.ids[0];
    if (rank == 0) memcpy(a.y, a.table + moved(id, id / 16 == 133) * hidden, hidden * sizeof(y_t));
}
KERNEL(wrong_at_one_row) {
    long id = a.ids[0];
    if (rank == 0) memcpy(a.y, a.table + moved(id, id == 4321) * hidden, hidden * sizeof(y_t));
}
KERNEL(wrong_clamps_large) {
    for (long k = rank; k < hidden; k += size) put(a.y[k], std::min(up(a.table[a.ids[0] * hidden + k]), 8.0f));
}
