// Outputs of the gated delta rule at every node of a tree: the algorithm of outputs.metal, which explains it.
//
// A block has 32 value columns of one head and Dk threads; a warp stands for a simdgroup.
// Grid: (Dk * Dv / 32, Hv, 1) threads in blocks of (Dk, 1, 1), no ragged one.
// The state begins at a multiple of 16 bytes.
    constexpr int nodes_at_most = 32;
    constexpr int chunk = 8;
    constexpr int warps = Dk / 32;
    constexpr int channels = Dk / 32;      // of a row, per lane of a warp
    constexpr int lanes = Dk / 16;         // that share two columns
    constexpr int team = lanes / 2;        // that share one column
    constexpr int kept = nodes_at_most / team;

    __shared__ float4 keys[chunk * Dk / 4];
    __shared__ float4 queries[chunk * Dk / 4];
    __shared__ float coupling[chunk * nodes_at_most];
    __shared__ float readout[chunk * nodes_at_most];
    __shared__ float gates[nodes_at_most];       // of heads
    __shared__ float strengths[nodes_at_most];
    __shared__ float key_scales[nodes_at_most];  // by which keys become short
    float* key_channels = reinterpret_cast<float*>(keys);
    float* query_channels = reinterpret_cast<float*>(queries);

    auto warp_sum = [](float value) {
#pragma unroll
        for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
        return value;
    };
    auto dot = [](float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; };

    const int place = int(threadIdx.x);
    const int lane = place % 32;
    const int warp = place / 32;
    const int nodes = q_shape[1];
    const int key_heads = k_shape[2];
    const int heads = v_shape[2];
    const int width = v_shape[3];
    const int head = int(blockIdx.y);
    const int key_head = head / (heads / key_heads);

    const int part = lane % lanes;
    const int rank = part / 2;
    const int first_column = int(blockIdx.x) * 32 + (warp * (32 / lanes) + lane / lanes) * 2;
    const bool second = (part & 1) != 0;
    const int column = first_column + (second ? 1 : 0);

    float4 memory[2][4];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const float4* row = reinterpret_cast<const float4*>(state + (size_t(head) * width + first_column + c) * Dk);
#pragma unroll
        for (int i = 0; i < 4; ++i) memory[c][i] = row[i * lanes + part];
    }
    const auto head_queries = q + key_head * q_strides[2];
    const auto head_keys = k + key_head * k_strides[2];
    const auto head_values = v + head * v_strides[2];
    const auto head_gates = g + head * g_strides[2];
    const int query_row = int(q_strides[1]), query_channel = int(q_strides[3]);
    const int key_row = int(k_strides[1]), key_channel = int(k_strides[3]);
    const int value_row = int(v_strides[1]), value_column = int(v_strides[3]);
    const int gate_row = int(g_strides[1]), gate_channel = by_channel ? int(g_strides[3]) : 0;

    if (place < nodes) {
        float gate = by_channel ? 1.0f : float(head_gates[place * gate_row]);
        float strength = float(beta[place * int(beta_strides[1]) + head * int(beta_strides[2])]);
        if (makes_gates) {
            gate = gate_of(gate, float(A_log[head * A_log_strides[0]]), float(dt_bias[head * dt_bias_strides[0]]));
            strength = strength_of(strength);
        }
        gates[place] = gate;
        strengths[place] = strength;
    }
    for (int node = warp; node < nodes; node += warps) {
        float square = 0.0f;
#pragma unroll
        for (int c = 0; c < channels && !normed; ++c) {
            const float key = float(head_keys[node * key_row + (c * 32 + lane) * key_channel]);
            square += key * key;
        }
        if (!normed) square = warp_sum(square);
        if (lane == 0) key_scales[node] = normed ? 1.0f : shortened_by(square);
    }
    float written[kept];                   // d of the nodes i * team + rank; zero until they are reached
