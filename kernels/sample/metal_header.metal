// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): the four words of counter (block, position, 0, 0).
inline void philox(uint block, uint position, uint key0, uint key1, thread uint* words) {
    uint c0 = block, c1 = position, c2 = 0u, c3 = 0u;
    for (int turn = 0; turn < 10; ++turn) {
        const uint high0 = metal::mulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint high1 = metal::mulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

// Natural logarithm of a normal x > 0, by additions, products and one division: a library's may be some units off.
inline float log_of(float x) {
    const uint bits = as_type<uint>(x), shifted = bits - 0x3F3504F3u;  // mantissa from sqrt(1/2) to sqrt(2)
    const int exponent = as_type<int>(shifted) >> 23;
    const float m = as_type<float>((shifted & 0x7FFFFFu) + 0x3F3504F3u);
    const float z = (m - 1.0f) / (m + 1.0f), y = z * z;
    const float series = 2.0f * z * (1.0f + y * (0.33333333f + y * (0.2f + y * (0.14285714f + y * 0.11111111f))));
    return float(exponent) * 0.693359375f + (series + float(exponent) * -2.12194440e-4f);
}

// Standard Gumbel noise -log(-log1p(-u)) with u = (bits + 1/2) / 2^32.
inline float gumbel(uint bits) {
    const float u = (float(bits) + 0.5f) * 2.3283064365386963e-10f;
    float e;
    if (bits < 0x20000000u) {  // u < 1/8
        e = u * (1.0f + u * (0.5f + u * (0.33333333f + u * (0.25f + u * (0.2f
            + u * (0.16666667f + u * (0.14285714f + u * 0.125f)))))));
    } else {
        e = -log_of((float(~bits) + 0.5f) * 2.3283064365386963e-10f);
    }
    return -log_of(e);
}

// A float's bits, turned so that unsigned order is the floats' order.
inline uint ordered(float x) {
    const uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
    return (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
}

// Log-probability in the logits' own type, rounded as MLX's subtraction rounds.
template <typename T> inline float logprob(const device T* row, uint id, float normaliser) {
    return float(T(float(row[id]) - normaliser));
}

// Those of tokens 4 quad to 4 quad + 3, which no draw can take where they are beyond the vocabulary.
template <typename T>
inline void four_logprobs(const device T* row, uint quad, uint vocabulary, float normaliser, thread float* values) {
    for (uint j = 0; j < 4; ++j) {
        const uint id = quad * 4 + j;
        values[j] = id < vocabulary ? logprob<T>(row, id, normaliser) : -INFINITY;
    }
}

// Those of COUNT quads, THREADS apart: nothing waits for one of them before all are asked for.
template <typename T, uint COUNT, int THREADS>
inline void read_quads(const device T* row, uint quad, uint vocabulary, float normaliser, thread float* values) {
    if ((quad + (COUNT - 1u) * uint(THREADS)) * 4 + 3 < vocabulary) {
#pragma unroll
        for (uint i = 0; i < COUNT * 4; ++i) values[i] = float(row[(quad + i / 4 * uint(THREADS)) * 4 + i % 4]);
#pragma unroll
        for (uint i = 0; i < COUNT * 4; ++i) values[i] = float(T(values[i] - normaliser));
    } else {
#pragma unroll
        for (uint i = 0; i < COUNT; ++i) {
            four_logprobs<T>(row, quad + i * uint(THREADS), vocabulary, normaliser, values + i * 4);
        }
    }
}

// Steps of 1/64 below the best log-probability; the last of 2048 takes all from there on.
inline uint step_of(float best, float value) {
    return uint(metal::min((best - value) * 64.0f, 2047.0f));
}

// Whether a token is above the cut or at it: at most `step` below the best, in that step with bits >> shift from `prefix`,
// of equal bits up to id `last`, shifted too.
inline bool survives(
    float value, uint id, float best, uint step, uint prefix, uint shift, uint last, uint id_shift) {
    if (value == -INFINITY) return false;
    const uint mine = step_of(best, value), key = ordered(value) >> shift;
    return mine < step || (mine == step && (key > prefix || (key == prefix && (id >> id_shift) <= last)));
}

// (1 - exp(-r)) 2^20 for the remainder 0 <= r < 1/64 within a step: what a token lacks of the weight at the step's top.
inline uint lack_of(float best, float value, uint step) {
    const float r = metal::min((best - value) * 64.0f - float(step), 1.0f) * 0.015625f;
    return uint(r * (1.0f - r * (0.5f - r * (0.16666667f - r * 0.041666667f))) * 1048576.0f + 0.5f);
}

// Weight 2^45 exp(-step / 64) (count - lacks / 2^20); scale is mantissa * 64 + shift of exp(-step / 64) 2^25.
inline ulong mass_of(uint count, uint lacks, uint scale) {
    return (((ulong(count) << 20) - ulong(lacks)) * ulong(scale >> 6)) >> (scale & 63u);
}

inline ulong shuffled_up(ulong value, ushort delta) {
    const uint low = metal::simd_shuffle_up(uint(value), delta);
    const uint high = metal::simd_shuffle_up(uint(value >> 32), delta);
    return (ulong(high) << 32) | ulong(low);
}

// Sums over this lane and those before it; simd_prefix_inclusive_sum has no 64-bit form.
inline ulong prefix_sum(ulong value, uint lane) {
    for (ushort delta = 1; delta < 32; delta *= 2) {
        const ulong before = shuffled_up(value, delta);
        if (lane >= uint(delta)) value += before;
    }
    return value;
}
