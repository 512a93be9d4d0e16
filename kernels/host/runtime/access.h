// What accesses to all kinds of memory share.
#pragma once

#include <string.h>

#include "findings.h"
#include "shadow.h"

namespace host {

// Where accesses that go nowhere are sent: reads find poison, writes vanish.
inline char nowhere[1 << 16];

inline void* send_nowhere(int64_t bytes, HostSite site) {
  if (bytes > (int64_t)sizeof nowhere)
    find_and_end("out_of_bounds", site, "the access spans %lld bytes", (long long)bytes);
  memset(nowhere, 0xff, bytes);
  return nowhere;
}

inline HostSite note_site(HostSite site) {
  if (site) return current->last_site = site;
  return current->last_site;
}

inline void check_alignment(const void* pointer, int64_t alignment, HostSite site, Place place) {
  if (alignment <= 1 || !((uintptr_t)pointer & (alignment - 1))) return;
  find("misaligned", site, "thread %u accesses offset %lld of %s, which must be aligned to %lld bytes and is %lld off",
       current->thread.index_in_threadgroup, (long long)place.offset, place.name, (long long)alignment,
       (long long)((uintptr_t)pointer & (alignment - 1)));
}

// `origin` is where in the shadow the thing begins that the findings name.
inline void check_bytes(Shadow& shadow, int64_t from, int64_t bytes, const Access& access, const char* name,
                        int64_t origin, bool initialised) {
  bool silent = false;
  for (int64_t byte = from; byte < from + bytes; byte++) {
    if (!silent && !initialised && access.kind != HOST_STORE && !shadow.is_written(byte)) {
      silent = true;
      find("uninitialised_read", access.site,
           "thread %u of threadgroup %u %s byte %lld of %s before anything is written there",
           current->thread.index_in_threadgroup, threadgroup_index, verb(access.kind), (long long)(byte - origin),
           name);
    }
    if (!shadow.access(byte, access, {name, byte - origin}, silent)) silent = true;
  }
}

}  // namespace host
