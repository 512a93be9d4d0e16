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

    const auto head_keys = k + key_head * k_strides[2];
    const auto head_values = v + head * v_strides[2];
    const auto head_gates = g + head * g_strides[2];
    const auto head_strengths = beta + head * beta_strides[2];
    const int key_row = int(k_strides[1]), key_channel = int(k_strides[3]);
    const int value_row = int(v_strides[1]), value_column = int(v_strides[3]);
    const int gate_row = int(g_strides[1]), gate_channel = by_channel ? int(g_strides[3]) : 0;
    const int strength_row = int(beta_strides[1]);

    float memory[columns][channels];
#pragma unroll
    for (int i = 0; i < columns; ++i) {
#pragma unroll
        for (int c = 0; c < channels; ++c) memory[i][c] = state[rows + i * Dk + c * 32];
    }
    for (int token = 0; token < tokens; ++token) {
        const int node = path[token * path_strides[0]];
        float gate = by_channel ? 1.0f : float(head_gates[node * gate_row]);
        float strength = float(head_strengths[node * strength_row]);
        if (makes_gates) {
            gate = gate_of(gate, float(A_log[head * A_log_strides[0]]), float(dt_bias[head * dt_bias_strides[0]]));
            strength = strength_of(strength);
        }
        float key[channels];
        float square = 0.0f;
#pragma unroll
        for (int c = 0; c < channels; ++c) {
            key[c] = float(head_keys[node * key_row + (c * 32 + lane) * key_channel]);
            square += key[c] * key[c];
        }
        const float key_scale = normed ? 1.0f : shortened_by(warp_sum(square));
        float found[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) found[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < channels; ++c) {
            const int at = node * gate_row + (c * 32 + lane) * gate_channel;
            const float decay = by_channel ? float(head_gates[at]) : gate;
            key[c] *= key_scale;
#pragma unroll
            for (int i = 0; i < columns; ++i) {
                memory[i][c] *= decay;
                found[i] += memory[i][c] * key[c];
            }
        }
#pragma unroll
        for (int i = 0; i < columns; ++i) found[i] = warp_sum(found[i]);
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const float value = float(head_values[node * value_row + (column + i) * value_column]);
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
