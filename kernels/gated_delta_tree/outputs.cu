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
    float* key_channels = reinterpret_cast<float*>(keys);
    float* query_channels = reinterpret_cast<float*>(queries);

    auto warp_sum = [](float value) {
#pragma unroll
        for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
        return value;
    };
    auto dot = [](float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; };

    const int lane = int(threadIdx.x) % 32;
    const int warp = int(threadIdx.x) / 32;
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
                const int at = (node * key_heads + key_head) * Dk + c * 32 + lane;
                key[c] = float(k[at]);
                query[c] = float(q[at]);
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
                    const int at = by_channel ? (below * heads + head) * Dk + c * 32 + lane : below * heads + head;
                    gate[c] *= float(g[at]);
                }
                const int above = parents[below];
                if (above < 0) break;
                float with_key = 0.0f;
                float with_query = 0.0f;
#pragma unroll
                for (int c = 0; c < channels; ++c) {
                    const float other = gate[c] * float(k[(above * key_heads + key_head) * Dk + c * 32 + lane]);
                    with_key += other * key[c];
                    with_query += other * query[c];
                }
                with_key = warp_sum(with_key);
                with_query = warp_sum(with_query);
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
            const float write = float(beta[node * heads + head]) * (float(v[at]) - found);
#pragma unroll
            for (int i = 0; i < kept; ++i) written[i] = i * team + rank == node ? write : written[i];
            if (rank == 0) y[at] = T(seen + readout[slot * nodes_at_most + node] * write);
        }
    }
