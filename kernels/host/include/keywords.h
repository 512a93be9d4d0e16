// Metal's keywords and macros. Included after all of the library: from here on `device` and `thread` are keywords.
#pragma once

#define device HOST_DEVICE
#define constant HOST_CONSTANT
#define threadgroup HOST_THREADGROUP
#define thread HOST_THREAD

#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL_VERSION__ 400

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 3.402823466e38f
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.1920929e-7f
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_SQRT2_F 1.41421356237309504880f
