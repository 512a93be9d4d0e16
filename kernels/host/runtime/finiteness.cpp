// What is told of infinities and NaNs that fast math assumes not to be there.

#include "findings.h"
#include "fibers.h"

using namespace host;

extern "C" {

void host_not_finite(const char* function, int given, float value, HostSite site) {
  if (!options.check_finite) return;
  const char* what = value != value ? "a NaN" : value < 0 ? "-infinity" : "infinity";
  find("not_finite", site, "%s %s %s in thread %u of threadgroup %u; Metal assumes that it never does", function,
       given ? "meets" : "gives", what, current->thread.index_in_threadgroup, threadgroup_index);
}

// The meter puts this call in front of every comparison of a kernel in math mode fast.
void host_compare(float a, float b, HostSite site) {
  if (!__builtin_isfinite(a)) host_not_finite("a comparison", 1, a, site ? site : current->last_site);
  if (!__builtin_isfinite(b)) host_not_finite("a comparison", 1, b, site ? site : current->last_site);
}
}
