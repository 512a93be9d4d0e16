#include "device_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "access.h"

namespace host {

static const int64_t kPage = 4096, kGap = 1 << 20;

struct Bound {
  Buffer* buffer;
  char* base;
  uint32_t *reads, *writes;  // of each byte
  uint32_t* last_reader;     // threadgroup + 1
  Shadow shadow;             // of outputs
};
enum { kMaxBuffers = 96 };

static Bound bound[kMaxBuffers];
static int bound_count;
static char* arena;
static int64_t arena_bytes;
static int8_t* owner_of_page;

static int64_t pages_of(const Buffer& buffer) { return (buffer.byte_offset + buffer.bytes + kPage - 1) / kPage + 1; }

void bind_buffers(Buffer* buffers, int count, void** arguments) {
  arena_bytes = kGap;
  for (int i = 0; i < count; i++) arena_bytes += pages_of(buffers[i]) * kPage + kGap;
  arena = (char*)mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) abort();
  owner_of_page = (int8_t*)malloc(arena_bytes / kPage);
  memset(owner_of_page, 0xff, arena_bytes / kPage);

  int64_t offset = kGap;
  bound_count = count;
  for (int i = 0; i < count; i++) {
    Buffer& buffer = buffers[i];
    Bound& here = bound[i] = {&buffer, arena + offset + buffer.byte_offset, nullptr, nullptr,
                              nullptr, {kDevice, nullptr, nullptr}};
    memset(owner_of_page + offset / kPage, i, pages_of(buffer));
    if (buffer.kind != kOutput || buffer.initialised) {
      memcpy(here.base, buffer.contents, buffer.bytes);
    } else if (options.poisoned) {
      memset(here.base, 0xff, buffer.bytes);
    }
    if (options.metered) {
      here.reads = (uint32_t*)calloc(buffer.bytes + 1, sizeof(uint32_t));
      here.writes = (uint32_t*)calloc(buffer.bytes + 1, sizeof(uint32_t));
      here.last_reader = (uint32_t*)calloc(buffer.bytes + 1, sizeof(uint32_t));
      if (buffer.kind == kOutput) here.shadow.cells = (Cell*)calloc(buffer.bytes + 1, sizeof(Cell));
    }
    arguments[i] = here.base + buffer.origin;
    offset += pages_of(buffer) * kPage + kGap;
  }
}

static void sum_up(Bound& here) {
  Buffer& buffer = *here.buffer;
  int64_t unwritten = 0, first = -1;
  for (int64_t i = 0; i < buffer.bytes; i++) {
    buffer.unique_bytes_read += here.reads[i] > 0;
    buffer.unique_bytes_written += here.writes[i] > 0;
    if (here.reads[i] > buffer.most_reads) buffer.most_reads = here.reads[i];
    if (here.writes[i] > buffer.most_writes) buffer.most_writes = here.writes[i];
    if (here.writes[i]) continue;
    unwritten++;
    if (first < 0) first = i;
  }
  if (buffer.kind == kOutput && !buffer.initialised && unwritten && report->completed) {
    find("unwritten_output", 0, "%lld of %lld bytes of %s are never written, the first at offset %lld",
         (long long)unwritten, (long long)buffer.bytes, buffer.name, (long long)first);
  }
}

void unbind_buffers() {
  for (int i = 0; i < bound_count; i++) {
    Bound& here = bound[i];
    if (here.buffer->kind == kOutput) memcpy(here.buffer->contents, here.base, here.buffer->bytes);
    if (options.metered) sum_up(here);
    free(here.reads);
    free(here.writes);
    free(here.last_reader);
    free(here.shadow.cells);
    free(here.shadow.updates);
  }
  free(owner_of_page);
  munmap(arena, arena_bytes);
}

