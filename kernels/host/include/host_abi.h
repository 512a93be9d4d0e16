// What a compiled kernel and the runtime know of each other. Included by both sides; needs nothing else.
#pragma once

// Where in the author's text something happens: bit 31 set in the header, clear in the body; 19 bits of line and 12 of
// column. Zero where that is unknown.
typedef unsigned int HostSite;

struct HostUint3 {
  unsigned int x, y, z;
};

// One GPU thread: the values of all thread attributes.
struct HostThread {
  HostUint3 position_in_grid, position_in_threadgroup, threadgroup_position;
  HostUint3 threads_per_threadgroup, threadgroups_per_grid, threads_per_grid, dispatch_threads_per_threadgroup;
  unsigned int index_in_threadgroup, lane, simdgroup;
  unsigned int simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup;
};

enum HostAccess { HOST_LOAD = 0, HOST_STORE = 1, HOST_UPDATE = 2 };

// What a lane brings to a collective and takes from it.
enum { HOST_LANES = 32, HOST_SLOT_BYTES = 64 };

// A layout seed gives a cooperative tensor up to this many slots a lane that hold no element.
enum { HOST_SPARE_SLOTS = 3 };

// Computes the results of all lanes from the contributions of the active ones. Both are arrays of slots, lane after
// lane.
typedef void (*HostCombine)(const char* contributions, unsigned int active, char* results);

extern "C" {

// threadgroup_barrier and simdgroup_barrier; `flags` are Metal's mem_flags.
void host_threadgroup_barrier(int flags, HostSite site);
void host_simdgroup_barrier(int flags, HostSite site);

// Waits for all live lanes of the simdgroup. Gives the lane's own result, or without `combine` all contributions;
// either stays valid until the lane's next collective. `active` receives the mask of the lanes that took part.
const char* host_simd_collective(const void* contribution, unsigned int bytes, HostSite site, HostCombine combine,
                                 unsigned int* active);

// The same for operations that need every lane of `simdgroups` consecutive simdgroups: matrices and tensors.
const char* host_scope_collective(const void* contribution, unsigned int bytes, HostSite site, HostCombine combine,
                                  int simdgroups);

unsigned int host_lane();
unsigned int host_simdgroup();

// Names the site for the memory accesses that follow, which happen in the host's own functions.
void host_at(HostSite site);
// Reports a read of a lane that is not there, and an index beyond a cooperative tensor's capacity.
void host_missing_lane(HostSite site);
void host_beyond_capacity(int index, int capacity);
// Reports an operand of fewer than k values in a product whose descriptor has a k.
void host_short_operand(int values, int k);
// Reports an infinity or a NaN that the named function is given, or gives, where Metal assumes that there is none.
void host_not_finite(const char* function, int given, float value, HostSite site);

// Element (row * 8 + column) that slot `lane * 2 + i` of an 8x8 simdgroup matrix holds.
const unsigned char* host_fragment_layout();
// Element (outer * inner_extent + inner) that slot `lane * capacity + i` of a cooperative tensor holds, or -1. `role`
// is 0, 1, 2 for left, right and destination.
const int* host_cooperative_layout(int role, int inner_extent, int outer_extent, int lanes, int* capacity);

// Storage of one threadgroup variable.
void* host_threadgroup_variable(int id, const char* name, long bytes, long alignment, HostSite site);

// Hooks of the meter: each reports one access and gives the pointer to use instead. The IR rewriter calls them by name.
void* host_load_device(void* pointer, long bytes, HostSite site, long alignment);
void* host_store_device(void* pointer, long bytes, HostSite site, long alignment);
void* host_load_constant(void* pointer, long bytes, HostSite site, long alignment);
void* host_store_constant(void* pointer, long bytes, HostSite site, long alignment);
void* host_load_threadgroup(void* pointer, long bytes, HostSite site, long alignment);
void* host_store_threadgroup(void* pointer, long bytes, HostSite site, long alignment);
void* host_atomic_device(void* pointer, long bytes, HostSite site, HostAccess access);
void* host_atomic_threadgroup(void* pointer, long bytes, HostSite site, HostAccess access);
// The same for comparisons of floats in math mode fast.
void host_compare(float a, float b, HostSite site);
}
