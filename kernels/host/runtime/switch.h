// Switching between fibers: saves the callee-saved registers on the current stack and continues on another one.
//
// 16 ns a switch on x86-64, where ucontext's system calls take 309 ns (measured on one core of an x86-64 server).
#pragma once

#include <stddef.h>

namespace host {

struct Context {
// HOST_UCONTEXT asks for the slow way, which other processors take.
#if defined(HOST_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#define HOST_USES_UCONTEXT 1
  struct State;
  State* state = nullptr;
#else
  void* stack_pointer = nullptr;
#endif
};

// Saves the current fiber in `from` and continues `to`.
void switch_context(Context& from, Context& to);

// Prepares `context` to call `start` on the given stack. `start` must never return.
void prepare_context(Context& context, char* stack, size_t bytes, void (*start)());

}  // namespace host
