// The next token of every row of logits [ROWS, vocab], chosen where they lie: temperature, then top-k, then top-p, then a
// seeded draw. Rows have settings, positions and results of their own, and blocks of their own: they never meet.
//
// Nothing is sorted. Logits become keys whose unsigned order is theirs; a search by digits of eight bits, the highest
// first, finds the key at which a running sum over descending keys passes a target: a count for top-k, a mass for top-p
// and for the draw. Equal keys go by ascending id. Masses are integers, 2^36 times exp(score - largest score), so sums
// are exact and do not depend on the order in which threads add.
//
// `sample_keys.cuh` stands before this text. With a cluster (`BLOCKS` > 1, compute capability 9.0 and later) each block
// of a row keeps its part of the keys in shared memory; one block alone reads the logits again in every pass.
struct Settings {
    uint64_t seed;
    int64_t first;      // the position at which draw 0 is made
    uint64_t top_p;     // in 2^-63; 2^63 keeps everything
    int64_t slots;      // log-probabilities there is room for in each row; 0 wants none
    float temperature;  // 0 takes the largest logit
    int top_k;          // 0 keeps everything
};
struct sample_args {
    const logit_t* logits;
    const int64_t* position;  // [ROWS], as are settings and tokens
    const Settings* settings;
    int64_t* token;
    float* logprobs;  // [ROWS, slots], by position; null wants none
};

constexpr int WARP = 32, WARPS = THREADS / WARP, BINS = 256, LEVELS = KEY_BITS / 8;
constexpr int BLOCK_VECTORS = (VECTORS + BLOCKS - 1) / BLOCKS, WARP_VECTORS = (BLOCK_VECTORS + WARPS - 1) / WARPS;
// What one lane's copies of a bin may receive stays below 2^14 masses of 2^18 a word, so that no word overflows.
static_assert(WARPS * ((WARP_VECTORS + WARP - 1) / WARP) * PER_LOAD < 1 << 14);
static_assert(WARPS <= WARP && THREADS % (4 * WARP) == 0 && BLOCKS <= 8);

// A copy of every bin for each lane: no two lanes of a warp meet in a bank.
struct Histogram { unsigned high[BINS * WARP], low[BINS * WARP]; };
struct Place {
    unsigned key;
    uint64_t above, at;  // what greater keys have together, and what this key has
};
struct Shared {
    uint64_t merged[LEVELS][BINS];  // over all blocks, of the keys that begin with `built`
    uint64_t part[2][BINS];         // this block's, for the others to read; two, so that an exchange needs one barrier
    uint64_t warps[WARP];
    unsigned built[LEVELS];
    Place found;
};

__device__ inline void let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A barrier over all blocks of the row.
__device__ inline void everyone() {
    if constexpr (BLOCKS == 1) {
        __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
}
__device__ inline uint64_t read_from(const uint64_t* mine, unsigned block) {
    uint64_t v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\tld.shared::cluster.u64 %0, [there];\n\t}"
        : "=l"(v)
        : "r"(unsigned(__cvta_generic_to_shared(mine))), "r"(block)
        : "memory");
#endif
    return v;
}

__device__ inline uint64_t sum_over_warp(uint64_t v) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    return v;
}
__device__ inline uint64_t sum_upto_lane(uint64_t v) {
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const uint64_t other = __shfl_up_sync(ALL, v, step);
        if (threadIdx.x % WARP >= step) v += other;
    }
    return v;
}

struct Search {
    const logit_t* logits;
    Shared& s;
    Histogram& histogram;
    Words* cache;
    const int lane, warp;
    int block, from, first, last;  // this block's first vector, and this warp's vectors: order of warps is order of ids
    int parity = 0;

    __device__ Search(const logit_t* logits, Shared& s, Histogram& histogram, Words* cache, int block)
        : logits(logits), s(s), histogram(histogram), cache(cache), lane(threadIdx.x % WARP), warp(threadIdx.x / WARP),
          block(block), from(block * BLOCK_VECTORS) {
        const int end = min(VECTORS, from + BLOCK_VECTORS);
        first = min(end, from + warp * WARP_VECTORS);
        last = min(end, first + WARP_VECTORS);
    }