static void report_out_of_bounds(const char* pointer, int64_t bytes, HostAccess kind, HostSite site) {
  const unsigned thread = current->thread.index_in_threadgroup;
  int nearest = -1;
  int64_t least = 0;
  for (int i = 0; i < bound_count; i++) {
    int64_t before = bound[i].base - pointer, after = pointer - (bound[i].base + bound[i].buffer->bytes);
    int64_t distance = before > after ? before : after;
    if (nearest < 0 || distance < least) {
      nearest = i;
      least = distance;
    }
  }
  if (nearest < 0 || least > kGap) {
    find("out_of_bounds", site, "thread %u of threadgroup %u %s %lld bytes in no buffer at all", thread,
         threadgroup_index, verb(kind), (long long)bytes);
    return;
  }
  find("out_of_bounds", site, "thread %u of threadgroup %u %s %lld bytes at offset %lld of %s, which has %lld bytes",
       thread, threadgroup_index, verb(kind), (long long)bytes, (long long)(pointer - bound[nearest].base),
       bound[nearest].buffer->name, (long long)bound[nearest].buffer->bytes);
}

static void count_reads(Bound& here, int64_t from, int64_t bytes) {
  here.buffer->bytes_read += bytes;
  const uint32_t me = threadgroup_index + 1;
  for (int64_t i = from; i < from + bytes; i++) {
    here.reads[i]++;
    if (here.last_reader[i] != me) {
      here.last_reader[i] = me;
      here.buffer->bytes_read_once_per_threadgroup++;
    }
  }
}

static void count_writes(Bound& here, int64_t from, int64_t bytes) {
  here.buffer->bytes_written += bytes;
  for (int64_t i = from; i < from + bytes; i++) here.writes[i]++;
}

// A load through `constant` that lies outside the arena reads a constant of the program.
enum class Space { kDevice, kConstant };

static void* access_buffer(void* pointer, int64_t bytes, HostSite site, int64_t alignment, HostAccess kind, bool atomic,
                           Space space) {
  site = note_site(site);
  int64_t position = (char*)pointer - arena;
  bool inside = position >= 0 && position < arena_bytes;
  if (space == Space::kConstant && !inside) return pointer;
  int owner = inside ? owner_of_page[position / kPage] : -1;
  int64_t offset = owner >= 0 ? (char*)pointer - bound[owner].base : -1;
  if (owner < 0 || offset < 0 || offset + bytes > bound[owner].buffer->bytes) {
    report_out_of_bounds((char*)pointer, bytes, kind, site);
    return send_nowhere(bytes, site);
  }

  Bound& here = bound[owner];
  check_alignment(pointer, alignment, site, {here.buffer->name, offset});
  if (kind != HOST_LOAD && here.buffer->kind != kOutput) {
    find("write_to_input", site, "thread %u of threadgroup %u writes offset %lld of the input %s",
         current->thread.index_in_threadgroup, threadgroup_index, (long long)offset, here.buffer->name);
    return send_nowhere(bytes, site);
  }
  if (kind != HOST_STORE) count_reads(here, offset, bytes);
  if (kind != HOST_LOAD) count_writes(here, offset, bytes);
  if (atomic) here.buffer->atomic_bytes += bytes;
  if (here.shadow.cells) {
    if (atomic && !here.shadow.updates) here.shadow.updates = (Crowd*)calloc(here.buffer->bytes + 1, sizeof(Crowd));
    check_bytes(here.shadow, offset, bytes, access_of_current(kDevice, kind, atomic, site), here.buffer->name, 0,
                here.buffer->initialised);
  }
  return pointer;
}

}  // namespace host

using namespace host;

extern "C" {

void* host_load_device(void* pointer, long bytes, HostSite site, long alignment) {
  return access_buffer(pointer, bytes, site, alignment, HOST_LOAD, false, Space::kDevice);
}
void* host_store_device(void* pointer, long bytes, HostSite site, long alignment) {
  return access_buffer(pointer, bytes, site, alignment, HOST_STORE, false, Space::kDevice);
}
void* host_load_constant(void* pointer, long bytes, HostSite site, long alignment) {
  return access_buffer(pointer, bytes, site, alignment, HOST_LOAD, false, Space::kConstant);
}
void* host_store_constant(void* pointer, long bytes, HostSite site, long alignment) {
  return access_buffer(pointer, bytes, site, alignment, HOST_STORE, false, Space::kConstant);
}

// Called by the kernel itself, in a build that is not metered too.
void* host_atomic_device(void* pointer, long bytes, HostSite site, HostAccess access) {
  if (!options.metered) return pointer;
  return access_buffer(pointer, bytes, site, bytes, access, true, Space::kDevice);
}
}
