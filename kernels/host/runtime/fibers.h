// One fiber per GPU thread of the running threadgroup, all on one OS thread. Fibers switch only where threads wait for
// each other, so a run is deterministic; the order in which waiting fibers go on is an option.
#pragma once

#include "interface.h"
#include "switch.h"

namespace host {

enum class State : uint8_t { kReady, kAtBarrier, kInSimd, kInScope, kDone };

// Which memory a fence orders; indexes the phases.
enum Memory { kDevice, kThreadgroup, kMemories };

struct Fiber {
  Context context;
  char* stack = nullptr;
  HostThread thread;
  State state;
  HostSite site;       // of the rendezvous it waits at
  HostSite last_site;  // of its latest metered access or call
  uint32_t simd_phase[kMemories];
};

const int kMaxThreads = 1024, kStackBytes = 256 * 1024;

extern Options options;
extern Fiber fibers[kMaxThreads];
extern Fiber* current;
extern int threads;  // of the running threadgroup
extern int live_threads;
extern uint32_t threadgroup_index;
extern uint32_t random_state;

uint32_t random_number();

// Allocates stacks, each above a guard page.
void reserve_stacks(int count);
// Whether an address lies in the guard page of some fiber's stack.
bool is_stack_guard(const void* address);

// Runs one threadgroup's fibers until none can go on. False if a finding ended the run.
bool run_fibers(Entry entry, void** arguments);

// Lets the fibers [begin, end) that wait in `state` go on, in the order of the run.
void release(int begin, int end, State state);
// Gives the processor to the next fiber that can go on.
void wait_for_turn();
// Leaves all fibers where they are.
[[noreturn]] void end_run();

}  // namespace host
