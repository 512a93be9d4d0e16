// How elements of simdgroup matrices and cooperative tensors are spread over lanes, chosen by the run's layout seed.
#pragma once

#include <stdint.h>

namespace host {

void choose_layouts(uint32_t seed);

}  // namespace host
