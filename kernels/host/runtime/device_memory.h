// Buffers of a run, in device and constant memory, and what is read and written of them.
#pragma once

#include "interface.h"

namespace host {

// Lays out the buffers in one arena with guard gaps and fills `arguments` with the pointers that the kernel gets.
void bind_buffers(Buffer* buffers, int count, void** arguments);
// Writes outputs back, sums up the traffic, reports bytes of outputs that a completed run has not written.
void unbind_buffers();

}  // namespace host
