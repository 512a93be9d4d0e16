// A run: all threadgroups of a grid, one after the other.

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_memory.h"
#include "faults.h"
#include "fibers.h"
#include "findings.h"
#include "layouts.h"
#include "rendezvous.h"
#include "threadgroup_memory.h"

namespace host {

static double now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

struct Grid {
  HostUint3 threads, group, groups;
};

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Metal dispatches threads, not threadgroups: groups at the edges are smaller. MLX first clamps a group to the grid.
static Grid grid_of(const uint32_t* threads, const uint32_t* group) {
  Grid grid = {{threads[0], threads[1], threads[2]}, {}, {}};
  grid.group = {least(group[0], threads[0]), least(group[1], threads[1]), least(group[2], threads[2])};
  grid.groups = {(threads[0] + grid.group.x - 1) / grid.group.x, (threads[1] + grid.group.y - 1) / grid.group.y,
                 (threads[2] + grid.group.z - 1) / grid.group.z};
  return grid;
}

static void place_threads(const Grid& grid, uint32_t index) {
  HostUint3 at = {index % grid.groups.x, index / grid.groups.x % grid.groups.y, index / grid.groups.x / grid.groups.y};
  HostUint3 origin = {at.x * grid.group.x, at.y * grid.group.y, at.z * grid.group.z};
  HostUint3 size = {least(grid.group.x, grid.threads.x - origin.x), least(grid.group.y, grid.threads.y - origin.y),
                    least(grid.group.z, grid.threads.z - origin.z)};
  uint32_t full = grid.group.x * grid.group.y * grid.group.z;
  threadgroup_index = index;
  threads = (int)(size.x * size.y * size.z);
  for (uint32_t i = 0; i < (uint32_t)threads; i++) {
    HostThread& thread = fibers[i].thread;
    HostUint3 in_group = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    thread.position_in_threadgroup = in_group;
    thread.position_in_grid = {origin.x + in_group.x, origin.y + in_group.y, origin.z + in_group.z};
    thread.threadgroup_position = at;
    thread.threads_per_threadgroup = size;
    thread.threadgroups_per_grid = grid.groups;
    thread.threads_per_grid = grid.threads;
    thread.dispatch_threads_per_threadgroup = grid.group;
    thread.index_in_threadgroup = i;
    thread.lane = i % HOST_LANES;
    thread.simdgroup = i / HOST_LANES;
    thread.simdgroups_per_threadgroup = ((uint32_t)threads + HOST_LANES - 1) / HOST_LANES;
    thread.dispatch_simdgroups_per_threadgroup = (full + HOST_LANES - 1) / HOST_LANES;
    fibers[i].site = fibers[i].last_site = 0;
  }
}

// Of floats; half keeps its denormals, as on Metal.
static void flush_denormals(bool flush) {
#if defined(__x86_64__)
  const unsigned both = 0x8040;  // results and operands
  unsigned control = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(flush ? control | both : control & ~both);
#else
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  const uint64_t bit = 1ull << 24;
  control = flush ? control | bit : control & ~bit;
  asm volatile("msr fpcr, %0" : : "r"(control));
#endif
}

// The order in which threadgroups run.
static uint32_t* order_of(uint32_t count) {
  uint32_t* order = (uint32_t*)malloc(count * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; i++) order[i] = options.order == kReverse ? count - 1 - i : i;
  for (uint32_t i = count - 1; options.order == kSeeded && i > 0; i--) {
    uint32_t j = random_number() % (i + 1), other = order[i];
    order[i] = order[j];
    order[j] = other;
  }
  return order;
}

}  // namespace host

using namespace host;

extern "C" {

void host_start() { install_fault_handlers(); }

// Runs a kernel over `grid` threads in threadgroups of `group` threads (both x, y, z; at most 1024 threads a group).
void host_run(Entry entry, Buffer* buffers, int count, const uint32_t* grid_threads, const uint32_t* group,
              const Options* chosen, Report* result) {
  static void* arguments[128];
  options = *chosen;
  report = result;
  memset(report, 0, sizeof *report);
  random_state = options.order_seed * 2654435761u + 1;  // odd multiplier: no two seeds share a sequence
  if (!random_state) random_state = 1;

  Grid grid = grid_of(grid_threads, group);
  uint32_t groups = grid.groups.x * grid.groups.y * grid.groups.z;
  reserve_stacks((int)(grid.group.x * grid.group.y * grid.group.z));
  choose_layouts(options.layout_seed);
  reset_phases();
  reset_threadgroup_memory();
  bind_buffers(buffers, count, arguments);

  double began = now();
  uint32_t* order = order_of(groups);
  report->completed = 1;
  flush_denormals(options.flush_denormals);
  for (uint32_t i = 0; i < groups && report->completed; i++) {
    place_threads(grid, order[i]);
    clear_threadgroup_memory();
    begin_threadgroup();
    report->completed = run_fibers(entry, arguments);
    report->threadgroups++;
  }
  flush_denormals(false);
  free(order);
  report->seconds = now() - began;
  unbind_buffers();
}
}
