// What Python passes to host_run and gets back. child.py mirrors these structures with ctypes.
#pragma once

#include <stdint.h>

#include "../include/host_abi.h"

namespace host {

enum BufferKind : int32_t { kInput, kConstant, kOutput };
enum Order : int32_t { kForward, kReverse, kSeeded };

struct Buffer {
  const char* name;
  void* contents;  // read before the run; an output's bytes are written back after it
  int64_t bytes;
  int64_t origin;       // where in the contents the kernel's pointer points (negative strides)
  int64_t byte_offset;  // shifts the buffer off its 4096-byte alignment
  BufferKind kind;
  int32_t initialised;  // an output with an init_value

  // Traffic, filled by a metered run. Requests of the kernel, before any cache or coalescing.
  int64_t bytes_read, bytes_written, atomic_bytes;
  int64_t unique_bytes_read, unique_bytes_written;
  int64_t most_reads, most_writes;          // of any single byte
  int64_t bytes_read_once_per_threadgroup;  // sum over threadgroups of the unique bytes that each reads
};

struct Options {
  int32_t order;
  uint32_t order_seed;
  uint32_t layout_seed;
  int32_t metered;
  int32_t poisoned;      // fill outputs with 0xff bytes; otherwise with zeros
  int32_t check_finite;  // of what fast math assumes to be finite
  int32_t flush_denormals;
};

struct Finding {
  char kind[32];
  uint32_t site;
  int64_t count;
  char message[304];
};

enum { kMaxFindings = 64 };

struct Report {
  int32_t completed;  // 0 if a finding ended the run
  int32_t findings_kept;
  int64_t findings_seen;
  int64_t threadgroups, barriers, collectives, switches, threadgroup_bytes;
  double seconds;
  Finding findings[kMaxFindings];
};

typedef void (*Entry)(void** buffers, const HostThread* thread);

}  // namespace host
