// Where threads wait for each other: barriers of the threadgroup, collectives of a simdgroup or of several.
#pragma once

#include "fibers.h"

namespace host {

// Numbers the stretches of time between which a fence has ordered memory. Two accesses by different simdgroups can
// collide only if they lie in the same phase of that memory; by lanes of one simdgroup, only in the same simd phase.
extern uint32_t phase[kMemories];
// The first phase of the running threadgroup: whatever is older happened in another one.
extern uint32_t first_phase[kMemories];

// Starts counting phases anew, for another run.
void reset_phases();
void begin_threadgroup();
// Called when a fiber has left the kernel: those that wait may be complete now.
void thread_returned();
void report_deadlock();

// Simdgroups on whose behalf memory is being read or written by an operation that no single lane performs; otherwise 0.
extern int scope_simdgroups;

}  // namespace host
