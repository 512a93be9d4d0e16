#include "fibers.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "findings.h"
#include "rendezvous.h"

namespace host {

Fiber fibers[kMaxThreads];
Fiber* current;
int threads, live_threads;
uint32_t threadgroup_index;
uint32_t random_state;
Options options;

static Context scheduler;
static int stacks, guard_bytes;
static bool ended;
static Entry entry;
static void** arguments;

// Each live fiber is in the queue at most once.
static int queue[kMaxThreads];
static unsigned queue_head, queue_tail;

uint32_t random_number() {  // xorshift32
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}

void reserve_stacks(int count) {
  guard_bytes = (int)sysconf(_SC_PAGESIZE);
  for (; stacks < count; stacks++) {
    char* memory =
        (char*)mmap(nullptr, guard_bytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (memory == MAP_FAILED) abort();
    mprotect(memory, guard_bytes, PROT_NONE);
    fibers[stacks].stack = memory + guard_bytes;
  }
}

bool is_stack_guard(const void* address) {
  for (int i = 0; i < stacks; i++) {
    if (address >= fibers[i].stack - guard_bytes && address < fibers[i].stack) return true;
  }
  return false;
}

static void run_thread() {
  entry(arguments, &current->thread);
  current->state = State::kDone;
  live_threads--;
  thread_returned();
  wait_for_turn();
  abort();
}

void release(int begin, int end, State state) {
  static int released[kMaxThreads];
  int count = 0;
  for (int i = begin; i < end; i++) {
    if (fibers[i].state == state) released[count++] = i;
  }
  for (int i = 0; i < count; i++) {
    int at = i;
    if (options.order == kReverse) at = count - 1 - i;
    if (options.order == kSeeded) at = i + random_number() % (count - i);
    int chosen = released[at];
    if (options.order == kSeeded) released[at] = released[i];
    fibers[chosen].state = State::kReady;
    queue[queue_tail++ % kMaxThreads] = chosen;
  }
}

void wait_for_turn() {
  report->switches++;
  Fiber* leaving = current;
  Context& from = leaving ? leaving->context : scheduler;
  if (queue_head == queue_tail) {
    current = nullptr;
    switch_context(from, scheduler);
    return;
  }
  current = &fibers[queue[queue_head++ % kMaxThreads]];
  if (current != leaving) switch_context(from, current->context);
}

void end_run() {
  ended = true;
  queue_head = queue_tail;
  static Context abandoned;
  current = nullptr;
  switch_context(abandoned, scheduler);
  abort();
}

bool run_fibers(Entry kernel, void** buffers) {
  entry = kernel;
  arguments = buffers;
  ended = false;
  queue_head = queue_tail = 0;
  live_threads = threads;
  for (int i = 0; i < threads; i++) {
    fibers[i].state = State::kAtBarrier;
    prepare_context(fibers[i].context, fibers[i].stack, kStackBytes, run_thread);
  }
  release(0, threads, State::kAtBarrier);
  current = nullptr;
  wait_for_turn();
  if (!ended && live_threads) {
    report_deadlock();
    ended = true;
  }
  return !ended;
}

}  // namespace host
