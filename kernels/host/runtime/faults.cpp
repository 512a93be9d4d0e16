#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fibers.h"

namespace host {

static void die(int signal_number, siginfo_t* info, void*) {
  char words[128];
  bool overflow = is_stack_guard(info->si_addr);
  int length = snprintf(words, sizeof words, "\nfault site=%u thread=%u threadgroup=%u stack_overflow=%d\n",
                        current ? current->last_site : 0, current ? current->thread.index_in_threadgroup : 0,
                        threadgroup_index, overflow);
  if (write(2, words, length) < 0) abort();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void install_fault_handlers() {
  static char stack[64 * 1024];  // the fault may be that the fiber's own stack is full
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = die;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
  for (int signal_number : fatal) sigaction(signal_number, &action, nullptr);
}

}  // namespace host
