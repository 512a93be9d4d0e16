// Outputs of a chain of tokens and the state behind it: the algorithm of advance.metal, which explains it.
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
    const int tokens = k_shape[1];
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
        const float strength = float(beta[token * heads + head]);
        float key[channels];
        float product = 0.0f;
        float found[columns];
        float seen[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            found[i] = 0.0f;
            seen[i] = 0.0f;
        }
#pragma unroll
        for (int c = 0; c < channels; ++c) {
            const int from = (token * key_heads + key_head) * Dk + c * 32 + lane;
            const float query = float(q[from]);
            key[c] = float(k[from]);
            product += key[c] * query;
            const int at = by_channel ? (token * heads + head) * Dk + c * 32 + lane : token * heads + head;
            const float gate = float(g[at]);
#pragma unroll
            for (int i = 0; i < columns; ++i) {
                memory[i][c] *= gate;
                found[i] += memory[i][c] * key[c];
                seen[i] += memory[i][c] * query;
            }
        }
        product = warp_sum(product);
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            found[i] = warp_sum(found[i]);
            seen[i] = warp_sum(seen[i]);
        }
        const size_t place = (size_t(token) * heads + head) * width + column;
        float own = 0.0f;  // lane i has the output of column i
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const float write = strength * (float(v[place + i]) - found[i]);
            own = lane == i ? seen[i] + product * write : own;
#pragma unroll
            for (int c = 0; c < channels; ++c) memory[i][c] += write * key[c];
        }
        if (lane < columns) y[place + lane] = T(own);
    }
#pragma unroll
    for (int i = 0; i < columns; ++i) {
#pragma unroll
        for (int c = 0; c < channels; ++c) after[rows + i * Dk + c * 32] = memory[i][c];
    }
