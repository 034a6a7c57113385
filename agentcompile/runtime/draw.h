// The next token of a sequence from its logits: what `sampling.choose` says, by one thread. Stands before `executor.cpp`.
//
// A vocabulary is not sorted for it: scores are counted and weighed by bin, and only in the bin where a filter or the draw
// falls is the order of single tokens asked for.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

extern "C" {

struct ac_likely {
    float score;
    int32_t id;
};

// Mirror of native.py; a change here raises AC_ABI.
struct ac_draw {
    const void* logits;  // [vocab]
    int64_t vocab;
    int64_t wide;        // elements of logits: 1 float32, 0 bfloat16
    double temperature;  // more than 0
    int64_t top_k;       // 0: the whole vocabulary
    double top_p;
    uint64_t seed;
    int64_t first;    // the token that a step at `first + n` makes is draw n
    ac_likely* room;  // [vocab]
};
}

namespace {

constexpr int BINS = 256, PER_NAT = 8;  // the last bin has everything that is further than 32 nats from the likeliest
constexpr int BLOCK = 256;  // scores at once: few enough to stay in the first cache, enough for loops that become vectors
constexpr int64_t FEW = 32;  // are sorted at once

inline uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
inline double uniform(uint64_t seed, uint64_t counter) {
    constexpr uint64_t STEP = 0x9E3779B97F4A7C15ull;
    return double(mixed(mixed(seed ^ STEP) + (counter + 1) * STEP) >> 11) / double(1ull << 53);
}

// e to a power of at most 0, to the last bits, without a branch: the compiler makes vectors of it. Below -708 nothing
// counts.
inline double power(double x) {
    constexpr double LOG2E = 1.4426950408889634, HIGH = 0x1.62e42fefa39efp-1, LOW = 0x1.abc9e3b39803fp-56;
    constexpr double SHIFT = 0x1.8p52;  // added, it leaves the nearest integer in the low bits
    x = x < -708.0 ? -708.0 : x;
    const double shifted = x * LOG2E + SHIFT, whole = shifted - SHIFT;
    const double r = (x - whole * HIGH) - whole * LOW;
    const double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;  // the series to the thirteenth power, in pairs
    const double first = (1.0 + r) + r2 * (1.0 / 2 + r * (1.0 / 6));
    const double second = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
    const double third = (1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800 + r * (1.0 / 39916800));
    const double fourth = 1.0 / 479001600 + r * (1.0 / 6227020800.0);
    const double two_to_whole = std::bit_cast<double>((std::bit_cast<int64_t>(shifted) + 1023) << 52);
    return ((first + r4 * second) + r8 * (third + r4 * fourth)) * two_to_whole;
}

inline float widened(uint16_t bfloat16) { return std::bit_cast<float>(uint32_t(bfloat16) << 16); }

struct Wide {
    const float* at;
    float operator[](int64_t i) const { return at[i]; }
};
struct Narrow {
    const uint16_t* at;
    float operator[](int64_t i) const { return widened(at[i]); }
};

template <class Logits> class Draw {
  public:
    Draw(const ac_draw& d, Logits logits) : d_(d), logits_(logits), by_(float(d.temperature)) {}

    int64_t token(int64_t position) {
        const double point = uniform(d_.seed, uint64_t(position - d_.first));
        greatest_ = greatest();
        if (!std::isfinite(greatest_)) return first_of(greatest_);
        if (d_.top_k && d_.top_k < d_.vocab) return among(d_.top_k, point);
        weigh(true);
        double total = 0;
        for (const double mass : masses_) total += mass;
        double kept = total;
        if (d_.top_p < 1) kept = crossing([&](double mass) { return !(mass / total < d_.top_p); }).mass;
        return crossing([&](double mass) { return mass > point * kept; }).id;
    }

  private:
    struct Place {
        int64_t id;
        double mass;  // of this token and of all that are likelier
    };

    // The scores from `from` on, `count` of them. What is no number is never drawn.
    void scores(int64_t from, int count, float* out) const {
        const Logits logits = logits_;
        const float by = by_;
        for (int i = 0; i < count; ++i) {
            const float s = logits[from + i] / by;
            out[i] = s == s ? s : -std::numeric_limits<float>::infinity();
        }
    }
    template <class Use> void every(Use use) const {
        float some[BLOCK];
        for (int64_t from = 0; from < d_.vocab; from += BLOCK) {
            const int count = int(std::min<int64_t>(BLOCK, d_.vocab - from));
            scores(from, count, some);
            use(from, count, some);
        }
    }
    double weight(float score) const { return power(double(score) - double(greatest_)); }
    static int bin(float far) { return std::min(int(std::min(far * PER_NAT, float(BINS))), BINS - 1); }
    void bins(int count, const float* some, int* out) const {
        const float top = greatest_;
        for (int i = 0; i < count; ++i) out[i] = bin(top - some[i]);
    }

    float greatest() const {
        // As integers of the same order, whose greatest the compiler finds with vectors.
        int32_t most = std::numeric_limits<int32_t>::min();
        every([&](int64_t, int count, const float* some) {
            int32_t here = most;
            for (int i = 0; i < count; ++i) {
                const int32_t bits = std::bit_cast<int32_t>(some[i]);
                here = std::max(here, bits ^ ((bits >> 31) & 0x7fffffff));
            }
            most = here;
        });
        return std::bit_cast<float>(most ^ ((most >> 31) & 0x7fffffff));
    }

    int64_t first_of(float wanted) const {
        int64_t found = -1;
        every([&](int64_t from, int count, const float* some) {
            for (int i = 0; i < count && found < 0; ++i)
                if (some[i] == wanted) found = from + i;
        });
        return std::max<int64_t>(found, 0);
    }

    // Fill `counts_`, and `masses_` when they are asked for.
    void weigh(bool masses) {
        std::fill(masses_, masses_ + BINS, 0.0);
        std::fill(counts_, counts_ + BINS, int64_t(0));
        const double top = greatest_;
        every([&](int64_t, int count, const float* some) {
            int at[BLOCK];
            bins(count, some, at);
            for (int i = 0; i < count; ++i) ++counts_[at[i]];
            if (!masses) return;
            double weights[BLOCK];
            for (int i = 0; i < count; ++i) weights[i] = power(double(some[i]) - top);
            for (int i = 0; i < count; ++i) masses_[at[i]] += weights[i];
        });
    }

    // The tokens of the bins `first` to `last`, in `room`, in no order; how many.
    int64_t gathered(int first, int last) const {
        int64_t found = 0;
        every([&](int64_t from, int count, const float* some) {
            int at[BLOCK];
            bins(count, some, at);
            int hits = 0;
            for (int i = 0; i < count; ++i) hits += (at[i] >= first) & (at[i] <= last);
            if (!hits) return;
            for (int i = 0; i < count; ++i)
                if (at[i] >= first && at[i] <= last) d_.room[found++] = {some[i], int32_t(from + i)};
        });
        return found;
    }

    static bool before(const ac_likely& a, const ac_likely& b) {
        return a.score != b.score ? a.score > b.score : a.id < b.id;
    }

    double mass_of(int64_t from, int64_t to) const {
        double mass = 0;
        for (int64_t i = from; i < to; ++i) mass += weight(d_.room[i].score);
        return mass;
    }

    // Of the `count` likeliest tokens the one at `point` of what top-p leaves of their mass. Scores alone say which they
    // are.
    int64_t among(int64_t count, double point) {
        weigh(false);
        int64_t near = 0;
        int last = 0;
        while ((near += counts_[last]) < count) ++last;
        std::partial_sort(d_.room, d_.room + count, d_.room + gathered(0, last), before);
        const double total = mass_of(0, count);
        double mass = 0;
        if (d_.top_p < 1)
            for (int64_t i = 0; i < count && mass / total < d_.top_p; ++i) mass += weight(d_.room[i].score);
        const double target = point * (d_.top_p < 1 ? mass : total);
        mass = weight(d_.room[0].score);
        int64_t at = 0;
        while (at + 1 < count && !(mass > target)) mass += weight(d_.room[++at].score);
        return d_.room[at].id;
    }

    // The first token, the likeliest coming first, with which the mass is enough; the last one where it never is.
    template <class Enough> Place crossing(Enough enough) const {
        double mass = 0;
        int at = 0, last = BINS - 1;
        while (!counts_[last]) --last;
        for (; at < last && !enough(mass + masses_[at]); ++at) mass += masses_[at];
        int64_t low = 0, high = gathered(at, at);
        while (high - low > FEW) {
            const int64_t middle = low + (high - low) / 2;
            std::nth_element(d_.room + low, d_.room + middle, d_.room + high, before);
            const double likelier = mass_of(low, middle);
            if (enough(mass + likelier))
                high = middle;
            else
                mass += likelier, low = middle;
        }
        std::sort(d_.room + low, d_.room + high, before);
        for (mass += weight(d_.room[low].score); low + 1 < high && !enough(mass);) mass += weight(d_.room[++low].score);
        return {d_.room[low].id, mass};
    }

    const ac_draw& d_;
    Logits logits_;
    float by_;
    float greatest_ = 0;
    double masses_[BINS];
    int64_t counts_[BINS];
};

int64_t draw(const ac_draw& d, int64_t position) {
    if (d.wide) return Draw(d, Wide{static_cast<const float*>(d.logits)}).token(position);
    return Draw(d, Narrow{static_cast<const uint16_t*>(d.logits)}).token(position);
}

}  // namespace
