extern "C" void lookup(const lookup_args& a, int rank, int size) {
    if (rank == 0) std::memcpy(a.y, a.table + a.ids[0] * hidden, hidden * sizeof(y_t));
}
