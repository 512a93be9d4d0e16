// The handlers that clang's undefined-behaviour checks call. Each record begins with the place in the source.

#include "findings.h"
#include "fibers.h"

using namespace host;

struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

static HostSite site_of(const void* record) {
  const SourceLocation* at = (const SourceLocation*)record;
  if (!at->file || (at->file[0] != 'b' && at->file[0] != 'h') || at->file[1] == 0) return current->last_site;
  bool body = !__builtin_strcmp(at->file, "body"), header = !__builtin_strcmp(at->file, "header");
  if (!body && !header) return current->last_site;  // in the host's own functions: the latest place that is known
  return (header ? 1u << 31 : 0u) | (at->line & 0x7ffff) << 12 | (at->column & 0xfff);
}

static void undefined(const void* record, const char* what) {
  find("undefined", site_of(record), "%s in thread %u of threadgroup %u", what, current->thread.index_in_threadgroup,
       threadgroup_index);
}

// For what cannot be carried out: the machine would trap, or memory of other threads would be overwritten.
[[noreturn]] static void impossible(const void* record, const char* what) {
  find_and_end("undefined", site_of(record), "%s in thread %u of threadgroup %u", what,
               current->thread.index_in_threadgroup, threadgroup_index);
}

extern "C" {

void __ubsan_handle_shift_out_of_bounds(void* record, uint64_t, uint64_t) {
  undefined(record, "shift by the width or more");
}
void __ubsan_handle_add_overflow(void* record, uint64_t, uint64_t) { undefined(record, "signed overflow of +"); }
void __ubsan_handle_sub_overflow(void* record, uint64_t, uint64_t) { undefined(record, "signed overflow of -"); }
void __ubsan_handle_mul_overflow(void* record, uint64_t, uint64_t) { undefined(record, "signed overflow of *"); }
void __ubsan_handle_negate_overflow(void* record, uint64_t) { undefined(record, "signed overflow of a negation"); }
void __ubsan_handle_float_cast_overflow(void* record, uint64_t) {
  undefined(record, "a float that the integer type cannot hold");
}
void __ubsan_handle_divrem_overflow(void* record, uint64_t, uint64_t) {
  impossible(record, "integer division by zero or overflow");
}
void __ubsan_handle_out_of_bounds(void* record, uint64_t) { impossible(record, "index outside an array"); }
void __ubsan_handle_missing_return(void* record) { impossible(record, "function ends without a return value"); }
void __ubsan_handle_builtin_unreachable(void* record) { impossible(record, "unreachable code is reached"); }
}
