// The state after the accepted path of a tree: the algorithm of commit.metal, which explains it.
//
// Grid: (8 * Dv, Hv, 1) threads in blocks of (128, 1, 1), no ragged one.
    constexpr int columns = 4;
    constexpr int channels = Dk / 32;

    auto warp_sum = [](float value) {
#pragma unroll
        for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
        return value;
    };

    const int lane = int(threadIdx.x) % 32;
    const int tokens = path_shape[0];
    const int key_heads = k_shape[2];
    const int heads = v_shape[2];
    const int width = v_shape[3];
    const int head = int(blockIdx.y);
    const int key_head = head / (heads / key_heads);
    const int column = (int(blockIdx.x) * 4 + int(threadIdx.x) / 32) * columns;
    const size_t rows = (size_t(head) * width + column) * Dk + lane;

    float memory[columns][channels];
#pragma unroll
    for (int i = 0; i < columns; ++i) {
#pragma unroll
        for (int c = 0; c < channels; ++c) memory[i][c] = state[rows + i * Dk + c * 32];
    }
    for (int token = 0; token < tokens; ++token) {
        const int node = path[token];
        const float strength = float(beta[node * heads + head]);
        float key[channels];
        float found[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) found[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < channels; ++c) {
            key[c] = float(k[(node * key_heads + key_head) * Dk + c * 32 + lane]);
            const int at = by_channel ? (node * heads + head) * Dk + c * 32 + lane : node * heads + head;
            const float gate = float(g[at]);
#pragma unroll
            for (int i = 0; i < columns; ++i) {
                memory[i][c] *= gate;
                found[i] += memory[i][c] * key[c];
            }
        }
#pragma unroll
        for (int i = 0; i < columns; ++i) found[i] = warp_sum(found[i]);
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const float value = float(v[(size_t(node) * heads + head) * width + column + i]);
            const float write = strength * (value - found[i]);
#pragma unroll
            for (int c = 0; c < channels; ++c) memory[i][c] += write * key[c];
        }
    }
#pragma unroll
    for (int i = 0; i < columns; ++i) {
#pragma unroll
        for (int c = 0; c < channels; ++c) after[rows + i * Dk + c * 32] = memory[i][c];
    }
