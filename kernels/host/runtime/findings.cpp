#include "findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fibers.h"

namespace host {

Report* report;

static void add(const char* kind, HostSite site, const char* format, va_list arguments) {
  report->findings_seen++;
  for (int i = 0; i < report->findings_kept; i++) {
    Finding& known = report->findings[i];
    if (known.site == site && !strcmp(known.kind, kind)) {
      known.count++;
      return;
    }
  }
  if (report->findings_kept == kMaxFindings) return;
  Finding& finding = report->findings[report->findings_kept++];
  snprintf(finding.kind, sizeof finding.kind, "%s", kind);
  finding.site = site;
  finding.count = 1;
  vsnprintf(finding.message, sizeof finding.message, format, arguments);
}

void find(const char* kind, HostSite site, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add(kind, site, format, arguments);
  va_end(arguments);
}

void find_and_end(const char* kind, HostSite site, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add(kind, site, format, arguments);
  va_end(arguments);
  end_run();
}

}  // namespace host
