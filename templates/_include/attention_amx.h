// Attention of a chunk (attention_chunk.h) whose two products run in AMX tiles: bf16 queries, keys and values.
//
//   scores   q [32 rows][32 elements]      x  keys   [16 pairs of elements][16 slots]     = the panels of pack_rows_across
//   values   weights [32 rows][32 slots]   x  values [16 pairs of slots][16 elements]     = two rows of the cache, zipped
//
//   tiles 0-3   sums of 32 rows x 32 columns      4-5   32 rows of queries or weights      6-7   32 slots or elements
//
// Scores of a block are stored once as float and softened row by row. The second product takes a weight as two numbers of
// bf16, its upper half and the rest of it, rounded, which hold 16 of its bits: one alone would err by more than the result's
// own rounding where large values cancel. Sums over slots stay in tile registers for a whole block. A weight of a slot that
// a row does not see is zero: its product adds nothing, but where the value is not finite. A group of 32 slots with such a
// value is multiplied row by row, without what the row does not see, and what is not finite by the first part alone: the
// other may be zero.
#include "attention_chunk.h"
#include "tiles.h"

static_assert(paired<k_cache_t> && paired<v_cache_t> && head_dim % 32 == 0 && BLOCK % 32 == 0);

constexpr int PAIR_ROWS = 32;  // rows of queries at a time
constexpr long DEEP = 32;      // elements, or slots, that one product adds up

// The odd ones of 64 halves: the upper ones of two vectors of floats.
constexpr struct OddHalves {
    alignas(64) uint16_t at[32] = {};
    constexpr OddHalves() {
        for (int j = 0; j < 32; ++j) at[j] = uint16_t(2 * j + 1);
    }
} odd_halves;

struct TileWay {
    static constexpr int at_once = PAIR_ROWS;
    static constexpr long groups = BLOCK / DEEP;
    static constexpr long group_cells = DEEP / 2 * 2 * 16;  // of the values of a group and 16 elements of a head
    alignas(64) float keys[BLOCK * CELLS];
    alignas(64) uint16_t values[head_dim / 16 * groups * group_cells];
    alignas(64) float scores[PAIR_ROWS][BLOCK];
    alignas(64) bf16 weights[2][PAIR_ROWS][BLOCK];  // upper halves, and the rest
    bool numbers[groups];  // whether all values of a group are finite
    TileUnit unit;

    static long place(long panel, long group) { return (panel * groups + group) * group_cells; }

    void pack(const k_cache_t* k, const v_cache_t* v, long here) {
        pack_rows_across<k_cache_t, head_dim>(k, here, keys);
        for (long group = 0; group * DEEP < here; ++group) {
            vu odd = {};
            for (long pair = 0; pair < DEEP / 2; ++pair) {
                const long slot = group * DEEP + 2 * pair;
                for (long panel = 0; panel < head_dim / 16; ++panel) {
                    const vu zipped = row(v, slot, here, panel) | row(v, slot + 1, here, panel) << 16;
                    std::memcpy(values + place(panel, group) + pair * 32, &zipped, 64);
                    odd |= (vu)((zipped & 0x7f80u) == 0x7f80u) | (vu)((zipped & 0x7f800000u) == 0x7f800000u);
                }
            }
            uint32_t lanes[16], any = 0;
            std::memcpy(lanes, &odd, 64);
            for (uint32_t lane : lanes) any |= lane;
            numbers[group] = !any;
        }
    }

    // 16 elements of a slot's value, a lane each; zeros beyond the slots that are there.
    static vu row(const v_cache_t* v, long slot, long here, long panel) {
        vh half = {};
        if (slot < here) std::memcpy(&half, v + slot * head_dim + panel * 16, 32);
        return __builtin_convertvector(half, vu);
    }

