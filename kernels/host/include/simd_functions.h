// SIMD-group functions: each is a rendezvous of the live lanes of a simdgroup.
//
// A reduction is computed once, by the lane that arrives last, in a fixed tree order (a GPU's order is not documented).
#pragma once

namespace host {

// All lanes' values of one exchange.
template <class T> struct Lanes {
  T values[HOST_LANES];
  uint active;

  bool has(uint lane) const { return lane < HOST_LANES && ((active >> lane) & 1u); }
};

template <class T> HOST_INLINE Lanes<T> exchange(T value, HostSite site) {
  static_assert(sizeof(T) <= HOST_SLOT_BYTES, "a lane exchanges at most 64 bytes");
  Lanes<T> lanes;
  const char* slots = host_simd_collective(&value, sizeof(T), site, nullptr, &lanes.active);
  for (int lane = 0; lane < HOST_LANES; lane++) {
    __builtin_memcpy(&lanes.values[lane], slots + HOST_SLOT_BYTES * lane, sizeof(T));
  }
  return lanes;
}

// The value of one lane; of a lane that is missing, all bits set and a report.
template <class T> HOST_INLINE T value_of(const Lanes<T>& lanes, uint lane, HostSite site) {
  if (lanes.has(lane)) return lanes.values[lane];
  host_missing_lane(site);
  T garbage;
  __builtin_memset(&garbage, 0xff, sizeof(T));
  return garbage;
}

template <class Operation, class T> void reduce(const char* contributions, uint active, char* results) {
  T values[HOST_LANES];
  bool present[HOST_LANES];
  for (int lane = 0; lane < HOST_LANES; lane++) {
    __builtin_memcpy(&values[lane], contributions + HOST_SLOT_BYTES * lane, sizeof(T));
    present[lane] = (active >> lane) & 1u;
  }
  for (int stride = 1; stride < HOST_LANES; stride *= 2) {
    for (int lane = 0; lane < HOST_LANES; lane += 2 * stride) {
      if (!present[lane + stride]) continue;
      values[lane] = present[lane] ? Operation::of(values[lane], values[lane + stride]) : values[lane + stride];
      present[lane] = true;
    }
  }
  for (int lane = 0; lane < HOST_LANES; lane++) {
    __builtin_memcpy(results + HOST_SLOT_BYTES * lane, &values[0], sizeof(T));
  }
}

}  // namespace host

namespace metal {

#define HOST_REDUCTION(name, expression)                                                                     \
  struct host_##name {                                                                                       \
    template <class T> static T of(T a, T b) { return (T)(expression); }                                     \
  };                                                                                                         \
  template <class T> HOST_INLINE T name(T value, HOST_SITE) {                                                \
    static_assert(sizeof(T) <= HOST_SLOT_BYTES, "a lane contributes at most 64 bytes");                      \
    uint active;                                                                                             \
    T result;                                                                                                \
    const char* slot = host_simd_collective(&value, sizeof(T), site, host::reduce<host_##name, T>, &active); \
    __builtin_memcpy(&result, slot, sizeof(T));                                                              \
    return result;                                                                                           \
  }
HOST_REDUCTION(simd_sum, a + b)
HOST_REDUCTION(simd_product, a * b)
HOST_REDUCTION(simd_min, min(a, b))
HOST_REDUCTION(simd_max, max(a, b))
HOST_REDUCTION(simd_and, a & b)
HOST_REDUCTION(simd_or, a | b)
HOST_REDUCTION(simd_xor, a ^ b)
#undef HOST_REDUCTION

template <class T> HOST_INLINE T simd_prefix_inclusive_sum(T value, HOST_SITE) {
  auto lanes = host::exchange(value, site);
  T sum = (T)0;
  for (uint lane = 0; lane <= host_lane(); lane++)
    if (lanes.has(lane)) sum = sum + lanes.values[lane];
  return sum;
}
template <class T> HOST_INLINE T simd_prefix_exclusive_sum(T value, HOST_SITE) {
  auto lanes = host::exchange(value, site);
  T sum = (T)0;
  for (uint lane = 0; lane < host_lane(); lane++)
    if (lanes.has(lane)) sum = sum + lanes.values[lane];
  return sum;
}

template <class T> HOST_INLINE T simd_shuffle(T value, ushort lane, HOST_SITE) {
  return host::value_of(host::exchange(value, site), lane, site);
}
template <class T> HOST_INLINE T simd_shuffle_xor(T value, ushort mask, HOST_SITE) {
  return host::value_of(host::exchange(value, site), host_lane() ^ mask, site);
}
template <class T> HOST_INLINE T simd_broadcast(T value, ushort lane, HOST_SITE) {
  return host::value_of(host::exchange(value, site), lane, site);
}
template <class T> HOST_INLINE T simd_broadcast_first(T value, HOST_SITE) {
  auto lanes = host::exchange(value, site);
  return lanes.values[__builtin_ctz(lanes.active)];
}
// Values do not wrap around: beyond the simdgroup's end a lane keeps its own.
template <class T> HOST_INLINE T simd_shuffle_down(T value, ushort delta, HOST_SITE) {
  auto lanes = host::exchange(value, site);
  uint lane = host_lane() + delta;
  return lane < HOST_LANES ? host::value_of(lanes, lane, site) : value;
}
template <class T> HOST_INLINE T simd_shuffle_up(T value, ushort delta, HOST_SITE) {
  auto lanes = host::exchange(value, site);
  return delta <= host_lane() ? host::value_of(lanes, host_lane() - delta, site) : value;
}

HOST_INLINE bool simd_is_first(HOST_SITE) {
  return (uint)__builtin_ctz(host::exchange((uchar)0, site).active) == host_lane();
}

struct simd_vote {
  typedef ulong vote_t;
  constexpr explicit simd_vote(vote_t votes = 0) : votes(votes) {}
  constexpr explicit operator vote_t() const { return votes; }
  constexpr bool all() const { return votes == 0xfffffffful; }
  constexpr bool any() const { return votes != 0; }

 private:
  vote_t votes;
};

HOST_INLINE simd_vote simd_ballot(bool vote, HOST_SITE) {
  auto lanes = host::exchange((uchar)vote, site);
  ulong votes = 0;
  for (uint lane = 0; lane < HOST_LANES; lane++)
    if (lanes.has(lane) && lanes.values[lane]) votes |= 1ul << lane;
  return simd_vote(votes);
}
HOST_INLINE bool simd_any(bool vote, HOST_SITE) { return simd_ballot(vote, site).any(); }
HOST_INLINE bool simd_all(bool vote, HOST_SITE) {
  auto lanes = host::exchange((uchar)vote, site);
  for (uint lane = 0; lane < HOST_LANES; lane++)
    if (lanes.has(lane) && !lanes.values[lane]) return false;
  return true;
}

}  // namespace metal

// The name by which MLX's own headers ask the compiler for the lane.
HOST_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return (ushort)host_lane(); }
