// Epilogue of decode attention by clusters: the blocks of a key/value head merge their partial results through
// distributed shared memory (compute capability 9.0).
//
//   block n     GROUP * WARPS records of its warps --merge_records--> GROUP records of the block, in its shared memory
//               ---- cluster barrier ----
//   block rank  reads top, total and its 1 / SPLITS of the elements from all SPLITS blocks, merges them (Milakov and
//               Gimelshein 2018), divides and stores; thread = one element, all its reads issued before the first use
//               ---- cluster barrier: shared memory of a block that ends would be gone under its readers ----
//
// Every block works in the merge, and nothing goes through memory: no partial results and no counter of arrivals.
#include "attention_heads.cuh"
#include "cluster.cuh"

// From the records of a block's warps, in `room`, to the output. Behind them `room` has space for GROUP more records.
// All threads of the cluster call it.
template <class A> __device__ inline void join_cluster(const A& a, const Place& place, int rank, float* room) {
    float* mine = room + GROUP * WARPS * RECORD;
    merge_records(room, [&](int g, int i, float top, float total, float sum) {
        float* record = mine + g * RECORD;
        record[i] = sum;
        if (i == 0) record[head_dim] = top, record[head_dim + 1] = total;
    });
    cluster_arrive();
    cluster_wait();
    constexpr int CHUNK = (ELEMENTS + SPLITS - 1) / SPLITS;
    const int until = (rank + 1) * CHUNK < ELEMENTS ? (rank + 1) * CHUNK : ELEMENTS;
    for (int at = rank * CHUNK + int(threadIdx.x); at < until; at += THREADS) {
        const float* record = mine + at / head_dim * RECORD;
        float tops[SPLITS], totals[SPLITS], sums[SPLITS], top, total, sum;
#pragma unroll
        for (int n = 0; n < SPLITS; ++n) {
            tops[n] = read_from(record + head_dim, n);
            totals[n] = read_from(record + head_dim + 1, n);
            sums[n] = read_from(record + at % head_dim, n);
        }
        const auto field_of = [&](int n, int field) { return field == 0 ? tops[n] : field == 1 ? totals[n] : sums[n]; };
        merged(SPLITS, field_of, top, total, sum);
        put(a.y + place.row * ELEMENTS + at, sum / total);
    }
    cluster_arrive();  // no block ends before all have read its shared memory
    cluster_wait();
}