    void attend(
        const float* q, const long (&low)[PAIR_ROWS], const long (&high)[PAIR_ROWS], long some, long row,
        Rows<PAIR_ROWS>& rows) {
        long first = BLOCK, last = 0;
        for (int r = 0; r < PAIR_ROWS; ++r) first = std::min(first, low[r]), last = std::max(last, high[r]);
        if (first >= last) return;
        const long from = first / DEEP, to = (last + DEEP - 1) / DEEP;
        if (some > 16) score<2>(q, from, to);
        else score<1>(q, from, to);
        const int many = some > 16 ? 32 : 16;
        for (int r = 0; r < many; ++r) {
            const float keep =
                soften_in_two(scores[r], weights[0][r], weights[1][r], from * DEEP, to * DEEP, low[r], high[r],
                              rows.top[row + r], rows.total[row + r]);
            if (keep != 1.0f)
                for (long i = 0; i < WIDTH; i += LANES)
                    wide::store(&rows.sum[row + r][i], wide::load(&rows.sum[row + r][i]) * keep);
        }
        // Groups that are multiplied at once, between those that are not.
        long begin = from;
        for (long group = from; group <= to; ++group) {
            if (group < to && numbers[group]) continue;
            if (some > 16) gather<2>(begin, group, row, rows);
            else gather<1>(begin, group, row, rows);
            if (group < to) gather_seen(group, low, high, int(std::min<long>(many, some)), row, rows);
            begin = group + 1;
        }
    }

    template <int A> void score(const float* q, long from, long to) {
        constexpr long across = ACROSS * sizeof(float), pitch = BLOCK * sizeof(float), step = CELLS * sizeof(float);
        for (long group = from; group < to; ++group) {
            const float* panel = keys + group * DEEP * CELLS;
            zero<A>();
            for (long c = 0; c < CELLS; c += 16) {
                unit.template load<6>(panel + c * ACROSS, across);
                unit.template load<7>(panel + c * ACROSS + 16, across);
                multiply<A>(q + c, q + 16 * CELLS + c, step);
                free_columns();
            }
            store<A>(&scores[0][group * DEEP], &scores[16 % PAIR_ROWS][group * DEEP], pitch);
        }
    }

    // Adds the weights of the groups [from, to) times their values to the sums of the rows.
    template <int A> void gather(long from, long to, long row, Rows<PAIR_ROWS>& rows) {
        constexpr long pitch = WIDTH * sizeof(float), step = BLOCK * sizeof(bf16);
        if (from >= to) return;
        for (long panel = 0; panel < head_dim / 16; panel += 2) {
            float *upper = &rows.sum[row][panel * 16], *lower = &rows.sum[row + 16][panel * 16];
            load<A>(upper, lower, pitch);
            for (long group = from; group < to; ++group) {
                unit.template load<6>(values + place(panel, group), 64);
                unit.template load<7>(values + place(panel + 1, group), 64);
                for (const auto& part : weights) multiply<A>(&part[0][group * DEEP], &part[16][group * DEEP], step);
                free_columns();
            }
            store<A>(upper, lower, pitch);
        }
    }

    // The same for one group, each row with the values of the slots that it sees alone.
    void gather_seen(
        long group, const long (&low)[PAIR_ROWS], const long (&high)[PAIR_ROWS], int some, long row,
        Rows<PAIR_ROWS>& rows) {
        alignas(64) uint16_t seen[2][2][group_cells];  // [part of the weights][panel]
        unit.shape(1);
        for (int r = 0; r < some; ++r)
            for (long panel = 0; panel < head_dim / 16; panel += 2) {
                float* sum = &rows.sum[row + r][panel * 16];
                for (int part = 0; part < 2; ++part)
                    for (int c = 0; c < 2; ++c)
                        for (long i = 0; i < group_cells; ++i) {
                            const long at = group * DEEP + i / 32 * 2 + i % 2;
                            const uint16_t value = values[place(panel + c, group) + i];
                            const bool kept = at >= low[r] && at < high[r] && !(part && (value & 0x7f80) == 0x7f80);
                            seen[part][c][i] = kept ? value : 0;
                        }
                load<1>(sum, sum, 64);
                for (int part = 0; part < 2; ++part) {
                    unit.template load<6>(seen[part][0], 64);
                    unit.template load<7>(seen[part][1], 64);
                    const bf16* row = &weights[part][r][group * DEEP];
                    multiply<1>(row, row, 64);
                    free_columns();
                }
                store<1>(sum, sum, 64);
            }
        unit.shape(TileUnit::TILE_ROWS);
    }

