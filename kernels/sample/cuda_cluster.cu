    // metal.metal, step by step, with a row spread over a cluster of SAMPLE_BLOCKS thread blocks; its comments hold here
    // too, and results are the same integers, scores and tokens.
    //
    // Each block walks over every SAMPLE_BLOCKS-th piece of the row, which its multiprocessor's cache keeps from pass to
    // pass. Blocks tell each other their best, and add up histograms in shares: block b the bins b * share and following,
    // of all blocks' shared memory. A share's cut is looked for with the sums of the shares before it, and told to all.
    // Three cluster barriers a level: the histograms are whole, the shares' sums are there, the cut is there.
    //
    // Where a launch came without its cluster (a CUDA graph may lose it in an update), the first block has the whole row.
    using namespace cidermill_sample;
    const float INFINITE = __int_as_float(0x7F800000);
    constexpr uint BINS = 2048u, NEVER = 0xFFFFFFFFu, SIMDGROUPS = uint(THREADS) / 32u;
    __shared__ uint counts[2048];
    __shared__ uint lacks[2048];
    __shared__ ulong group_masses[SIMDGROUPS];
    __shared__ uint group_counts[SIMDGROUPS];
    __shared__ float group_best[SIMDGROUPS];
    __shared__ uint group_ids[SIMDGROUPS];
    __shared__ float group_second[SIMDGROUPS];
    // By block of the cluster, told by it.
    __shared__ ulong told_masses[SAMPLE_BLOCKS];
    __shared__ uint told_counts[SAMPLE_BLOCKS];
    __shared__ float told_best[SAMPLE_BLOCKS];
    __shared__ uint told_ids[SAMPLE_BLOCKS];
    __shared__ float told_first[SAMPLE_BLOCKS];
    __shared__ float told_second[SAMPLE_BLOCKS];
    __shared__ uint told_winners[SAMPLE_BLOCKS];
    // Told by the block that has the cut.
    __shared__ uint cut[3];  // bin, tokens in it, tokens above it
    __shared__ ulong cut_mass[1];
    // Of the first block alone.
    __shared__ uint listed[1];
    __shared__ uint listed_ids[32];
    __shared__ float listed_values[32];

    const uint blocks = cluster_blocks(), rank = blockIdx.x % uint(SAMPLE_BLOCKS);
    const uint row_index = blockIdx.x / uint(SAMPLE_BLOCKS), tid = threadIdx.x;
    const uint lane = tid % 32, simdgroup = tid / 32;
    if (blocks == 1u && rank != 0u) return;
    cluster_arrive();
    const uint vocabulary = uint(logits_shape[1]);
    const T* row = logits + ulong(row_index) * vocabulary;
    const bool aligned = starts_at_fours(row);
    const uint* asked = parameters + row_index * 16;
    const float normaliser = float(normalisers[row_index]);
    const uint top = asked[9], width = top > 0u ? top : 1u;
    const uint first_quad = rank * uint(THREADS) + tid, stride = blocks * uint(THREADS);

    // The best log-probability and the lowest id that has it.
    float best = -INFINITE;
    uint best_id = NEVER, numbers = 1u;
