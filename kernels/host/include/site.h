// The call's place in the author's text, as a default argument: `void f(int x, HOST_SITE);`
#pragma once

namespace host {

constexpr HostSite site_of(const char* file, unsigned line, unsigned column) {
  return (file[0] == 'h' ? 1u << 31 : 0u) | (line & 0x7ffffu) << 12 | (column & 0xfffu);
}

}  // namespace host

#define HOST_SITE HostSite site = host::site_of(__builtin_FILE(), __builtin_LINE(), __builtin_COLUMN())
