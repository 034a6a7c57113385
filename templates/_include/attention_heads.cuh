// Prologue of decode attention: normalises (QK-norm, where the model has it) and rotates the group's queries and the
// new key, writes the new cache slot, and starts the running softmax with it.
//
// RoPE (Su et al. 2021) by halves, for each head:
//     y[i] = x[i] cos[i] - x[i + HALF] sin[i]  for i < HALF,   y[i] = x[i] cos[i] + x[i - HALF] sin[i]  from HALF on
//   lane of a group    | 0 ...                      | ... USED_LANES - 1         | idle lanes up to SLOT_LANES |
//   elements           | 0 ... HALF - 1             | HALF ... head_dim - 1      |  8 per lane, in registers
//                        `---- partners by one shuffle per element ----'
//
// On CUDA cores (attention_lanes.cuh) every group of SLOT_LANES lanes prepares all query heads and keeps them in
// registers, where it multiplies them: no exchange. On tensor cores (attention_tiles.cuh) the first warp does so for
// the block, through shared memory. Only one warp, the first of the last split, handles the newest slot. It takes the
// new key and value from the inputs, not from the cache: all other slots may be loaded before the inputs are there
// (PDL).
#include "attention.cuh"

constexpr int HALF = head_dim / 2;
constexpr int HALF_LANES = HALF / PER_LANE, HALF_REST = HALF % PER_LANE;

// Eight elements of any type as they lie in memory, and each as a float.
template <class T> struct Eight {
    Words words[sizeof(T) / 2];
    __device__ void load(const T* at, bool there) {
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 2); ++i) words[i] = there ? load16(at + i * PER_LOAD<T>) : Words{};
    }
    __device__ float operator[](int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(words[i / 4].word[i % 4]);
        const unsigned word = words[0].word[i / 2];
        return to_float(T{(unsigned short)(i % 2 ? word >> 16 : word & 0xffffu)});
    }
};

// Normalises (if NORM) and rotates one head in place; each lane of a group holds PER_LANE elements of it.
template <bool NORM, class N, class C, class S>
__device__ inline void rotate(
    float (&x)[PER_LANE], const Eight<N>& norm, const Eight<C>& cos, const Eight<S>& sin, float eps, float offset) {
    const int lane = threadIdx.x % WARP, part = lane % SLOT_LANES;
    if (NORM) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) squares = fmaf(x[i], x[i], squares);
        const float inverse = rsqrtf(sum_over<SLOT_LANES>(squares) / float(head_dim) + eps);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) x[i] *= inverse * (norm[i] + offset);
    }
    float far[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {  // if HALF is no multiple of PER_LANE, a lane has two partner lanes
        const bool near = part < HALF_LANES || (part == HALF_LANES && i < HALF_REST);
        const int partner = near ? HALF_LANES + (i + HALF_REST) / PER_LANE : -HALF_LANES - (i < HALF_REST ? 1 : 0);
        const float other = __shfl_sync(ALL, x[(i + HALF_REST) % PER_LANE], lane + partner);
        far[i] = near ? -other : other;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) x[i] = x[i] * cos[i] + far[i] * sin[i];
}

// The key/value head of a sequence that a block works on (`row` of tokens * kv_heads), and its new slot's index.
struct Place {
    int sequence;
    long row;
    int position;

    // The old slots that are attended to: all, or those in the sliding window.
    __device__ Span old() const {
        return {window && position >= window ? position - int(window) + 1 : 0, position};
    }
    __device__ long cache() const { return row * context * head_dim; }
};
template <class A> __device__ inline Place place_of(const A& a, int head) {
    const int sequence = tokens == 1 ? 0 : int(blockIdx.z);
    return {sequence, sequence * kv_heads + head, int(a.positions[sequence])};
}

// The prologue of one warp; `newest`: it is the one that attends to the newest slot.
template <bool NORM, class A, class N> struct Prologue {
    Eight<N> of_q{}, of_k{};
    Eight<cos_t> cos;
    Eight<sin_t> sin;
    bool newest;

    // Loads what may be read before the wait: norm weights, and the angles, which the manifest names `early`.
    __device__ Prologue(const A& a, const Place& place, const N* norm_q, const N* norm_k, bool newest) : newest(newest) {
        const int part = threadIdx.x % SLOT_LANES * PER_LANE;
        const bool used = part < head_dim;
        if (NORM) of_q.load(norm_q + part, used), of_k.load(norm_k + part, used && newest);
        cos.load(a.cos + place.sequence * head_dim + part, used);
        sin.load(a.sin + place.sequence * head_dim + part, used);
    }

    // Gives the queries, scaled by scale * log2(e), and the initial running softmax: empty, or (in the first group of
    // lanes) the newest slot alone, which is written to the caches too. Its key is used as rounded to the cache's type.
    __device__ void begin(
        const A& a, const Place& place, float eps, float offset, float (&q)[GROUP][PER_LANE], Running (&run)[GROUP]) const {
        const int lane = threadIdx.x % WARP, part = lane % SLOT_LANES * PER_LANE;
        const bool used = part < head_dim;
        Eight<q_t> raw[GROUP];
        Eight<k_t> new_key{};
        Eight<v_t> new_value{};
#pragma unroll
        for (int g = 0; g < GROUP; ++g) raw[g].load(a.q + (place.row * GROUP + g) * head_dim + part, used);
        if (newest) {
            new_key.load(a.k + place.row * head_dim + part, used);
            new_value.load(a.v + place.row * head_dim + part, used);
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) q[g][i] = raw[g][i];
            rotate<NORM>(q[g], of_q, cos, sin, eps, offset);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) q[g][i] *= scale * LOG2E;
        }
        if (!newest) return;
        const auto bits = [](float v) { return unsigned(Rounded<k_cache_t>::of(v).bits); };
        float key[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) key[i] = new_key[i];
        rotate<NORM>(key, of_k, cos, sin, eps, offset);
        if (lane < USED_LANES) {
            Words rounded;
#pragma unroll
            for (int i = 0; i < 4; ++i) rounded.word[i] = bits(key[2 * i]) | bits(key[2 * i + 1]) << 16;
            const long slot = place.cache() + long(place.position) * head_dim + part;
            *reinterpret_cast<Words*>(a.k_cache + slot) = rounded;
            *reinterpret_cast<Words*>(a.v_cache + slot) = new_value.words[0];
            unpack<k_cache_t>(rounded, key);
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) dot = fmaf(q[g][i], key[i], dot);
            dot = sum_over<SLOT_LANES>(dot);
            if (lane < SLOT_LANES) {
                run[g].top = dot, run[g].total = 1;
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) run[g].sum[i] = new_value[i];
            }
        }
    }
};