#pragma unroll
    for (int i = 0; i < kept; ++i) written[i] = 0.0f;

    for (int base = 0; base < nodes; base += chunk) {
        __syncthreads();
        for (int slot = warp; slot < chunk && base + slot < nodes; slot += warps) {
            const int node = base + slot;
            float key[channels];
            float query[channels];
            float gate[channels];
            float product = 0.0f;
#pragma unroll
            for (int c = 0; c < channels; ++c) {
                const int channel = c * 32 + lane;
                key[c] = key_scales[node] * float(head_keys[node * key_row + channel * key_channel]);
                query[c] = float(head_queries[node * query_row + channel * query_channel]);
                product += query[c] * query[c];
            }
            const float query_scale = normed ? 1.0f : shortened_by(warp_sum(product)) * rsqrtf(float(Dk));
            product = 0.0f;
#pragma unroll
            for (int c = 0; c < channels; ++c) {
                query[c] *= query_scale;
                product += key[c] * query[c];
                gate[c] = 1.0f;
            }
            product = warp_sum(product);
            float coupled = 0.0f;          // lane j has column j of the node's rows
            float read = lane == node ? product : 0.0f;
            int below = node;
            while (true) {
#pragma unroll
                for (int c = 0; c < channels; ++c) {
                    const int at = below * gate_row + (c * 32 + lane) * gate_channel;
                    gate[c] *= by_channel ? float(head_gates[at]) : gates[below];
                }
                const int above = parents[below * parents_strides[0]];
                if (above < 0) break;
                float with_key = 0.0f;
                float with_query = 0.0f;
#pragma unroll
                for (int c = 0; c < channels; ++c) {
                    const float other = gate[c] * float(head_keys[above * key_row + (c * 32 + lane) * key_channel]);
                    with_key += other * key[c];
                    with_query += other * query[c];
                }
                with_key = key_scales[above] * warp_sum(with_key);
                with_query = key_scales[above] * warp_sum(with_query);
                if (lane == above) {
                    coupled = with_key;
                    read = with_query;
                }
                below = above;
            }
#pragma unroll
            for (int c = 0; c < channels; ++c) {
                key_channels[slot * Dk + c * 32 + lane] = gate[c] * key[c];
                query_channels[slot * Dk + c * 32 + lane] = gate[c] * query[c];
            }
            coupling[slot * nodes_at_most + lane] = coupled;
            readout[slot * nodes_at_most + lane] = read;
        }
        __syncthreads();

        for (int slot = 0; slot < chunk && base + slot < nodes; ++slot) {
            const int node = base + slot;
            float key_first = 0.0f;
            float key_second = 0.0f;
            float query_first = 0.0f;
            float query_second = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 key = keys[slot * (Dk / 4) + i * lanes + part];
                const float4 query = queries[slot * (Dk / 4) + i * lanes + part];
                key_first += dot(memory[0][i], key);
                key_second += dot(memory[1][i], key);
                query_first += dot(memory[0][i], query);
                query_second += dot(memory[1][i], query);
            }
            float found = second ? key_second : key_first;
            float seen = second ? query_second : query_first;
            found += __shfl_xor_sync(0xffffffffu, second ? key_first : key_second, 1);
            seen += __shfl_xor_sync(0xffffffffu, second ? query_first : query_second, 1);
#pragma unroll
            for (int i = 0; i < kept; ++i) {
                found += coupling[slot * nodes_at_most + i * team + rank] * written[i];
                seen += readout[slot * nodes_at_most + i * team + rank] * written[i];
            }
#pragma unroll
            for (int other = 2; other < lanes; other *= 2) {
                found += __shfl_xor_sync(0xffffffffu, found, other);
                seen += __shfl_xor_sync(0xffffffffu, seen, other);
            }
            const size_t at = (size_t(node) * heads + head) * width + column;
            const float value = float(head_values[node * value_row + column * value_column]);
            const float write = strengths[node] * (value - found);
#pragma unroll
            for (int i = 0; i < kept; ++i) written[i] = i * team + rank == node ? write : written[i];
            if (rank == 0) y[at] = T(seen + readout[slot * nodes_at_most + node] * write);
        }
    }
