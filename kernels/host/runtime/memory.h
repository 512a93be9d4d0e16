// Device, constant and threadgroup memory of a run, and the hooks that meter it.
#pragma once

#include "interface.h"

namespace host {

// Lays out the buffers in one arena with guard gaps and fills `arguments` with the pointers that the kernel gets.
void bind_buffers(Buffer* buffers, int count, void** arguments);
// Writes outputs back, sums up the traffic, reports bytes of outputs that a completed run has not written.
void unbind_buffers();

// Poisons the threadgroup variables.
void clear_threadgroup_memory();
// Forgets the threadgroup variables of the last kernel.
void reset_threadgroup_memory();

}  // namespace host
