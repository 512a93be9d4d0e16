    // The exact draw of a row: filters, keyed Gumbel-max, log-probability and likeliest tokens. A threadgroup per row.
    //
    // In sorted order (log-probability descending, then id) top-p, min-p and top-k each keep a prefix. So the
    // survivors are those above min-p's float threshold, up to a cut: the first token at which the count reaches k
    // or the mass reaches top-p. The cut is found by histograms, a digit a level: level 0 is the distance to the
    // best in steps of 1/64 (which spreads the tokens, where a float's leading bits would crowd them), 1 to 3 are
    // the float's bits, 4 and 5 those of the id. Counts and masses are integers, so the order of threads does not
    // matter.
    //
    // A mass is right to 2^-19 of the total. The cut is made at the mass target plus 2^-18: no survivor is missed.
    // If it could have come earlier, the mass above the winner decides: below the target minus 2^-18 the winner is
    // in for certain, else the host decides. So it does where the two best scores are within 2^-15: float32 errs by
    // less.
    //
    // Reads the row once for the maximum, once a level (up to 6, none without top-p and top-k), once for the scores,
    // and once more in doubtful cases; and survivors once more when they are scored. Threads read four quads of tokens
    // at once, for a row has one threadgroup, and with it few reads under way. About 20 operations and one or two
    // atomics per token and level; per survivor 40 flops for its noise, and 100 integer operations for each four
    // neighbours.
    //
    // parameters [N, 16] of bits: 0 greedy, 1 top_k, 2 has top_p, 3 top_p 2^32, 4 log min_p, 5 1 / temperature,
    // 6 and 7 seed, 8 position, 9 how many of the likeliest are listed, at most 32.
    //
    // Template: T is the type of the logits, THREADS of a threadgroup 256 or 512. The vocabulary is a number, not a
    // template value: one compiled kernel serves all models.
    constexpr uint BINS = 2048u, NEVER = 0xFFFFFFFFu, SIMDGROUPS = uint(THREADS) / 32u;
    constexpr uint QUADS = 4u;  // that a thread reads at once
    threadgroup atomic_uint counts[2048];
    threadgroup atomic_uint lacks[2048];
    threadgroup ulong group_masses[SIMDGROUPS];
    threadgroup uint group_counts[SIMDGROUPS];
    threadgroup float group_best[SIMDGROUPS];
    threadgroup uint group_ids[SIMDGROUPS];
    threadgroup float group_first[SIMDGROUPS];
    threadgroup float group_second[SIMDGROUPS];
    threadgroup uint group_winners[SIMDGROUPS];
    threadgroup uint cut_bin, cut_count, cut_above;
    threadgroup ulong cut_mass;
    threadgroup atomic_uint listed;
    threadgroup uint listed_ids[32];
    threadgroup float listed_values[32];

    const uint row_index = threadgroup_position_in_grid.x, tid = thread_index_in_threadgroup;
    const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
    const uint vocabulary = uint(logits_shape[1]);
    const device T* row = logits + ulong(row_index) * vocabulary;
    const device uint* asked = parameters + row_index * 16;
    const float normaliser = float(normalisers[row_index]);
    const uint top = asked[9], width = max(top, 1u);

    // The best log-probability and the lowest id that has it.
    float best = -INFINITY;
    uint best_id = NEVER, numbers = 1u;
    for (uint quad = tid; quad * 4 < vocabulary; quad += QUADS * uint(THREADS)) {
        float values[QUADS * 4];
        read_quads<T, QUADS, THREADS>(row, quad, vocabulary, normaliser, values);
#pragma unroll
        for (uint i = 0; i < QUADS * 4; ++i) {
            const uint id = (quad + i / 4 * uint(THREADS)) * 4 + i % 4;
            const float value = values[i];
            if (isnan(value)) numbers = 0u;
            if (value > best) {
                best = value;
                best_id = id;
            }
        }
    }
    const float simd_best = simd_max(best);
    const uint simd_id = simd_min(best == simd_best ? best_id : NEVER);
    numbers = simd_min(numbers);
    if (tid == 0) atomic_store_explicit(&listed, 0u, memory_order_relaxed);
    if (lane == 0) {
        group_best[simdgroup] = simd_best;
        group_ids[simdgroup] = simd_id;
        group_counts[simdgroup] = numbers;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    best = -INFINITY;
    best_id = NEVER;
    for (uint s = 0; s < SIMDGROUPS; ++s) {
        numbers = min(numbers, group_counts[s]);
        if (group_best[s] > best || (group_best[s] == best && group_ids[s] < best_id)) {
            best = group_best[s];
            best_id = group_ids[s];
        }
    }
    if (numbers == 0u || !isfinite(best)) {
        if (tid == 0) {
            tokens[row_index] = -1;
            logprobs[row_index] = -INFINITY;
            needs_host[row_index] = 0u;
        }
        for (uint i = tid; i < width; i += uint(THREADS)) {
            top_tokens[row_index * width + i] = -1;
            top_logprobs[row_index * width + i] = -INFINITY;
        }
        return;
    }
    if (asked[0] != 0u && tid == 0) {
        tokens[row_index] = int(best_id);
        logprobs[row_index] = best;
        needs_host[row_index] = 0u;
    }
    if (top == 0u && tid == 0) {
        top_tokens[row_index] = -1;
        top_logprobs[row_index] = -INFINITY;
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
            for (uint bin = tid; bin < BINS; bin += uint(THREADS)) {
                atomic_store_explicit(&counts[bin], 0u, memory_order_relaxed);
                atomic_store_explicit(&lacks[bin], 0u, memory_order_relaxed);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (tid == 0) cut_count = 0u;
            for (uint quad = tid; quad * 4 < vocabulary; quad += QUADS * uint(THREADS)) {
                float values[QUADS * 4];
                read_quads<T, QUADS, THREADS>(row, quad, vocabulary, normaliser, values);
#pragma unroll
                for (uint i = 0; i < QUADS * 4; ++i) {
                    const uint id = (quad + i / 4 * uint(THREADS)) * 4 + i % 4;
                    const float value = values[i];
                    if (value == -INFINITY) continue;
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
                    atomic_fetch_add_explicit(&counts[bin], 1u, memory_order_relaxed);
                    if (has_top_p && level < 4) {
                        atomic_fetch_add_explicit(&lacks[bin], lack_of(best, value, mine), memory_order_relaxed);
                    }
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            // Each thread adds up some neighbouring bins; the one in whose bins the cut lies tells the others.
            constexpr uint WIDTH = BINS / uint(THREADS);
            uint count = 0u;
            ulong mass = 0;
            for (uint bin = tid * WIDTH; bin < (tid + 1) * WIDTH; ++bin) {
                const uint here = atomic_load_explicit(&counts[bin], memory_order_relaxed);
                const uint lack = atomic_load_explicit(&lacks[bin], memory_order_relaxed);
                count += here;
                mass += has_top_p && level < 4 ? mass_of(here, lack, scales[level == 0 ? bin : step]) : ulong(0);
            }
            const uint count_to = simd_prefix_inclusive_sum(count);
            const ulong mass_to = prefix_sum(mass, lane);
            if (lane == 31) {
                group_counts[simdgroup] = count_to;
                group_masses[simdgroup] = mass_to;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            uint count_before = count_above + count_to - count;
            ulong mass_before = mass_above + mass_to - mass, total = 0;
            for (uint s = 0; s < SIMDGROUPS; ++s) {
                if (s < simdgroup) {
                    count_before += group_counts[s];
                    mass_before += group_masses[s];
                }
                total += group_masses[s];
            }
            if (level == 0 && has_top_p) {
                const ulong share = ulong(asked[3]), margin = total >> 18;
                const ulong target = (total >> 32) * share + (((total & 0xFFFFFFFFul) * share) >> 32);
                late = target + margin;
                early = target > margin ? target - margin : ulong(0);
            }
            if (count_before < top_k && mass_before < late
                && (count_before + count >= top_k || mass_before + mass >= late)) {
                uint bin = tid * WIDTH;
                for (;; ++bin) {
                    const uint here = atomic_load_explicit(&counts[bin], memory_order_relaxed);
                    const uint lack = atomic_load_explicit(&lacks[bin], memory_order_relaxed);
                    const ulong weight = has_top_p && level < 4
                        ? mass_of(here, lack, scales[level == 0 ? bin : step]) : ulong(0);
                    if (count_before + here >= top_k || mass_before + weight >= late) {
                        cut_bin = bin;
                        cut_count = here;
                        cut_above = count_before;
                        cut_mass = mass_before;
                        break;
                    }
                    count_before += here;
                    mass_before += weight;
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const uint found = cut_count;
            // No cut: all survive; or below level 0, all of the bin, whose parts, rounded down, miss the target.
            crossed = found != 0u;
            if (!crossed) break;
            count_above = cut_above;
            mass_above = cut_mass;
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
            const float floor = best + as_type<float>(asked[4]), sharpness = as_type<float>(asked[5]);
            float first = -INFINITY, second = -INFINITY;
            uint winner = NEVER;
            for (uint quad = tid; quad * 4 < vocabulary; quad += QUADS * uint(THREADS)) {
                float values[QUADS * 4];
                read_quads<T, QUADS, THREADS>(row, quad, vocabulary, normaliser, values);
                uint alive = 0u;  // a bit for each
#pragma unroll
                for (uint i = 0; i < QUADS * 4; ++i) {
                    const uint id = (quad + i / 4 * uint(THREADS)) * 4 + i % 4;
                    const bool enough = values[i] >= floor;
                    if (enough && survives(values[i], id, best, step, prefix, shift, last, id_shift)) alive |= 1u << i;
                }
                for (uint i = 0; i < QUADS; ++i) {
                    const uint four = quad + i * uint(THREADS), of_four = (alive >> (i * 4)) & 15u;
                    if (of_four == 0u) continue;
                    uint words[4];
                    philox(four, asked[8], asked[6], asked[7], words);
#pragma unroll
                    for (uint j = 0; j < 4; ++j) {
                        if (((of_four >> j) & 1u) == 0u) continue;
                        const uint id = four * 4 + j;
                        const float score = (logprob<T>(row, id, normaliser) - best) * sharpness + gumbel(words[j]);
                        if (score > first) {
                            second = first;
                            first = score;
                            winner = id;
                        } else {
                            second = max(second, score);
                        }
                    }
                }
            }
            const float simd_first = simd_max(first);
            const uint simd_winner = simd_min(first == simd_first ? winner : NEVER);
            const float simd_second = simd_max(winner == simd_winner ? second : first);
            if (lane == 0) {
                group_first[simdgroup] = simd_first;
                group_second[simdgroup] = simd_second;
                group_winners[simdgroup] = simd_winner;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            first = -INFINITY;
            second = -INFINITY;
            winner = NEVER;
            for (uint s = 0; s < SIMDGROUPS; ++s) {
                const float score = group_first[s];
                second = max(second, max(min(first, score), group_second[s]));
                if (score > first) {
                    first = score;
                    winner = group_winners[s];
                }
            }
            const float drawn = logprob<T>(row, winner, normaliser);
            bool doubtful = first - second < 3.0517578125e-05f;
            if (has_top_p && (!crossed || mass_above >= early)) {
                // The cut may have come before the winner: weigh what is above it.
                ulong mass = 0;
                for (uint quad = tid; quad * 4 < vocabulary; quad += uint(THREADS)) {
                    float values[4];
                    four_logprobs<T>(row, quad, vocabulary, normaliser, values);
                    for (uint j = 0; j < 4; ++j) {
                        const float value = values[j];
                        if (value <= drawn) continue;
                        const uint mine = step_of(best, value);
                        mass += mass_of(1u, lack_of(best, value, mine), scales[mine]);
                    }
                }
                mass = prefix_sum(mass, lane);
                if (lane == 31) group_masses[simdgroup] = mass;
                threadgroup_barrier(mem_flags::mem_threadgroup);
                ulong above = 0;
                for (uint s = 0; s < SIMDGROUPS; ++s) above += group_masses[s];
                doubtful = doubtful || (above >= early && drawn < best);
            }
            if (tid == 0) {
                tokens[row_index] = int(winner);
                logprobs[row_index] = drawn;
                needs_host[row_index] = doubtful ? 1u : 0u;
            }
        } else {
            for (uint quad = tid; quad * 4 < vocabulary; quad += QUADS * uint(THREADS)) {
                float values[QUADS * 4];
                read_quads<T, QUADS, THREADS>(row, quad, vocabulary, normaliser, values);
#pragma unroll
                for (uint i = 0; i < QUADS * 4; ++i) {
                    const uint id = (quad + i / 4 * uint(THREADS)) * 4 + i % 4;
                    if (!survives(values[i], id, best, step, prefix, shift, last, id_shift)) continue;
                    const uint place = atomic_fetch_add_explicit(&listed, 1u, memory_order_relaxed);
                    listed_ids[place] = id;
                    listed_values[place] = values[i];
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const uint length = atomic_load_explicit(&listed, memory_order_relaxed);
            for (uint i = tid; i < width; i += uint(THREADS)) {
                uint rank = i;
                if (i < length) {
                    rank = 0u;
                    for (uint j = 0; j < length; ++j) {
                        const bool tie = listed_values[j] == listed_values[i];
                        if (listed_values[j] > listed_values[i] || (tie && listed_ids[j] < listed_ids[i])) ++rank;
                    }
                }
                top_tokens[row_index * width + rank] = i < length ? int(listed_ids[i]) : -1;
                top_logprobs[row_index * width + rank] = i < length ? listed_values[i] : -INFINITY;
            }
        }
    }
