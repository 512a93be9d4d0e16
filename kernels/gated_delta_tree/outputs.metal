// Outputs of the gated delta rule at every node of a tree, from one reading of the state before the tree.
//
// For one head, with S the state before the tree, R(n, j) the product of the gates after node j down to node n, and
// G(n) the product of all gates down to n (per key channel where the family has it so):
//   d(n) = beta(n) (v(n) - S (G(n) k(n)) - sum over j above n of A(n, j) d(j)),     A(n, j) = k(j) . (R(n, j) k(n))
//   y(n) = S (G(n) q(n)) + sum over j above n, and n itself, of B(n, j) d(j),       B(n, j) = k(j) . (R(n, j) q(n))
// A node's d is one float per value column, so no node needs a state of its own, and nothing is replayed.
//
// Rows are read in their strides, the state row by row. If makes_gates, g and beta are still a and b of Rows, and are
// made into gates and strengths here; if not normed, so are short keys and queries (problem.py has the formulas).
//
// A threadgroup has 32 value columns of one head and Dk threads. Its first step for all nodes is their gates and
// strengths, and by which factor each key becomes short. Then nodes go by in chunks of 8, in two steps:
//   1. a simdgroup per node walks up the path, its lanes holding Dk / 32 channels each. It leaves the gated key and
//      query and the rows of A and B in threadgroup memory. Products are taken along paths only.
//   2. Dk / 16 lanes hold the state of two columns, 32 floats a lane, for the whole run. They find the gated key and
//      query in both; then each lane goes on with one column, Dk / 32 lanes a column, each keeping every
//      (Dk / 32)-th d of its column in registers.
//
// Bytes: the state is read once, 4 Hv Dv Dk; each of k, q and g of a path once per 32 value columns of each head.
// Flops for N nodes and E pairs of a node and one above it: 4 N Hv Dv Dk in step 2, 4 E Hv Dk (Dv / 32) in step 1.
// simd_shuffle_xor within a team of lanes that share columns, simd_sum over a row: no lane layout is assumed.
//
// Template: Dk is 64, 128 or 256; by_channel says that g is [1, N, Hv, Dk] and not [1, N, Hv]; T is the type of y.
// Grid: (Dk * Dv / 32, Hv, 1) threads in groups of (Dk, 1, 1). The state begins at a multiple of 16 bytes.
    constexpr int nodes_at_most = 32;
    constexpr int chunk = 8;
    constexpr int simdgroups = Dk / 32;
    constexpr int channels = Dk / 32;      // of a row, per lane of a simdgroup
    constexpr int lanes = Dk / 16;         // that share two columns
    constexpr int team = lanes / 2;        // that share one column
    constexpr int kept = nodes_at_most / team;

    threadgroup float4 keys[chunk * Dk / 4];
    threadgroup float4 queries[chunk * Dk / 4];
    threadgroup float coupling[chunk * nodes_at_most];
    threadgroup float readout[chunk * nodes_at_most];
    threadgroup float gates[nodes_at_most];       // of heads
    threadgroup float strengths[nodes_at_most];
    threadgroup float key_scales[nodes_at_most];  // by which keys become short
    threadgroup float* key_channels = (threadgroup float*)keys;
    threadgroup float* query_channels = (threadgroup float*)queries;

    const int place = int(thread_position_in_threadgroup.x);
    const int lane = int(thread_index_in_simdgroup);
    const int simdgroup = int(simdgroup_index_in_threadgroup);
    const int nodes = int(q_shape[1]);
    const int key_heads = int(k_shape[2]);
    const int heads = int(v_shape[2]);
    const int width = int(v_shape[3]);
    const int head = int(threadgroup_position_in_grid.y);
    const int key_head = head / (heads / key_heads);

    const int part = lane % lanes;
    const int rank = part / 2;
    const int first_column = int(threadgroup_position_in_grid.x) * 32 + (simdgroup * (32 / lanes) + lane / lanes) * 2;
    const bool second = (part & 1) != 0;
    const int column = first_column + (second ? 1 : 0);

    float4 memory[2][4];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const device float4* row = (const device float4*)(state + (size_t(head) * width + first_column + c) * Dk);
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
    for (int node = simdgroup; node < nodes; node += simdgroups) {
        float square = 0.0f;
#pragma unroll
        for (int c = 0; c < channels && !normed; ++c) {
            const float key = float(head_keys[node * key_row + (c * 32 + lane) * key_channel]);
            square += key * key;
        }
        if (!normed) square = simd_sum(square);
        if (lane == 0) key_scales[node] = normed ? 1.0f : shortened_by(square);
    }
    float written[kept];                   // d of the nodes i * team + rank; zero until they are reached
#pragma unroll
    for (int i = 0; i < kept; ++i) written[i] = 0.0f;

    for (int base = 0; base < nodes; base += chunk) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int slot = simdgroup; slot < chunk && base + slot < nodes; slot += simdgroups) {
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
            const float query_scale = normed ? 1.0f : shortened_by(simd_sum(product)) * precise::rsqrt(float(Dk));
            product = 0.0f;
#pragma unroll
            for (int c = 0; c < channels; ++c) {
                query[c] *= query_scale;
                product += key[c] * query[c];
                gate[c] = 1.0f;
            }
            product = simd_sum(product);
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
                with_key = key_scales[above] * simd_sum(with_key);
                with_query = key_scales[above] * simd_sum(with_query);
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
        threadgroup_barrier(mem_flags::mem_threadgroup);

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
            found += simd_shuffle_xor(second ? key_first : key_second, ushort(1));
            seen += simd_shuffle_xor(second ? query_first : query_second, ushort(1));
#pragma unroll
            for (int i = 0; i < kept; ++i) {
                found += coupling[slot * nodes_at_most + i * team + rank] * written[i];
                seen += readout[slot * nodes_at_most + i * team + rank] * written[i];
            }
#pragma unroll
            for (int other = 2; other < lanes; other *= 2) {
                found += simd_shuffle_xor(found, ushort(other));
                seen += simd_shuffle_xor(seen, ushort(other));
            }
            const size_t at = (size_t(node) * heads + head) * width + column;
            const float value = float(head_values[node * value_row + column * value_column]);
            const float write = strengths[node] * (value - found);
#pragma unroll
            for (int i = 0; i < kept; ++i) written[i] = i * team + rank == node ? write : written[i];
            if (rank == 0) y[at] = T(seen + readout[slot * nodes_at_most + node] * write);
        }
    }
