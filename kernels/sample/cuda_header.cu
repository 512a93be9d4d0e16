// As metal_header.metal, whose comments hold here too.
namespace cidermill_sample {

using uint = unsigned int;
using ulong = unsigned long long;

__device__ inline void philox(uint block, uint position, uint key0, uint key1, uint* words) {
    uint c0 = block, c1 = position, c2 = 0u, c3 = 0u;
    for (int turn = 0; turn < 10; ++turn) {
        const uint high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
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

__device__ inline float log_of(float x) {
    const uint bits = __float_as_uint(x), shifted = bits - 0x3F3504F3u;
    const int exponent = int(shifted) >> 23;
    const float m = __uint_as_float((shifted & 0x7FFFFFu) + 0x3F3504F3u);
    const float z = (m - 1.0f) / (m + 1.0f), y = z * z;
    const float series = 2.0f * z * (1.0f + y * (0.33333333f + y * (0.2f + y * (0.14285714f + y * 0.11111111f))));
    return float(exponent) * 0.693359375f + (series + float(exponent) * -2.12194440e-4f);
}

__device__ inline float gumbel(uint bits) {
    const float u = (float(bits) + 0.5f) * 2.3283064365386963e-10f;
    float e;
    if (bits < 0x20000000u) {
        e = u * (1.0f + u * (0.5f + u * (0.33333333f + u * (0.25f + u * (0.2f
            + u * (0.16666667f + u * (0.14285714f + u * 0.125f)))))));
    } else {
        e = -log_of((float(~bits) + 0.5f) * 2.3283064365386963e-10f);
    }
    return -log_of(e);
}

__device__ inline uint ordered(float x) {
    const uint bits = __float_as_uint(x == 0.0f ? 0.0f : x);
    return (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
}

template <typename T> __device__ inline float logprob(const T* row, uint id, float normaliser) {
    return float(T(float(row[id]) - normaliser));
}

template <typename T>
__device__ inline void four_logprobs(const T* row, uint quad, uint vocabulary, float normaliser, float* values) {
    for (uint j = 0; j < 4; ++j) {
        const uint id = quad * 4 + j;
        values[j] = id < vocabulary ? logprob<T>(row, id, normaliser) : -__int_as_float(0x7F800000);
    }
}

// As in metal_header.metal, with a quad in one load where the row allows it.
template <typename T, uint COUNT, int THREADS>
__device__ inline void read_quads(const T* row, uint quad, uint vocabulary, float normaliser, float* values) {
    struct alignas(4 * sizeof(T)) Four {
        T of[4];
    };
    const bool aligned = reinterpret_cast<ulong>(row) % sizeof(Four) == 0;
    if (aligned && (quad + (COUNT - 1u) * uint(THREADS)) * 4 + 3 < vocabulary) {
        Four read[COUNT];
#pragma unroll
        for (uint i = 0; i < COUNT; ++i) {
            read[i] = *reinterpret_cast<const Four*>(row + (quad + i * uint(THREADS)) * 4);
        }
#pragma unroll
        for (uint i = 0; i < COUNT * 4; ++i) values[i] = float(T(float(read[i / 4].of[i % 4]) - normaliser));
    } else {
#pragma unroll
        for (uint i = 0; i < COUNT; ++i) {
            four_logprobs<T>(row, quad + i * uint(THREADS), vocabulary, normaliser, values + i * 4);
        }
    }
}

__device__ inline uint step_of(float best, float value) {
    return uint(fminf((best - value) * 64.0f, 2047.0f));
}

__device__ inline bool survives(
    float value, uint id, float best, uint step, uint prefix, uint shift, uint last, uint id_shift) {
    if (value == -__int_as_float(0x7F800000)) return false;
    const uint mine = step_of(best, value), key = ordered(value) >> shift;
    return mine < step || (mine == step && (key > prefix || (key == prefix && (id >> id_shift) <= last)));
}

__device__ inline uint lack_of(float best, float value, uint step) {
    const float r = fminf((best - value) * 64.0f - float(step), 1.0f) * 0.015625f;
    return uint(r * (1.0f - r * (0.5f - r * (0.16666667f - r * 0.041666667f))) * 1048576.0f + 0.5f);
}

__device__ inline ulong mass_of(uint count, uint lacks, uint scale) {
    return (((ulong(count) << 20) - ulong(lacks)) * ulong(scale >> 6)) >> (scale & 63u);
}

__device__ inline float simd_max(float value) {
    for (int delta = 16; delta > 0; delta /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, delta));
    return value;
}

__device__ inline uint simd_min(uint value) {
    for (int delta = 16; delta > 0; delta /= 2) {
        const uint other = __shfl_xor_sync(0xFFFFFFFFu, value, delta);
        value = other < value ? other : value;
    }
    return value;
}

template <typename N> __device__ inline N prefix_sum(N value, uint lane) {
    for (uint delta = 1; delta < 32; delta *= 2) {
        const N before = __shfl_up_sync(0xFFFFFFFFu, value, delta);
        if (lane >= delta) value += before;
    }
    return value;
}

}  // namespace cidermill_sample
