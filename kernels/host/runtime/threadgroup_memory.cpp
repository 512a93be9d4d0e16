#include "threadgroup_memory.h"

#include <string.h>

#include "access.h"

namespace host {

struct Variable {
  const char* name;
  int64_t offset, bytes;
};
enum { kMaxVariables = 64, kThreadgroupLimit = 32768, kThreadgroupArena = 1 << 20, kVariableGap = 256 };

static Variable variables[kMaxVariables];
static int variable_count;
static int64_t variables_end, variable_bytes;
alignas(4096) static char threadgroup_arena[kThreadgroupArena];
static Cell threadgroup_cells[kThreadgroupArena];
static Crowd threadgroup_updates[kThreadgroupArena];
static Shadow threadgroup_shadow = {kThreadgroup, threadgroup_cells, threadgroup_updates};

void clear_threadgroup_memory() { memset(threadgroup_arena, 0xff, variables_end); }

void reset_threadgroup_memory() {
  memset(threadgroup_cells, 0, variables_end * sizeof(Cell));
  memset(threadgroup_updates, 0, variables_end * sizeof(Crowd));
  for (int i = 0; i < kMaxVariables; i++) variables[i].name = nullptr;
  variable_count = 0;
  variables_end = kVariableGap;
  variable_bytes = 0;
}

static void place_variable(int id, const char* name, int64_t bytes, int64_t alignment, HostSite site) {
  if (id >= kMaxVariables)
    find_and_end("threadgroup_memory", site, "more than %d threadgroup variables", kMaxVariables);
  int64_t offset = (variables_end + alignment - 1) / alignment * alignment;
  if (offset + bytes + kVariableGap > kThreadgroupArena) {
    find_and_end("threadgroup_memory", site, "%s takes %lld bytes, a threadgroup has %d", name, (long long)bytes,
                 kThreadgroupLimit);
  }
  memset(threadgroup_arena + variables_end, 0xff, offset + bytes + kVariableGap - variables_end);
  variables[id] = {name, offset, bytes};
  if (id >= variable_count) variable_count = id + 1;
  variables_end = offset + bytes + kVariableGap;
  variable_bytes = (variable_bytes + alignment - 1) / alignment * alignment + bytes;
  report->threadgroup_bytes = variable_bytes;
  if (variable_bytes > kThreadgroupLimit) {
    find("threadgroup_memory", site, "%lld bytes of threadgroup memory with %s, %d are allowed",
         (long long)variable_bytes, name, kThreadgroupLimit);
  }
}

// The variable that holds all of the bytes, or null; `nearest` receives the one closest to them in any case.
static const Variable* variable_at(int64_t position, int64_t bytes, const Variable*& nearest) {
  int64_t least = 0;
  nearest = nullptr;
  for (int i = 0; i < variable_count; i++) {
    const Variable& variable = variables[i];
    if (!variable.name) continue;
    int64_t end = variable.offset + variable.bytes;
    if (position >= variable.offset && position + bytes <= end) return nearest = &variable;
    int64_t distance = position < variable.offset ? variable.offset - position : position - end;
    if (!nearest || distance < least) {
      nearest = &variable;
      least = distance;
    }
  }
  return nullptr;
}

static void* access_threadgroup(void* pointer, int64_t bytes, HostSite site, int64_t alignment, HostAccess kind,
                                bool atomic) {
  site = note_site(site);
  int64_t position = (char*)pointer - threadgroup_arena;
  const Variable* nearest;
  const Variable* variable = variable_at(position, bytes, nearest);
  if (!variable) {
    static const Variable none = {"threadgroup memory", 0, 0};
    const Variable& close = nearest ? *nearest : none;
    find("out_of_bounds", site, "thread %u of threadgroup %u %s %lld bytes at offset %lld of %s, which has %lld bytes",
         current->thread.index_in_threadgroup, threadgroup_index, verb(kind), (long long)bytes,
         (long long)(position - close.offset), close.name, (long long)close.bytes);
    return send_nowhere(bytes, site);
  }
  check_alignment(pointer, alignment, site, {variable->name, position - variable->offset});
  check_bytes(threadgroup_shadow, position, bytes, access_of_current(kThreadgroup, kind, atomic, site), variable->name,
              variable->offset, false);
  return pointer;
}

}  // namespace host

using namespace host;

extern "C" {

void* host_threadgroup_variable(int id, const char* name, long bytes, long alignment, HostSite site) {
  if (id >= kMaxVariables || !variables[id].name) place_variable(id, name, bytes, alignment, site);
  return threadgroup_arena + variables[id].offset;
}

void* host_load_threadgroup(void* pointer, long bytes, HostSite site, long alignment) {
  return access_threadgroup(pointer, bytes, site, alignment, HOST_LOAD, false);
}
void* host_store_threadgroup(void* pointer, long bytes, HostSite site, long alignment) {
  return access_threadgroup(pointer, bytes, site, alignment, HOST_STORE, false);
}

// Called by the kernel itself, in a build that is not metered too.
void* host_atomic_threadgroup(void* pointer, long bytes, HostSite site, HostAccess access) {
  if (!options.metered) return pointer;
  return access_threadgroup(pointer, bytes, site, bytes, access, true);
}
}
