// The runtime as one translation unit, so that the hooks of the meter are inlined into each other.

#include "switch.cpp"
#include "findings.cpp"
#include "fibers.cpp"
#include "rendezvous.cpp"
#include "device_memory.cpp"
#include "threadgroup_memory.cpp"
#include "layouts.cpp"
#include "undefined_behaviour.cpp"
#include "finiteness.cpp"
#include "narrow_floats.cpp"
#include "faults.cpp"
#include "run.cpp"
