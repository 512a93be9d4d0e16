#include "rendezvous.h"

#include <stdio.h>
#include <string.h>

#include "findings.h"
#include "sites.h"

namespace host {

uint32_t phase[kMemories], first_phase[kMemories];
int scope_simdgroups;

static uint32_t last_phase;

static bool orders(int flags, Memory memory) { return flags & (memory == kDevice ? 1 : 2); }

static void start_simd_phase(Memory memory, int begin, int end) {
  uint32_t simd_phase = ++last_phase;
  for (int i = begin; i < end; i++) fibers[i].simd_phase[memory] = simd_phase;
}

// Also starts a simd phase in each simdgroup.
static void start_phase(Memory memory) {
  phase[memory] = ++last_phase;
  for (int begin = 0; begin < threads; begin += HOST_LANES) {
    start_simd_phase(memory, begin, begin + HOST_LANES < threads ? begin + HOST_LANES : threads);
  }
}

// ---------------------------------------------------------------- threadgroup barrier

static struct {
  int waiting;
  int flags;
  HostSite site;
} barrier;

static void complete_barrier() {
  if (!barrier.waiting || barrier.waiting < live_threads) return;
  if (live_threads < threads) {
    find("early_return", barrier.site, "%d of %d threads returned before this barrier (threadgroup %u)",
         threads - live_threads, threads, threadgroup_index);
  }
  for (int memory = 0; memory < kMemories; memory++) {
    if (orders(barrier.flags, (Memory)memory)) start_phase((Memory)memory);
  }
  barrier.waiting = 0;
  report->barriers++;
  release(0, threads, State::kAtBarrier);
}

// ---------------------------------------------------------------- collectives of one simdgroup

// Slots are double-buffered: a lane may still read the results of one collective while others bring values for the
// next.
struct Simdgroup {
  int live, waiting, turn;
  int fence;  // mem_flags of a simdgroup_barrier, 0 in any other operation
  HostSite site;
  HostCombine combine;
  uint32_t active[2];
  alignas(64) char contributions[2][HOST_LANES][HOST_SLOT_BYTES];
  alignas(64) char results[2][HOST_LANES][HOST_SLOT_BYTES];
};
static Simdgroup simdgroups[kMaxThreads / (int)HOST_LANES];

static void complete_simdgroup(int index) {
  Simdgroup& simdgroup = simdgroups[index];
  if (!simdgroup.waiting || simdgroup.waiting < simdgroup.live) return;
  int turn = simdgroup.turn & 1;
  if (simdgroup.combine) {
    simdgroup.combine(simdgroup.contributions[turn][0], simdgroup.active[turn], simdgroup.results[turn][0]);
  }
  int begin = index * HOST_LANES, end = begin + HOST_LANES < threads ? begin + HOST_LANES : threads;
  for (int memory = 0; memory < kMemories; memory++) {
    if (orders(simdgroup.fence, (Memory)memory)) start_simd_phase((Memory)memory, begin, end);
  }
  simdgroup.waiting = 0;
  simdgroup.turn++;
  simdgroup.active[simdgroup.turn & 1] = 0;
  report->collectives++;
  release(begin, end, State::kInSimd);
}

// ---------------------------------------------------------------- collectives that need every lane of their scope

struct Scope {
  int waiting;
  HostSite site;
  HostCombine combine;
  alignas(64) char contributions[kMaxThreads][HOST_SLOT_BYTES];
  alignas(64) char results[kMaxThreads][HOST_SLOT_BYTES];
};
static Scope scopes[kMaxThreads / (int)HOST_LANES];

// ---------------------------------------------------------------- life of a threadgroup

void reset_phases() {
  last_phase = 0;
  scope_simdgroups = 0;
}

void begin_threadgroup() {
  barrier.waiting = 0;
  for (int memory = 0; memory < kMemories; memory++) {
    start_phase((Memory)memory);
    first_phase[memory] = phase[memory];
  }
  for (int begin = 0; begin < threads; begin += HOST_LANES) {
    Simdgroup& simdgroup = simdgroups[begin / HOST_LANES];
    simdgroup.live = threads - begin < HOST_LANES ? threads - begin : HOST_LANES;
    simdgroup.waiting = simdgroup.turn = 0;
    simdgroup.active[0] = simdgroup.active[1] = 0;
    scopes[begin / HOST_LANES].waiting = 0;
  }
}

void thread_returned() {
  int simdgroup = current->thread.simdgroup;
  simdgroups[simdgroup].live--;
  complete_simdgroup(simdgroup);
  complete_barrier();
}

void report_deadlock() {
  int counts[5] = {};
  HostSite sites[5] = {};
  for (int i = 0; i < threads; i++) {
    counts[(int)fibers[i].state]++;
    sites[(int)fibers[i].state] = fibers[i].site;
  }
  char waiting[160] = "";
  const char* at[5] = {"", "at the barrier at", "in the simd operation at", "in the operation of all lanes at", ""};
  HostSite site = 0;
  for (int state = 0; state < 5; state++) {
    if (!counts[state] || !at[state][0]) continue;
    size_t used = strlen(waiting);
    snprintf(waiting + used, sizeof waiting - used, "%s%d %s %s", used ? ", " : "", counts[state], at[state],
             words(sites[state]));
    site = sites[state];
  }
  find("deadlock", site, "threads wait for each other: %s, %d returned (threadgroup %u)", waiting,
       counts[(int)State::kDone], threadgroup_index);
}

static const char* collective(const void* contribution, unsigned bytes, HostSite site, HostCombine combine, int fence,
                              unsigned* active) {
  Fiber& fiber = *current;
  Simdgroup& simdgroup = simdgroups[fiber.thread.simdgroup];
  int turn = simdgroup.turn & 1;
  if (!simdgroup.waiting) {
    simdgroup.site = site;
    simdgroup.combine = combine;
    simdgroup.fence = fence;
  } else if (simdgroup.site != site || simdgroup.combine != combine || simdgroup.fence != fence) {
    find_and_end("divergent_simd", site, "lanes of simdgroup %u are in different simd operations: %s and %s",
                 fiber.thread.simdgroup, words(simdgroup.site), words(site));
  }
  memcpy(simdgroup.contributions[turn][fiber.thread.lane], contribution, bytes);
  simdgroup.active[turn] |= 1u << fiber.thread.lane;
  fiber.site = fiber.last_site = site;
  fiber.state = State::kInSimd;
  simdgroup.waiting++;
  complete_simdgroup(fiber.thread.simdgroup);
  wait_for_turn();
  *active = simdgroup.active[turn];
  return combine ? simdgroup.results[turn][fiber.thread.lane] : simdgroup.contributions[turn][0];
}

}  // namespace host