    // `see(vector, words)` for every vector of this thread, of which `AHEAD` are loaded before the first is seen.
    template <int AHEAD = 1, class Get, class See> __device__ void each(const Get& get, const See& see) const {
#pragma unroll 1
        for (int start = first + lane; start < last; start += WARP * AHEAD) {
            Words words[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
                if (start + i * WARP < last) words[i] = get(start + i * WARP);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
                if (start + i * WARP < last) see(start + i * WARP, words[i]);
        }
    }
    // `see(id, bits)` for every element of a vector. What is long is not repeated for each: a kernel that runs once a
    // token finds its instructions in no cache.
    template <bool LONG = false, class See> static __device__ void every(int vector, Words words, const See& see) {
        int id = vector * PER_LOAD;
#pragma unroll(LONG ? 1 : 4)
        for (int w = 0; w < 4; ++w) {
#pragma unroll
            for (int i = 0; i < PER_LOAD / 4; ++i, ++id)
                if (vocab % PER_LOAD == 0 || id < vocab) see(id, element(words, i));
            words.word[0] = words.word[1], words.word[1] = words.word[2], words.word[2] = words.word[3];
        }
    }
    __device__ Words kept(int vector) const { return BLOCKS > 1 ? cache[vector - from] : load(logits, vector); }
    __device__ unsigned key(const Scale& scale, unsigned kept) const { return BLOCKS > 1 ? kept : scale.key(kept); }

    // What all warps of all blocks have together, and those before this one; `mine` is the same in all lanes.
    template <class Join> __device__ ulonglong2 joined(uint64_t mine, const Join& join) {
        const auto over_warp = [&](uint64_t v) {
#pragma unroll
            for (int step = WARP / 2; step > 0; step /= 2) v = join(v, uint64_t(__shfl_xor_sync(ALL, v, step)));
            return v;
        };
        __syncthreads();
        if (lane == 0) s.warps[warp] = mine;
        __syncthreads();
        uint64_t one = lane < WARPS ? s.warps[lane] : 0;
        uint64_t before = over_warp(lane < warp ? one : 0), total = over_warp(one);
        if constexpr (BLOCKS > 1) {
            if (threadIdx.x == 0) s.part[parity][0] = total;
            everyone();
            one = lane < BLOCKS ? read_from(&s.part[parity][0], lane) : 0;
            before = join(before, over_warp(lane < block ? one : 0)), total = over_warp(one);
            parity ^= 1;
        }
        return make_ulonglong2(before, total);
    }

    // The key of the largest logit. Of a cluster every thread keeps what it alone will look at again.
    __device__ unsigned largest(const Scale& scale) {
        unsigned most = 0;
        each<(BLOCKS > 1 ? 4 : 2)>([&](int v) { return load(logits, v); }, [&](int v, const Words& raw) {
            Words keys{};
#pragma unroll
            for (int i = 0; i < PER_LOAD; ++i) {
                const unsigned bits = element(raw, i);
                if (vocab % PER_LOAD == 0 || v * PER_LOAD + i < vocab) most = max(most, key_of(bits));
                if (BLOCKS > 1) put(keys, i, scale.key(bits));
            }
            if (BLOCKS > 1) cache[v - from] = keys;
        });
        return unsigned(joined(__reduce_max_sync(ALL, most), [](uint64_t a, uint64_t b) { return a > b ? a : b; }).y);
    }

    // The sums of masses, or counts, of all keys from `floor` on that begin with `prefix`, by their next digit.
    template <bool MASS> __device__ void build(const Scale& scale, unsigned floor, int level, unsigned prefix) {
        const int shift = 8 * level;
        each([&](int v) { return kept(v); }, [&](int v, const Words& words) {
            every<MASS>(v, words, [&](int, unsigned one) {
                const unsigned k = key(scale, one);
                if (k < floor || (level + 1 < LEVELS && k >> (shift + 8) != prefix)) return;
                const unsigned at = (k >> shift & 255u) * WARP + lane;
                if constexpr (MASS) {
                    const uint2 two = scale.halves(k);
                    atomicAdd(&histogram.high[at], two.x);
                    atomicAdd(&histogram.low[at], two.y);
                } else {
                    atomicAdd(&histogram.low[at], 1u);
                }
            });
        });
        __syncthreads();
        const int quarter = threadIdx.x % 4;  // of a bin's copies, and of the blocks
        for (int bin = threadIdx.x / 4; bin < BINS; bin += THREADS / 4) {
            uint64_t sum = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int at = bin * WARP + quarter * 8 + (i + bin) % 8;  // eight bins a warp, each in banks of its own
                sum += (uint64_t(histogram.high[at]) << HALF) + histogram.low[at];
                histogram.high[at] = histogram.low[at] = 0;
            }
            sum += __shfl_xor_sync(ALL, sum, 1);
            sum += __shfl_xor_sync(ALL, sum, 2);
            if (quarter == 0) (BLOCKS > 1 ? s.part[parity] : s.merged[level])[bin] = sum;
        }
        if (threadIdx.x == 0) s.built[level] = prefix;
        everyone();
        if constexpr (BLOCKS > 1) {
            for (int bin = threadIdx.x / 4; bin < BINS; bin += THREADS / 4) {
                uint64_t sum = 0;
                for (int other = quarter; other < BLOCKS; other += 4) sum += read_from(&s.part[parity][bin], other);
                sum += __shfl_xor_sync(ALL, sum, 1);
                sum += __shfl_xor_sync(ALL, sum, 2);
                if (quarter == 0) s.merged[level][bin] = sum;
            }
            parity ^= 1;
            __syncthreads();
        }
    }
    __device__ uint64_t total() const {
        uint64_t sum = 0;
        for (int bin = lane; bin < BINS; bin += WARP) sum += s.merged[LEVELS - 1][bin];
        return sum_over_warp(sum);
    }

