// Products of a chunk with one matrix, or with several on the same tokens (q, k and v), in tiles (tensor_tiles.cuh):
// y_i[token, row] = sum + bias_i[row] (+ residual[token, row]), added in float and rounded once.
//
//   boxes     of UNIT rows; those of all matrices follow one another, each matrix padded to whole boxes, and a tile is
//             a run of PIECES of them, so that a tile may end one matrix and begin the next
//   N         as many rows as fill the multiprocessors, or the clusters that run at once, evenly in the fewest waves
//   SPLIT     blocks of a cluster that share a tile of a short chunk. A tile a block would have 16 rows of most
//             matrices, and every multiprocessor would read all tokens for so few. Instead each takes a part of the
//             columns K; at the end each adds up its part of the N rows, whose sums it reads from all blocks:
//
//   block 0   | columns 0 ..         | sums to shared memory | meets | rows 0 .. of all: add, store         | meets |
//   block 1   | columns K / SPLIT .. | sums to shared memory | meets | rows N / SPLIT .. of all: add, store | meets |
//
//             in the order of the blocks, so that repeated launches give the same bits. The sums take the place of the
//             ring, which is empty by then.
//   heads     tokens may lie heads first, [heads, tokens, head width]: a stage of columns is of one head, and what it
//             has behind that head's last column arrives as zeros, so that the next head's weights there add nothing
#include "tensor_tiles.cuh"

constexpr int over(long a, long b) { return int((a + b - 1) / b); }
constexpr int larger(long a, long b) { return int(a > b ? a : b); }

constexpr int UNIT = w_box, WIDEST = 256, TOKEN_TILES = over(tokens, TOKENS);

// SPLITS, or half or a quarter of them, where so many times all tiles of 192 rows are more blocks than multiprocessors.
// The manifest's grid has the same.
constexpr int SPLIT_BLOCKS = larger(SPLITS / over(SPLITS * TOKEN_TILES * over(rows, 192), threads), 1);

template <int COUNT> constexpr int units_of(const long (&rows_of)[COUNT]) {
    int units = 0;
    for (long one : rows_of) units += over(one, UNIT);
    return units;
}
constexpr int pieces_of(long units) {
    constexpr long clusters =
        (SPLIT_BLOCKS > 2 ? larger(threads * 10 / 11 / 8, 1) * 8 : larger(threads / 2, 1) * 2) / SPLIT_BLOCKS;
    const long waves = over(TOKEN_TILES * units * UNIT, WIDEST * clusters);
    const int pieces = over(units, larger(clusters * waves / TOKEN_TILES, 1));
    return pieces < WIDEST / UNIT ? pieces : WIDEST / UNIT;
}
template <int COUNT> constexpr bool whole_words(const long (&rows_of)[COUNT]) {
    for (long one : rows_of)
        if (one % 8) return false;
    return true;
}

// The rows of a box: of which matrix, from which row on, and how many that matrix has.
struct Rows {
    int matrix, row, count;
};
__device__ inline Rows rows_of_unit(int unit) {
    Rows found = {0, int(w_rows[0]), int(w_rows[0])};  // behind all of them: nothing
    bool before = true;
#pragma unroll
    for (int i = 0; i < w_count; ++i) {
        const int here = over(w_rows[i], UNIT);
        if (before && unit < here) found = {i, unit * UNIT, int(w_rows[i])}, before = false;
        unit -= here;
    }
    return found;
}
__device__ inline const TensorMap& one_of(const TensorMap& map, int) { return map; }
template <unsigned long COUNT> __device__ inline const TensorMap& one_of(const TensorMap (&map)[COUNT], int i) {
    return map[i];
}

// Two neighbouring elements, zeros for those outside.
template <bool WHOLE, class T> __device__ inline unsigned two(const T* row, long column, long end) {
    if constexpr (WHOLE) return column < end ? *reinterpret_cast<const unsigned*>(row + column) : 0;
    return (column < end ? row[column].bits : 0) | (column + 1 < end ? unsigned(row[column + 1].bits) << 16 : 0);
}
__device__ inline float lower(unsigned two) { return __uint_as_float(two << 16); }
__device__ inline float upper(unsigned two) { return __uint_as_float(two & 0xffff0000u); }

// Four floats of block `rank`'s shared memory, where `mine` lies in this one.
struct alignas(16) Four {
    float of[4];
};
__device__ inline Four read_four_from(const Four* mine, unsigned rank) {
    Four v;
    asm volatile(
        "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %4, %5;\n\t"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
        : "=f"(v.of[0]), "=f"(v.of[1]), "=f"(v.of[2]), "=f"(v.of[3])
        : "r"(shared_address(mine)), "r"(rank)
        : "memory");
    return v;
}

