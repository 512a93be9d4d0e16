// Metal's scalar types and its fixed-width names.
#pragma once

#ifndef HOST_STRICT
typedef _Float16 half;
#endif
typedef __bf16 bfloat;
#ifndef HOST_STRICT
constexpr half operator""h(long double value) { return (half)value; }
#endif
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