    // Where the running sum over descending keys passes `aim(sum of all)`, which is less than the sum of all.
    template <bool MASS, class Aim> __device__ Place descend(const Scale& scale, unsigned floor, const Aim& aim) {
        Place place{0, 0, 0};
        uint64_t target = 0;
#pragma unroll 1
        for (int level = LEVELS - 1; level >= 0; --level) {
            if (s.built[level] != place.key) build<MASS>(scale, floor, level, place.key);
            if (level == LEVELS - 1) target = aim(total());
            if (warp == 0) {
                const uint64_t* bins = s.merged[level];
                int bin = BINS - 1 - 8 * lane;
                uint64_t own = 0;
                for (int i = 0; i < 8; ++i) own += bins[bin - i];
                const uint64_t upto = place.above + sum_upto_lane(own);
                uint64_t above = upto - own;
                if (above <= target && target < upto) {
                    while (target - above >= bins[bin]) above += bins[bin--];
                    s.found = Place{place.key << 8 | unsigned(bin), above, bins[bin]};
                }
            }
            __syncthreads();
            place = s.found;
            __syncthreads();
        }
        return place;
    }
    __device__ void forget() {
        __syncthreads();
        if (threadIdx.x < LEVELS) s.built[threadIdx.x] = ALL;
        __syncthreads();
    }

    // `found(id)` in one thread: the `index`-th id, from 0 up, of those with that key.
    template <class Found>
    __device__ void locate(const Scale& scale, unsigned wanted, unsigned index, const Found& found) {
        const auto equal = [&](int v, const Words& words) {
            unsigned n = 0;
            every(v, words, [&](int, unsigned one) { n += key(scale, one) == wanted; });
            return n;
        };
        unsigned mine = 0;
        each([&](int v) { return kept(v); }, [&](int v, const Words& words) { mine += equal(v, words); });
        mine = __reduce_add_sync(ALL, mine);
        unsigned before = unsigned(joined(mine, [](uint64_t a, uint64_t b) { return a + b; }).x);
        if (index < before || index >= before + mine) return;
        for (int start = first; start < last; start += WARP) {
            const int v = start + lane;
            const unsigned here = v < last ? equal(v, kept(v)) : 0;
            unsigned upto = before + unsigned(sum_upto_lane(here));
            before = __shfl_sync(ALL, upto, WARP - 1);
            upto -= here;
            if (index < upto || index >= upto + here) continue;
            every<true>(v, kept(v), [&](int id, unsigned one) {
                if (key(scale, one) == wanted && upto++ == index) found(id);
            });
        }
    }
};

