// What is remembered of each byte of an output and of threadgroup memory, to find accesses that nothing orders.
//
// Within a threadgroup two accesses are ordered if one thread makes both, if a threadgroup_barrier that names the
// memory lies between them, or if they are made by lanes of one simdgroup with such a simdgroup_barrier between them.
// Only accesses of the running phase can collide.
//
// Threadgroups are never ordered: a byte that one writes and another touches is reported, unless both do so atomically.
// Atomic updates may overlap each other; an atomic load or store that nothing orders counts as a race, because its
// result depends on the schedule.
#pragma once

#include "fibers.h"
#include "findings.h"
#include "rendezvous.h"
#include "sites.h"

namespace host {

// Who makes an access: a thread by its index, all lanes of a simdgroup, or several simdgroups at once.
typedef uint16_t Agent;
enum : Agent { kWholeSimdgroup = kMaxThreads, kSeveralSimdgroups = 0xffff };

inline int simdgroup_of(Agent agent) {
  if (agent == kSeveralSimdgroups) return -1;
  return agent < kWholeSimdgroup ? agent / HOST_LANES : agent - kWholeSimdgroup;
}

inline const char* verb(HostAccess kind) {
  return kind == HOST_LOAD ? "reads" : kind == HOST_STORE ? "writes" : "updates";
}

struct Access {
  Memory memory;
  HostAccess kind;
  bool atomic;
  HostSite site;
  Agent agent;
  uint32_t simd_phase;
  uint32_t simdgroups, lanes;  // masks
};

inline Access access_of_current(Memory memory, HostAccess kind, bool atomic, HostSite site) {
  const HostThread& thread = current->thread;
  Access access = {memory,
                   kind,
                   atomic,
                   site,
                   (Agent)thread.index_in_threadgroup,
                   current->simd_phase[memory],
                   1u << thread.simdgroup,
                   1u << thread.lane};
  if (scope_simdgroups == 1) {
    access.agent = (Agent)(kWholeSimdgroup + thread.simdgroup);
    access.lanes = ~0u;
  } else if (scope_simdgroups > 1) {
    uint32_t first = thread.simdgroup / scope_simdgroups * scope_simdgroups;
    access.agent = kSeveralSimdgroups;
    access.simdgroups = (scope_simdgroups < 32 ? (1u << scope_simdgroups) - 1 : ~0u) << first;
    access.lanes = ~0u;
  }
  return access;
}

// Accesses of one phase that may overlap each other: reads, or atomic updates. The simdgroups that made them as a mask,
// and the lanes of the simdgroup that came last. Nothing is lost with the lanes of earlier ones: where two simdgroups
// are in the crowd, an access by either collides with the other's.
struct Crowd {
  uint32_t phase, simd_phase;
  HostSite site;
  uint32_t simdgroups, lanes;

  bool in_other_threadgroup(Memory memory) const { return phase && phase < first_phase[memory]; }
  bool in_threadgroup(Memory memory) const { return phase >= first_phase[memory]; }

  // Whether all of the crowd, where it is of the same threadgroup, is ordered before the access.
  bool is_ordered(const Access& access) const {
    if (phase != host::phase[access.memory]) return true;
    int simdgroup = simdgroup_of(access.agent);
    if (simdgroup < 0 || (simdgroups & ~(1u << simdgroup))) return false;
    uint32_t own = access.agent < kWholeSimdgroup ? access.lanes : 0;
    return simd_phase != access.simd_phase || !(lanes & ~own);
  }

  void add(const Access& access) {
    if (phase != host::phase[access.memory]) {
      phase = host::phase[access.memory];
      simdgroups = simd_phase = 0;
    }
    if (simd_phase != access.simd_phase) {
      simd_phase = access.simd_phase;
      lanes = 0;
    }
    simdgroups |= access.simdgroups;
    lanes |= access.lanes;
    site = access.site;
  }
};

// The last store; earlier ones of the phase are ordered before it, or have been reported.
struct Store {
  uint32_t phase, simd_phase;
  HostSite site;
  Agent agent;

