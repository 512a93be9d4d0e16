// What a run has to say against a kernel: one entry for each kind and site, with the first instance in words.
#pragma once

#include "interface.h"

namespace host {

extern Report* report;

// Adds a finding, or counts it if its kind is known at this site.
__attribute__((format(printf, 3, 4))) void find(const char* kind, HostSite site, const char* format, ...);

// The same, and ends the run: what follows would only report consequences.
__attribute__((format(printf, 3, 4), noreturn)) void find_and_end(const char* kind, HostSite site, const char* format,
                                                                  ...);

}  // namespace host
