// What a kernel does that the meter cannot forbid, say through a wild pointer into its own stack, ends the process. The
// last words on stderr tell Python where.
#pragma once

namespace host {

void install_fault_handlers();

}  // namespace host
