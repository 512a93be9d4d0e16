// Metal's standard library for the strict pass.
#pragma once

#define HOST_STRICT
#include "address_spaces.h"
#include "scalars.h"
#include "traits.h"
#include "vectors.h"
#include "math.h"
#include "barriers.h"
#include "strict_functions.h"
#ifdef HOST_TENSORS
#include "strict_tensors.h"
#endif

// A parameter of the kernel: a value that only its type is known of.
template <class Pointer> Pointer host_parameter();

#include "keywords.h"
#include "mlx_prelude.h"
