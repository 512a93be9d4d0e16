#include "switch.h"

#include <stdint.h>
#include <string.h>

#ifdef HOST_USES_UCONTEXT
#include <stdlib.h>
#include <ucontext.h>
#endif

namespace host {

#ifdef HOST_USES_UCONTEXT

struct Context::State {
  ucontext_t context;
};

static Context::State* state_of(Context& context) {
  if (!context.state) context.state = (Context::State*)calloc(1, sizeof(Context::State));
  return context.state;
}

void switch_context(Context& from, Context& to) { swapcontext(&state_of(from)->context, &state_of(to)->context); }

void prepare_context(Context& context, char* stack, size_t bytes, void (*start)()) {
  ucontext_t& prepared = state_of(context)->context;
  getcontext(&prepared);
  prepared.uc_stack.ss_sp = stack;
  prepared.uc_stack.ss_size = bytes;
  prepared.uc_link = nullptr;
  makecontext(&prepared, start, 0);
}

#else

// `naked`: no prologue touches the stack. The arguments are in the registers of the C calling convention, which System
// V x86-64 shares with macOS, and AAPCS64 with Apple's arm64 (x18 is the platform's and stays untouched).
__attribute__((naked, noinline)) static void swap_stacks(void** save, void* load) {
#if defined(__x86_64__)
  asm volatile(
      "pushq %rbp\n"
      "pushq %rbx\n"
      "pushq %r12\n"
      "pushq %r13\n"
      "pushq %r14\n"
      "pushq %r15\n"
      "movq %rsp, (%rdi)\n"
      "movq %rsi, %rsp\n"
      "popq %r15\n"
      "popq %r14\n"
      "popq %r13\n"
      "popq %r12\n"
      "popq %rbx\n"
      "popq %rbp\n"
      "retq\n");
#else
  asm volatile(
      "sub sp, sp, #160\n"
      "stp x19, x20, [sp, #0]\n"
      "stp x21, x22, [sp, #16]\n"
      "stp x23, x24, [sp, #32]\n"
      "stp x25, x26, [sp, #48]\n"
      "stp x27, x28, [sp, #64]\n"
      "stp x29, x30, [sp, #80]\n"
      "stp d8, d9, [sp, #96]\n"
      "stp d10, d11, [sp, #112]\n"
      "stp d12, d13, [sp, #128]\n"
      "stp d14, d15, [sp, #144]\n"
      "mov x9, sp\n"
      "str x9, [x0]\n"
      "mov sp, x1\n"
      "ldp x19, x20, [sp, #0]\n"
      "ldp x21, x22, [sp, #16]\n"
      "ldp x23, x24, [sp, #32]\n"
      "ldp x25, x26, [sp, #48]\n"
      "ldp x27, x28, [sp, #64]\n"
      "ldp x29, x30, [sp, #80]\n"
      "ldp d8, d9, [sp, #96]\n"
      "ldp d10, d11, [sp, #112]\n"
      "ldp d12, d13, [sp, #128]\n"
      "ldp d14, d15, [sp, #144]\n"
      "add sp, sp, #160\n"
      "ret\n");
#endif
}

void switch_context(Context& from, Context& to) { swap_stacks(&from.stack_pointer, to.stack_pointer); }

// Lays out what swap_stacks pops: zeroed registers and `start` as the address to return to.
void prepare_context(Context& context, char* stack, size_t bytes, void (*start)()) {
  uintptr_t* top = (uintptr_t*)(((uintptr_t)stack + bytes) & ~(uintptr_t)15);
#if defined(__x86_64__)
  *--top = 0;  // keeps the stack as a call would: 8 bytes off 16 when `start` begins
  *--top = (uintptr_t)start;
  top -= 6;
  memset(top, 0, 6 * sizeof *top);
#else
  top -= 20;
  memset(top, 0, 20 * sizeof *top);
  top[11] = (uintptr_t)start;  // x30
#endif
  context.stack_pointer = top;
}

#endif

}  // namespace host
