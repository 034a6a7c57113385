extern "C" void lookup(const lookup_args& a, int rank, int size) {
    for (int i = rank; i < y_count; i += size)
        std::memcpy(a.y[i], a.table[i] + a.positions[0] * y_numel[i], y_numel[i] * sizeof(y_t));
}
