// Threadgroup variables: one arena with guard gaps, laid out as the first thread comes by each declaration.
#pragma once

namespace host {

// Poisons the variables, before each threadgroup.
void clear_threadgroup_memory();
// Forgets the variables of the last run.
void reset_threadgroup_memory();

}  // namespace host