// Before copies into shared memory of which other blocks have been read: orders those reads before writes by the async
// proxy of the block that is read.
__device__ inline void others_read() { asm volatile("fence.proxy.async;" ::: "memory"); }

// A launch's arguments `a` as work of tiles. Tokens lie HEADS first, WIDTH elements each; ADDS: with a residual `a.r`.
template <int HEADS, int WIDTH, bool ADDS, class A> struct Products {
    static_assert(sizeof(x_t) == 2 && sizeof(w_t) == 2 && sizeof(y_t) == 2 && (!has_b || sizeof(b_t) == 2));
    static_assert((THERE + 256) * rows < 1l << 31 && THERE * WIDTH * HEADS < 1l << 31);  // offsets are of 32 bits
    static constexpr int OF_HEAD = over(WIDTH, COLUMNS), STEPS = HEADS * OF_HEAD, UNITS = units_of(w_rows);
    static constexpr int BOX = UNIT, PIECES = pieces_of(UNITS), N = PIECES * BOX, ACROSS = over(UNITS, PIECES);
    static constexpr int SPLIT = SPLIT_BLOCKS, SHARE = SPLIT == 1 && tokens > TOKENS ? CLUSTER : 1;
    static constexpr bool WHOLE = whole_words(w_rows);
    using Tiles = Tiling<Products>;
    const A& a;

    __device__ void announce_all() const {
        announce(&a.x_map);
#pragma unroll
        for (int i = 0; i < w_count; ++i) announce(&one_of(a.w_map, i));
    }
    __device__ Box weights(int across, int p, int k) const {
        const Rows at = rows_of_unit(across * PIECES + p);
        return {&one_of(a.w_map, at.matrix), k / OF_HEAD * WIDTH + k % OF_HEAD * COLUMNS, at.row};
    }
    __device__ Box tokens_at(int token, int k) const {
        return {&a.x_map, k % OF_HEAD * COLUMNS, k / OF_HEAD * int(THERE) + token};
    }

    // What is added to the sums of columns `column` and the next.
    __device__ unsigned bias_of(const Rows& at, int column) const {
        if constexpr (has_b) return two<WHOLE>(item(a.b, at.matrix), column, at.count);
        return 0;
    }
    __device__ unsigned residual_of(const Rows& at, int token, int column) const {
        if constexpr (ADDS)
            if (token < THERE) return two<WHOLE>(a.r + token * at.count, column, at.count);
        return 0;
    }
    // Of 32 rows, as they are stored. Four lanes have words of the same eight rows by turns: turned, a lane's four
    // words are neighbours, and 16 bytes are loaded or stored at once.
    __device__ void residuals_of(const Rows& at, int token, unsigned (&more)[4]) const {
        const int q = threadIdx.x % 4;
        Words words = {};
        if constexpr (ADDS && WHOLE)
            if (token < THERE && at.row + 8 * q < at.count)
                words = load16(a.r + token * at.count + at.row + 8 * q);
#pragma unroll
        for (int e = 0; e < 4; ++e) more[e] = WHOLE ? words.word[e] : residual_of(at, token, at.row + 8 * e + 2 * q);
    }
    // The rows of sums 16 four .. 16 four + 15 of a tile.
    static __device__ Rows rows_of(int across, int four) {
        Rows at = rows_of_unit(across * PIECES + four * 32 / BOX);
        at.row += four * 32 % BOX;
        return at;
    }

    // Sums begin as residual and bias: these come while the first boxes do, and take no registers beside 256 sums.
    // Those that blocks share are joined first, and begin as zero where a block may have no columns.
    static constexpr bool STARTED = SPLIT > 1 ? STEPS < SPLIT : ADDS || has_b;
    __device__ void start(const Tiles& tiles, float (&sum)[N / 2], int t) const {
#pragma unroll
        for (float& one : sum) one = 0;
        if constexpr (SPLIT > 1) return;
        constexpr int FOURS = N / 32;
        const int q = threadIdx.x % 4, first = tiles.token_here(t), across = tiles.across_of(t);
#pragma unroll
        for (int half = 0; ADDS && half < 2; ++half) {
            unsigned more[FOURS][4];
#pragma unroll
            for (int f = 0; f < FOURS; ++f) residuals_of(rows_of(across, f), first + 8 * half, more[f]);
#pragma unroll
            for (int f = 0; f < FOURS; ++f) {
                if (WHOLE) turn(more[f]);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float* two_of = sum + 16 * f + 4 * e + 2 * half;
                    two_of[0] = lower(more[f][e]), two_of[1] = upper(more[f][e]);
                }
            }
            asm volatile("" ::: "memory");  // all at once would be too many registers
        }
#pragma unroll
        for (int i = 0; has_b && i < N / 8; ++i) {
            const Rows at = rows_of(across, i / 4);
            const unsigned bias = bias_of(at, at.row + i % 4 * 8 + 2 * q);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                sum[4 * i + 2 * half] += lower(bias), sum[4 * i + 2 * half + 1] += upper(bias);
        }
    }

    __device__ void finish(const Tiles& tiles, const float (&sum)[N / 2], int t) const {
        if constexpr (SPLIT > 1)
            finish_part(tiles, sum, t);
        else
            finish_all(tiles, sum, t);
    }

    __device__ void finish_all(const Tiles& tiles, const float (&sum)[N / 2], int t) const {
        const int q = threadIdx.x % 4, first = tiles.token_here(t), across = tiles.across_of(t);
#pragma unroll
        for (int f = 0; f < N / 16; ++f) {
            const int half = f % 2, token = first + 8 * half;
            const Rows at = rows_of(across, f / 2);
            unsigned word[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int s = 16 * (f / 2) + 4 * e + 2 * half;
                word[e] = two_bf16(sum[s], sum[s + 1]);
            }
            y_t* to = item(a.y, at.matrix) + token * at.count;
            if constexpr (WHOLE) {
                turn(word);
                if (token < THERE) store<4, true>(to, at.row + 8 * q, at.count, word);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (token < THERE) store<1, false>(to, at.row + 8 * e + 2 * q, at.count, word + e);
            }
        }
    }

    // Of the groups of eight rows, block r has those from EIGHTS r / SPLIT on. A thread reads what the same thread of
    // every block has written: 16 bytes beside its neighbours'.
    __device__ void finish_part(const Tiles& tiles, const float (&sum)[N / 2], int t) const {
        constexpr int EIGHTS = N / 8, MOST = over(EIGHTS, SPLIT);
        static_assert(EIGHTS * CONSUMERS * sizeof(Four) <= Tiles::STAGES * Tiles::STAGE_BYTES);
        const int q = threadIdx.x % 4, begin = EIGHTS * tiles.rank / SPLIT, end = EIGHTS * (tiles.rank + 1) / SPLIT;
        const int first = tiles.token_here(t), across = tiles.across_of(t);
        Four* parts = reinterpret_cast<Four*>(tiles.stages) + threadIdx.x;
        const auto place = [&](int e) {
            Rows at = rows_of_unit(across * PIECES + (begin + e) * 8 / BOX);
            at.row += (begin + e) * 8 % BOX + 2 * q;
            return at;
        };
        unsigned residual[MOST][2];
#pragma unroll
        for (int e = 0; e < MOST; ++e)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                residual[e][half] = residual_of(place(e), first + 8 * half, place(e).row);
        // Nobody writes over stages that the tensor cores still read for another warpgroup.
        __syncwarp();
        if (threadIdx.x % WARP == 0) arrive(tiles.multiplied);
        wait_for(tiles.multiplied, tiles.turn_of(t) & 1);
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
            parts[e * CONSUMERS] = Four{{sum[4 * e], sum[4 * e + 1], sum[4 * e + 2], sum[4 * e + 3]}};
        parts_meet();
#pragma unroll
        for (int e = 0; e < MOST; ++e) {
            if (begin + e >= end) break;
            const Rows at = place(e);
            const unsigned bias = bias_of(at, at.row);
            Four got[SPLIT];
#pragma unroll
            for (int p = 0; p < SPLIT; ++p) got[p] = read_four_from(parts + (begin + e) * CONSUMERS, p);
            float all[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                all[i] = got[0].of[i];
#pragma unroll
                for (int p = 1; p < SPLIT; ++p) all[i] += got[p].of[i];
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = first + 8 * half;
                const unsigned more = residual[e][half];
                const float v = all[2 * half] + (lower(bias) + lower(more));
                const float w = all[2 * half + 1] + (upper(bias) + upper(more));
                const unsigned word = two_bf16(v, w);
                y_t* to = item(a.y, at.matrix) + token * at.count;
                if (token < THERE) store<1, WHOLE>(to, at.row, at.count, &word);
            }
        }
        others_read();
        parts_meet();
    }
};