// The finaliser of SplitMix64, as in sampling.py.
__device__ inline uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}
// floor(u * kept) for the number u in [0, 1) of (seed, counter).
__device__ inline uint64_t drawn(uint64_t seed, int64_t counter, uint64_t kept) {
    constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;
    const uint64_t bits = mixed(mixed(seed ^ GOLDEN) + (uint64_t(counter) + 1) * GOLDEN);
    return __umul64hi(bits & ~uint64_t(0x7ff), kept);
}

// The last unit of mass that top-p keeps: those before it are less than its share of all.
constexpr uint64_t WHOLE = 1ull << 63;
__device__ inline uint64_t last_unit(uint64_t top_p, uint64_t kept) {
    const uint64_t high = __umul64hi(top_p, kept), low = top_p * kept;
    return (high << 1 | low >> 63) - (low << 1 == 0);
}

#if __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1) sample(const __grid_constant__ sample_args a) {
    let_successor_start();
    extern __shared__ Words room[];
    __shared__ Shared s;
    Histogram& histogram = *reinterpret_cast<Histogram*>(room);
    for (int i = threadIdx.x; i < int(sizeof(Histogram) / sizeof(Words)); i += THREADS) room[i] = Words{};
    const int row = ROWS == 1 ? 0 : int(blockIdx.y);
    const logit_t* logits = a.logits + int64_t(row) * vocab;
    Search search(logits, s, histogram, room + sizeof(Histogram) / sizeof(Words), blockIdx.x);
    search.forget();
    wait_for_inputs();

    const Settings settings = a.settings[row];
    const int64_t position = a.position[row];
    Scale scale(settings.temperature), unscaled(1.0f);
    const unsigned most = search.largest(scale);
    scale.settle(most), unscaled.settle(most);
    unsigned chosen = scale.top_key, index = 0;
    if (settings.temperature > 0.0f) {
        unsigned floor = 0;
        uint64_t left_out = 0;  // of the ties at the floor
        if (settings.top_k > 0 && settings.top_k < vocab) {
            const Place least = search.descend<false>(scale, 0, [&](uint64_t) { return uint64_t(settings.top_k - 1); });
            floor = least.key, left_out = least.above + least.at - settings.top_k;
            search.forget();
        }
        bool narrow = settings.top_p < WHOLE;
        uint64_t kept = 0, target = 0;
#pragma unroll 1
        for (bool last = false; !last;) {
            last = !narrow;
            const Place place = search.descend<true>(scale, floor, [&](uint64_t sum) {
                if (kept == 0) kept = sum - left_out * scale.mass(floor);
                const int64_t counter = position - settings.first;
                return target = narrow ? last_unit(settings.top_p, kept) : drawn(settings.seed, counter, kept);
            });
            const uint64_t one = scale.mass(place.key);
            const uint64_t ties = place.at == one ? 0 : (target - place.above) / one;
            chosen = place.key, index = unsigned(ties), kept = place.above + (ties + 1) * one;
            narrow = false;
        }
    }

    uint64_t whole = 0;
    const bool noted = a.logprobs != nullptr && position >= 0 && position < settings.slots;
    if (noted) {
        search.each([&](int v) { return load(logits, v); }, [&](int v, const Words& raw) {
            Search::every<true>(v, raw, [&](int, unsigned bits) { whole += unscaled.mass(key_of(bits)); });
        });
        whole = search.joined(sum_over_warp(whole), [](uint64_t x, uint64_t y) { return x + y; }).y;
    }
    search.locate(scale, chosen, index, [&](int id) {
        a.token[row] = id;
        if (!noted) return;
        const unsigned key = key_of(logits[id]);
        const double behind = key == most ? 0.0 : double(number_of(key)) - double(number_of(most));
        a.logprobs[row * settings.slots + position] = float(behind - log(double(whole) * 0x1p-36));
    });
    if constexpr (BLOCKS > 1) everyone();  // nobody leaves while others may read its shared memory
}
