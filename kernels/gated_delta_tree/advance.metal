// Outputs of a chain of tokens and the state behind it, by the gated delta rule, from one reading of the state.
//
// For one head and one token after another, with S the state before the token: d = beta (v - g S k),
// y = g S q + (k . q) d, and then S = g S + d k^T; g per key channel where the family has it so. y is S q of the state
// after the token, written so that no sum over the key channels waits for another.
//
// Rows are read in their strides, the state row by row. If makes_gates, g and beta are still a and b of Rows, and are
// made into gates and strengths here; if not normed, so are short keys and queries (problem.py has the formulas).
//
// A simdgroup holds 4 value columns of a head, its lanes Dk / 32 key channels of each, in registers from the first
// token to the last; so a column's sum over the key channels is one simd_sum, and nine of them are under way at once.
// Columns know nothing of each other: there is neither threadgroup memory nor a barrier.
//
// Bytes: the state is read once and written once, 8 Hv Dv Dk, where outputs.metal and commit.metal together move 12 Hv
// Dv Dk; q, k (and g) once per 4 columns, from caches. Flops: 7 N Hv Dv Dk for N tokens. A token waits for the one before
// it: with long chains outputs.metal has more to do at once.
//
// Template: T is the type of y; Dk is 64, 128 or 256; by_channel says that g is [1, N, Hv, Dk] and not [1, N, Hv].
// Grid: (8 * Dv, Hv, 1) threads in groups of (128, 1, 1): 16 columns a group.
    constexpr int columns = 4;
    constexpr int channels = Dk / 32;

    const int lane = int(thread_index_in_simdgroup);
    const int tokens = int(k_shape[1]);
    const int key_heads = int(k_shape[2]);
    const int heads = int(v_shape[2]);
    const int width = int(v_shape[3]);
    const int head = int(threadgroup_position_in_grid.y);
    const int key_head = head / (heads / key_heads);
    const int column = (int(threadgroup_position_in_grid.x) * 4 + int(simdgroup_index_in_threadgroup)) * columns;
    const size_t rows = (size_t(head) * width + column) * Dk + lane;

    const auto head_queries = q + key_head * q_strides[2];
    const auto head_keys = k + key_head * k_strides[2];
    const auto head_values = v + head * v_strides[2];
    const auto head_gates = g + head * g_strides[2];
    const auto head_strengths = beta + head * beta_strides[2];
    const int query_row = int(q_strides[1]), query_channel = int(q_strides[3]);
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
        float gate = by_channel ? 1.0f : float(head_gates[token * gate_row]);
        float strength = float(head_strengths[token * strength_row]);
        if (makes_gates) {
            gate = gate_of(gate, float(A_log[head * A_log_strides[0]]), float(dt_bias[head * dt_bias_strides[0]]));
            strength = strength_of(strength);
        }
        float key[channels];
        float query[channels];
        float key_square = 0.0f;
        float query_square = 0.0f;
#pragma unroll
        for (int c = 0; c < channels; ++c) {
            key[c] = float(head_keys[token * key_row + (c * 32 + lane) * key_channel]);
            query[c] = float(head_queries[token * query_row + (c * 32 + lane) * query_channel]);
            key_square += key[c] * key[c];
            query_square += query[c] * query[c];
        }
        const float key_scale = normed ? 1.0f : shortened_by(simd_sum(key_square));
        const float query_scale = normed ? 1.0f : shortened_by(simd_sum(query_square)) * precise::rsqrt(float(Dk));
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
            const int at = token * gate_row + (c * 32 + lane) * gate_channel;
            const float decay = by_channel ? float(head_gates[at]) : gate;
            key[c] *= key_scale;
            query[c] *= query_scale;
            product += key[c] * query[c];
#pragma unroll
            for (int i = 0; i < columns; ++i) {
                memory[i][c] *= decay;
                found[i] += memory[i][c] * key[c];
                seen[i] += memory[i][c] * query[c];
            }
        }
        product = simd_sum(product);
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            found[i] = simd_sum(found[i]);
            seen[i] = simd_sum(seen[i]);
        }
        const size_t place = (size_t(token) * heads + head) * width + column;
        float own = 0.0f;  // lane i has the output of column i
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const float value = float(head_values[token * value_row + (column + i) * value_column]);
            const float write = strength * (value - found[i]);
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
