#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

// 32 consecutive values of one row of w, one below the other in a column of a tile.
//
// Value i of a row lies in bits [BITS * i, BITS * (i + 1)) of the row's words, as mx.quantize packs it. Reads
// 4 * BITS bytes at a multiple of 16. Rounds q * scale + bias to T once.
template <typename T, int BITS>
void dequantise_column(const device uint* packed, float scale, float bias, threadgroup T* column, int stride) {
    constexpr int PER_WORD = 32 / BITS;
    constexpr uint MASK = (1u << BITS) - 1u;
#pragma unroll
    for (int quad = 0; quad < BITS / 4; ++quad) {
        const uint4 words = ((const device uint4*)packed)[quad];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
#pragma unroll
            for (int i = 0; i < PER_WORD; ++i) {
                const float q = float((words[word] >> uint(BITS * i)) & MASK);
                column[((quad * 4 + word) * PER_WORD + i) * stride] = T(metal::fma(q, scale, bias));
            }
        }
    }
}