    template <int A> void zero() {
        unit.template zero<0>(), unit.template zero<1>();
        if constexpr (A > 1) unit.template zero<2>(), unit.template zero<3>();
    }
    template <int A> void load(const float* upper, const float* lower, long pitch) {
        unit.template load<0>(upper, pitch), unit.template load<1>(upper + 16, pitch);
        if constexpr (A > 1) unit.template load<2>(lower, pitch), unit.template load<3>(lower + 16, pitch);
    }
    // Adds the product of 16 rows, or twice as many, and the columns that are in tiles 6 and 7.
    template <int A, class T> void multiply(const T* upper, const T* lower, long pitch) {
        unit.template load<4>(upper, pitch);
        unit.template multiply<0, 0>(), unit.template multiply<0, 1>();
        unit.template zero<4>();
        if constexpr (A > 1) {
            unit.template load<5>(lower, pitch);
            unit.template multiply<1, 0>(), unit.template multiply<1, 1>();
            unit.template zero<5>();
        }
    }
    void free_columns() { unit.template zero<6>(), unit.template zero<7>(); }
    template <int A> void store(float* upper, float* lower, long pitch) {
        unit.template store<0>(upper, pitch), unit.template store<1>(upper + 16, pitch);
        if constexpr (A > 1) unit.template store<2>(lower, pitch), unit.template store<3>(lower + 16, pitch);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);  // what follows reads what was stored
    }

    // What the upper half of a number leaves of it. Its own upper half is that of the nearest bf16; of two, the farther
    // one from zero.
    static vf rest_of(vf v) { return (vf)((vu)(v - (vf)((vu)v & 0xffff0000u)) + 0x8000u); }

    // Stores the upper halves of two vectors, one after the other.
    static void store_high(bf16* to, vf left, vf right) {
#if ISA_AVX512BW && LANES == 16
        const __m512i odd = _mm512_loadu_si512(odd_halves.at);
        const __m512i halves = _mm512_permutex2var_epi16((__m512i)left, odd, (__m512i)right);
        std::memcpy((void*)to, &halves, sizeof halves);
#else
        const vh first = __builtin_convertvector((vu)left >> 16, vh), second = __builtin_convertvector((vu)right >> 16, vh);
        std::memcpy((void*)to, &first, sizeof first);
        std::memcpy((void*)(to + LANES), &second, sizeof second);
#endif
    }

    // As `soften` of attention_chunk.h, from scores without their scale to weights in two parts: those of the slots
    // [from, to) that the row does not see are zeros.
    static float soften_in_two(
        const float* score, bf16* weight, bf16* rest, long from, long to, long low, long high, float& top, vf& total) {
        vi lane;
        for (int j = 0; j < LANES; ++j) lane[j] = j;
        const auto seen = [&](long i) { return (lane + int(i) >= int(low)) & (lane + int(i) < int(high)); };
        const long first = low / LANES * LANES;
        vf tops = splat(-INFINITY);
        for (long i = first; i < high; i += LANES) {
            vf here = wide::load(score + i) * scale;
            if (i < low || i + LANES > high) here = seen(i) ? here : splat(-INFINITY);
            tops = larger(here, tops);
        }
        const float here = low < high ? top_lane(tops) : -INFINITY, next = here > top ? here : top;
        const float shift = next == -INFINITY ? 0.0f : next;
        const float keep = next == top ? 1.0f : std::exp(top - shift);
        vf sum = total * keep;
        const auto all = [&](long i) {
            return exponential_below(fused(wide::load(score + i), splat(scale), splat(-shift)));
        };
        for (long i = from; i < to; i += 2 * LANES) {
            vf left = {}, right = {};
            if (i >= low && i + 2 * LANES <= high) {
                left = all(i), right = all(i + LANES);
            } else if (i < high && i + 2 * LANES > low) {
                left = seen(i) ? all(i) : vf{}, right = seen(i + LANES) ? all(i + LANES) : vf{};
            }
            store_high(weight + i, left, right);
            store_high(rest + i, rest_of(left), rest_of(right));
            sum = sum + left + right;
        }
        total = sum;
        top = next;
        return keep;
    }
};
