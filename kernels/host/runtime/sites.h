// Sites in words.
#pragma once

#include <stdio.h>

#include "interface.h"

namespace host {

// "body:12", "header:3" or "an unknown line"; valid until the eighth call after it.
inline const char* words(HostSite site) {
  static char texts[8][24];
  static int next;
  char* text = texts[next++ % 8];
  if (!site) return "an unknown line";
  snprintf(text, sizeof texts[0], "%s:%u", site >> 31 ? "header" : "body", (site >> 12) & 0x7ffff);
  return text;
}

}  // namespace host