  bool in_other_threadgroup(Memory memory) const { return phase && phase < first_phase[memory]; }
  bool in_threadgroup(Memory memory) const { return phase >= first_phase[memory]; }

  bool is_ordered(const Access& access) const {
    if (phase != host::phase[access.memory]) return true;
    if (agent == access.agent && agent < kWholeSimdgroup) return true;
    int simdgroup = simdgroup_of(agent);
    return simdgroup >= 0 && simdgroup == simdgroup_of(access.agent) && simd_phase != access.simd_phase;
  }
};

struct Cell {
  enum : uint8_t { kAtomicStore = 1, kPlainRead = 2, kReadByOthers = 4 };

  Store store;
  uint8_t flags;
  Crowd reads;

  void remember_store(const Access& access) {
    store = {phase[access.memory], access.simd_phase, access.site, access.agent};
    flags = access.atomic ? flags | kAtomicStore : flags & ~kAtomicStore;
  }
  void remember_read(const Access& access) {
    if (reads.in_other_threadgroup(access.memory)) flags |= kReadByOthers;
    if (!access.atomic) flags |= kPlainRead;
    reads.add(access);
  }
  // Whether another threadgroup has read the byte in a way that collides with a write.
  bool collides_with_other_reads(const Access& write) const {
    bool others = (flags & kReadByOthers) || reads.in_other_threadgroup(write.memory);
    return others && !(write.atomic && !(flags & kPlainRead));
  }
};

// Where a byte lies, for the words of a finding.
struct Place {
  const char* name;
  int64_t offset;
};

// The memory of one buffer, or of all threadgroup variables. Crowds of updates are kept only where there are atomics.
struct Shadow {
  Memory memory;
  Cell* cells;
  Crowd* updates;

  bool is_written(int64_t byte) const {
    const Cell& cell = cells[byte];
    if (memory == kDevice) return cell.store.phase || (updates && updates[byte].phase);
    return cell.store.in_threadgroup(memory) || (updates && updates[byte].in_threadgroup(memory));
  }

  // Remembers an access to one byte and checks it against what is remembered, unless `silent`. False after a finding.
  bool access(int64_t byte, const Access& access, Place place, bool silent) {
    bool clean = silent || check(byte, access, place);
    if (access.kind == HOST_LOAD) cells[byte].remember_read(access);
    if (access.kind == HOST_STORE) cells[byte].remember_store(access);
    if (access.kind == HOST_UPDATE) updates[byte].add(access);
    return clean;
  }

 private:
  bool check(int64_t byte, const Access& access, Place place) const {
    const Cell& cell = cells[byte];
    const bool writes = access.kind != HOST_LOAD;
    if (!cell.store.is_ordered(access)) return race(access, place, "written", cell.store.site);
    if (updates && access.kind != HOST_UPDATE && !updates[byte].is_ordered(access)) {
      return race(access, place, "updated", updates[byte].site);
    }
    if (writes && !cell.reads.is_ordered(access)) return race(access, place, "read", cell.reads.site);
    if (memory == kThreadgroup) return true;

    if (cell.store.in_other_threadgroup(memory) && !(access.atomic && (cell.flags & Cell::kAtomicStore))) {
      return overlap(access, place, "writes", cell.store.site);
    }
    if (updates && updates[byte].in_other_threadgroup(memory) && !access.atomic) {
      return overlap(access, place, "updates", updates[byte].site);
    }
    if (writes && cell.collides_with_other_reads(access)) return overlap(access, place, "reads", cell.reads.site);
    return true;
  }

  static bool race(const Access& access, Place place, const char* done, HostSite site) {
    find("race", access.site, "thread %u %s byte %lld of %s, %s at %s, and nothing orders the two (threadgroup %u)",
         current->thread.index_in_threadgroup, verb(access.kind), (long long)place.offset, place.name, done,
         words(site), threadgroup_index);
    return false;
  }
  static bool overlap(const Access& access, Place place, const char* does, HostSite site) {
    find("overlap", access.site, "threadgroup %u %s byte %lld of %s, which another threadgroup %s at %s",
         threadgroup_index, verb(access.kind), (long long)place.offset, place.name, does, words(site));
    return false;
  }
};

}  // namespace host