#pragma unroll 4
    for (uint quad = first_quad; quad * 4 < vocabulary; quad += stride) {
        float values[4];
        quad_logprobs<T>(row, quad, vocabulary, normaliser, aligned, values);
        for (uint j = 0; j < 4; ++j) {
            const uint id = quad * 4 + j;
            const float value = values[j];
            if (value != value) numbers = 0u;
            if (value > best) {
                best = value;
                best_id = id;
            }
        }
    }
    const float simd_best = simd_max(best);
    const uint simd_id = simd_min(best == simd_best ? best_id : NEVER);
    numbers = simd_min(numbers);
    if (tid == 0) listed[0] = 0u;
    if (lane == 0) {
        group_best[simdgroup] = simd_best;
        group_ids[simdgroup] = simd_id;
        group_counts[simdgroup] = numbers;
    }
    __syncthreads();
    best = -INFINITE;
    best_id = NEVER;
    for (uint s = 0; s < SIMDGROUPS; ++s) {
        numbers = group_counts[s] < numbers ? group_counts[s] : numbers;
        if (group_best[s] > best || (group_best[s] == best && group_ids[s] < best_id)) {
            best = group_best[s];
            best_id = group_ids[s];
        }
    }
    cluster_wait();  // the other blocks have begun: their memory is there
    if (tid < blocks) {
        distant(told_best, tid)[rank] = best;
        distant(told_ids, tid)[rank] = best_id;
        distant(told_counts, tid)[rank] = numbers;
    }
    cluster_barrier();
    for (uint b = 0; b < blocks; ++b) {
        numbers = told_counts[b] < numbers ? told_counts[b] : numbers;
        if (told_best[b] > best || (told_best[b] == best && told_ids[b] < best_id)) {
            best = told_best[b];
            best_id = told_ids[b];
        }
    }
    if (numbers == 0u || !(fabsf(best) < INFINITE)) {
        if (rank == 0u && tid == 0) {
            tokens[row_index] = -1;
            logprobs[row_index] = -INFINITE;
            needs_host[row_index] = 0u;
        }
        for (uint i = tid; rank == 0u && i < width; i += uint(THREADS)) {
            top_tokens[row_index * width + i] = -1;
            top_logprobs[row_index * width + i] = -INFINITE;
        }
        return;
    }
    if (asked[0] != 0u && rank == 0u && tid == 0) {
        tokens[row_index] = int(best_id);
        logprobs[row_index] = best;
        needs_host[row_index] = 0u;
    }
    if (top == 0u && rank == 0u && tid == 0) {
        top_tokens[row_index] = -1;
        top_logprobs[row_index] = -INFINITE;
    }

    // Goal 0 is the draw, goal 1 the list of the likeliest.
    for (int goal = asked[0] != 0u ? 1 : 0; goal < (top > 0u ? 2 : 1); ++goal) {
        const uint top_k = goal == 1 ? top : (asked[1] == 0u ? NEVER : asked[1]);
        const bool has_top_p = goal == 0 && asked[2] != 0u;
        ulong late = ~ulong(0), early = ~ulong(0);  // the mass at which the cut comes at the latest, and the earliest
        bool crossed = false;
        // Survivors lie at most `step` below the best, bits >> shift from `prefix`, of equal bits up to id `last`.
        uint step = BINS - 1, shift = 0u, prefix = 0u, last = NEVER, id_shift = 0u;
        uint count_above = 0u;
        ulong mass_above = 0;
        const int levels = has_top_p || top_k != NEVER ? 6 : 0;
        for (int level = 0; level < levels; ++level) {
            if (level == 3 && sizeof(T) == 2) continue;  // the low bits of a narrow float are all the same
            const bool weighed = has_top_p && level < 4;
            for (uint bin = tid; bin < BINS; bin += uint(THREADS)) {
                counts[bin] = 0u;
                lacks[bin] = 0u;
            }
            __syncthreads();
            if (tid == 0) cut[1] = 0u;
            for (uint quad = first_quad; quad * 4 < vocabulary; quad += stride) {
                float values[4];
                quad_logprobs<T>(row, quad, vocabulary, normaliser, aligned, values);
                for (uint j = 0; j < 4; ++j) {
                    const uint id = quad * 4 + j;
                    const float value = values[j];
                    if (value == -INFINITE) continue;
                    const uint mine = step_of(best, value), key = ordered(value);
                    uint bin = mine;
                    if (level > 0) {
                        if (mine != step || (level > 1 && (key >> shift) != prefix)) continue;
                        if (level == 1) bin = BINS - 1 - (key >> 21);
                        if (level == 2) bin = BINS - 1 - ((key >> 10) & 2047u);
                        if (level == 3) bin = BINS - 1 - (key & 1023u);
                        if (level == 4) bin = id >> 7;
                        if (level == 5) {
                            if ((id >> 7) != last) continue;
                            bin = id & 127u;
                        }
                    }
                    atomicAdd(&counts[bin], 1u);
                    if (weighed) atomicAdd(&lacks[bin], lack_of(best, value, mine));
                }
            }
            cluster_barrier();
            // Each thread adds up some neighbouring bins; the one in whose bins the cut lies tells the others.
            const uint share = BINS / blocks, each = (share + uint(THREADS) - 1) / uint(THREADS);
            const uint begin = tid * each < share ? tid * each : share;
            const uint length = share - begin < each ? share - begin : each;
            uint count = 0u;
            ulong mass = 0;
            for (uint bin = rank * share + begin; bin < rank * share + begin + length; ++bin) {
                uint here = 0u, lack = 0u;
#pragma unroll
                for (uint b = 0; b < uint(SAMPLE_BLOCKS); ++b) {
                    if (b < blocks) here += distant(counts, b)[bin];
                    if (b < blocks && weighed) lack += distant(lacks, b)[bin];
                }
                counts[bin] = here;  // of its share, this block's memory is read by this block alone
                lacks[bin] = lack;
                count += here;
                mass += weighed ? mass_of(here, lack, scales[level == 0 ? bin : step]) : ulong(0);
            }
            const uint count_to = prefix_sum(count, lane);
            const ulong mass_to = prefix_sum(mass, lane);
            if (lane == 31) {
                group_counts[simdgroup] = count_to;
                group_masses[simdgroup] = mass_to;
            }
            __syncthreads();
            uint count_before = count_above + count_to - count, block_count = 0u;
            ulong mass_before = mass_above + mass_to - mass, block_mass = 0, total = 0;
            for (uint s = 0; s < SIMDGROUPS; ++s) {
                if (s < simdgroup) {
                    count_before += group_counts[s];
                    mass_before += group_masses[s];
                }
                block_count += group_counts[s];
                block_mass += group_masses[s];
            }
            if (tid < blocks) {
                distant(told_counts, tid)[rank] = block_count;
                distant(told_masses, tid)[rank] = block_mass;
            }
            cluster_barrier();
            for (uint b = 0; b < blocks; ++b) {
                if (b < rank) {
                    count_before += told_counts[b];
                    mass_before += told_masses[b];
                }
                total += told_masses[b];
            }
            if (level == 0 && has_top_p) {
                const ulong target_share = ulong(asked[3]), margin = total >> 18;
                const ulong target = (total >> 32) * target_share + (((total & 0xFFFFFFFFul) * target_share) >> 32);
                late = target + margin;
                early = target > margin ? target - margin : ulong(0);
            }
            if (count_before < top_k && mass_before < late
                && (count_before + count >= top_k || mass_before + mass >= late)) {
                uint bin = rank * share + begin;
                for (;; ++bin) {
                    const uint here = counts[bin];
                    const ulong weight = weighed
                        ? mass_of(here, lacks[bin], scales[level == 0 ? bin : step]) : ulong(0);
                    if (count_before + here >= top_k || mass_before + weight >= late) break;
                    count_before += here;
                    mass_before += weight;
                }
                for (uint b = 0; b < blocks; ++b) {
                    distant(cut, b)[0] = bin;
                    distant(cut, b)[1] = counts[bin];
                    distant(cut, b)[2] = count_before;
                    distant(cut_mass, b)[0] = mass_before;
                }
            }
            cluster_barrier();
            const uint found = cut[1];
            // No cut: all survive; or below level 0, all of the bin, whose parts, rounded down, miss the target.
            crossed = found != 0u;
            if (!crossed) break;
            const uint cut_bin = cut[0];
            count_above = cut[2];
            mass_above = cut_mass[0];
            if (level == 0) step = cut_bin;
            if (level == 1) {
                prefix = BINS - 1 - cut_bin;
                shift = 21u;
            }
            if (level == 2) {
                prefix = (prefix << 11) | (BINS - 1 - cut_bin);
                shift = 10u;
            }
            if (level == 3) {
                prefix = (prefix << 10) | (BINS - 1 - cut_bin);
                shift = 0u;
            }
            if (level == 4) {
                last = cut_bin;
                id_shift = 7u;
            }
            if (level == 5) {
                last = (last << 7) | cut_bin;
                id_shift = 0u;
            }
            // All of the bin survive: it is one token, or one value of which none is cut by its id.
            const bool one_value = level >= (sizeof(T) == 2 ? 2 : 3);
            if (found == 1u || (one_value && count_above + found <= top_k)) break;
        }

        if (goal == 0) {
            const float floor = best + __uint_as_float(asked[4]), sharpness = __uint_as_float(asked[5]);
            float first = -INFINITE, second = -INFINITE;
            uint winner = NEVER;
            for (uint quad = first_quad; quad * 4 < vocabulary; quad += stride) {
                uint words[4];
                bool ready = false;
                float values[4];
                quad_logprobs<T>(row, quad, vocabulary, normaliser, aligned, values);
                for (uint j = 0; j < 4; ++j) {
                    const uint id = quad * 4 + j;
                    const float value = values[j];
                    if (value == -INFINITE || value < floor || step_of(best, value) > step) continue;
                    const uint key = ordered(value) >> shift;
                    if (step_of(best, value) == step && (key < prefix || (key == prefix && (id >> id_shift) > last))) {
                        continue;
                    }
                    if (!ready) philox(quad, asked[8], asked[6], asked[7], words);
                    ready = true;
                    const float score = (value - best) * sharpness + gumbel(words[j]);
                    if (score > first) {
                        second = first;
                        first = score;
                        winner = id;
                    } else {
                        second = fmaxf(second, score);
                    }
                }
            }
            const float simd_first = simd_max(first);
            const uint simd_winner = simd_min(first == simd_first ? winner : NEVER);
            const float simd_second = simd_max(winner == simd_winner ? second : first);
            if (lane == 0) {
                group_best[simdgroup] = simd_first;
                group_second[simdgroup] = simd_second;
                group_ids[simdgroup] = simd_winner;
            }
            __syncthreads();
            first = -INFINITE;
            second = -INFINITE;
            winner = NEVER;
            for (uint s = 0; s < SIMDGROUPS; ++s) {
                const float score = group_best[s];
                second = fmaxf(second, fmaxf(fminf(first, score), group_second[s]));
                if (score > first) {
                    first = score;
                    winner = group_ids[s];
                }
            }
            if (tid < blocks) {
                distant(told_first, tid)[rank] = first;
                distant(told_second, tid)[rank] = second;
                distant(told_winners, tid)[rank] = winner;
            }
            cluster_barrier();
            first = -INFINITE;
            second = -INFINITE;
            winner = NEVER;
            for (uint b = 0; b < blocks; ++b) {
                const float score = told_first[b];
                second = fmaxf(second, fmaxf(fminf(first, score), told_second[b]));
                if (score > first) {
                    first = score;
                    winner = told_winners[b];
                }
            }
            const float drawn = logprob<T>(row, winner, normaliser);
            bool doubtful = first - second < 3.0517578125e-05f;
            if (has_top_p && (!crossed || mass_above >= early)) {
                // The cut may have come before the winner: weigh what is above it.
                ulong mass = 0;
                for (uint quad = first_quad; quad * 4 < vocabulary; quad += stride) {
                    float values[4];
                    quad_logprobs<T>(row, quad, vocabulary, normaliser, aligned, values);
                    for (uint j = 0; j < 4; ++j) {
                        const float value = values[j];
                        if (value <= drawn) continue;
                        const uint mine = step_of(best, value);
                        mass += mass_of(1u, lack_of(best, value, mine), scales[mine]);
                    }
                }
                mass = prefix_sum(mass, lane);
                if (lane == 31) group_masses[simdgroup] = mass;
                __syncthreads();
                ulong block_mass = 0, above = 0;
                for (uint s = 0; s < SIMDGROUPS; ++s) block_mass += group_masses[s];
                if (tid < blocks) distant(told_masses, tid)[rank] = block_mass;
                cluster_barrier();
                for (uint b = 0; b < blocks; ++b) above += told_masses[b];
                doubtful = doubtful || (above >= early && drawn < best);
            }
            if (rank == 0u && tid == 0) {
                tokens[row_index] = int(winner);
                logprobs[row_index] = drawn;
                needs_host[row_index] = doubtful ? 1u : 0u;
            }
        } else {
            for (uint quad = first_quad; quad * 4 < vocabulary; quad += stride) {
                float values[4];
                quad_logprobs<T>(row, quad, vocabulary, normaliser, aligned, values);
                for (uint j = 0; j < 4; ++j) {
                    const uint id = quad * 4 + j;
                    const float value = values[j];
                    if (value == -INFINITE || step_of(best, value) > step) continue;
                    const uint key = ordered(value) >> shift;
                    if (step_of(best, value) == step && (key < prefix || (key == prefix && (id >> id_shift) > last))) {
                        continue;
                    }
                    const uint place = atomicAdd(distant(listed, 0u), 1u);
                    distant(listed_ids, 0u)[place] = id;
                    distant(listed_values, 0u)[place] = value;
                }
            }
            cluster_barrier();
            const uint length = listed[0];
            for (uint i = tid; rank == 0u && i < width; i += uint(THREADS)) {
                uint place = i;
                if (i < length) {
                    place = 0u;
                    for (uint j = 0; j < length; ++j) {
                        const bool tie = listed_values[j] == listed_values[i];
                        if (listed_values[j] > listed_values[i] || (tie && listed_ids[j] < listed_ids[i])) ++place;
                    }
                }
                top_tokens[row_index * width + place] = i < length ? int(listed_ids[i]) : -1;
                top_logprobs[row_index * width + place] = i < length ? listed_values[i] : -INFINITE;
            }
        }
    }