using namespace host;

extern "C" {

void host_threadgroup_barrier(int flags, HostSite site) {
  if (!barrier.waiting) {
    barrier.site = site;
    barrier.flags = flags;
  } else if (barrier.site != site || barrier.flags != flags) {
    find_and_end("divergent_barrier", site, "threads of threadgroup %u wait at different barriers: %s and %s",
                 threadgroup_index, words(barrier.site), words(site));
  }
  current->site = current->last_site = site;
  current->state = State::kAtBarrier;
  barrier.waiting++;
  complete_barrier();
  wait_for_turn();
}

const char* host_simd_collective(const void* contribution, unsigned bytes, HostSite site, HostCombine combine,
                                 unsigned* active) {
  return collective(contribution, bytes, site, combine, 0, active);
}

void host_simdgroup_barrier(int flags, HostSite site) {
  unsigned active;
  char nothing = 0;
  collective(&nothing, 1, site, nullptr, flags, &active);
}

const char* host_scope_collective(const void* contribution, unsigned bytes, HostSite site, HostCombine combine,
                                  int simdgroup_count) {
  Fiber& fiber = *current;
  int lanes = simdgroup_count * HOST_LANES;
  int index = fiber.thread.simdgroup / simdgroup_count;
  Scope& scope = scopes[index];
  if (threads < (index + 1) * lanes) {
    find_and_end("partial_simdgroup", site, "an operation of %d lanes in a threadgroup of %d threads", lanes, threads);
  }
  if (!scope.waiting) {
    scope.site = site;
    scope.combine = combine;
  } else if (scope.site != site || scope.combine != combine) {
    find_and_end("divergent_simd", site, "lanes that share an operation are in different ones: %s and %s",
                 words(scope.site), words(site));
  }
  int lane = fiber.thread.index_in_threadgroup - index * lanes;
  memcpy(scope.contributions[lane], contribution, bytes);
  fiber.site = fiber.last_site = site;
  fiber.state = State::kInScope;
  if (++scope.waiting == lanes) {
    scope_simdgroups = simdgroup_count;
    combine(scope.contributions[0], ~0u, scope.results[0]);
    scope_simdgroups = 0;
    scope.waiting = 0;
    report->collectives++;
    release(index * lanes, (index + 1) * lanes, State::kInScope);
  }
  wait_for_turn();
  return scope.results[lane];
}

unsigned host_lane() { return current->thread.lane; }
unsigned host_simdgroup() { return current->thread.simdgroup; }
void host_at(HostSite site) { current->last_site = site; }

void host_missing_lane(HostSite site) {
  find("missing_lane", site, "thread %u of threadgroup %u reads a lane that has returned or never was",
       current->thread.index_in_threadgroup, threadgroup_index);
}

void host_beyond_capacity(int index, int capacity) {
  find("beyond_capacity", current->last_site, "element %d of a cooperative tensor that has %d slots a lane", index,
       capacity);
}

void host_short_operand(int values, int k) {
  find("out_of_bounds", current->last_site,
       "matmul2d reads %d values of k where an operand has %d: Metal looks for that edge only with a dynamic k", k,
       values);
}
}
