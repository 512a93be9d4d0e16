// Metal's standard library for the executable build.
#pragma once

#include "host_abi.h"
#include "address_spaces.h"
#include "scalars.h"
#include "traits.h"
#include "vectors.h"
#include "math.h"
#include "site.h"
#include "fast_math.h"
#include "barriers.h"
#include "simd_functions.h"
#include "atomics.h"
#include "simdgroup_matrix.h"
#ifdef HOST_TENSORS
#include "tensors.h"
#endif

namespace host {

// `threadgroup T name[8];` becomes `auto& name = host::threadgroup_variable<T[8], 0>("name");`
template <class T, int id> HOST_INLINE HOST_THREADGROUP T& threadgroup_variable(const char* name, HOST_SITE) {
  constexpr long alignment = alignof(T) < 16 ? 16 : alignof(T);
  return *(HOST_THREADGROUP T*)host_threadgroup_variable(id, name, sizeof(T), alignment, site);
}

}  // namespace host

#include "keywords.h"
#include "mlx_prelude.h"
