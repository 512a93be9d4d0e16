// <metal_math>, <metal_common>, <metal_integer>, <metal_relational> and <metal_geometric>.
//
// Scalar functions are overloads, not templates: max(int, uint) is ambiguous here because it is in Metal. Half and
// bfloat compute in float and round once. The host's libm is good to about one unit in the last place; a GPU is not.
#pragma once

#define HOST_FLOATS(M) M(float) M(half) M(bfloat)
#define HOST_INTEGERS(M) M(char) M(int8_t) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)

namespace metal {

// f(x) = expression of a float x, for the three floating types and elementwise for vectors.
#define HOST_UNARY(f, expression)                                                                   \
  HOST_INLINE float f(float x) { return expression; }                                               \
  HOST_INLINE half f(half narrow) { float x = (float)narrow; return (half)(expression); }           \
  HOST_INLINE bfloat f(bfloat narrow) { float x = (float)narrow; return (bfloat)(expression); }     \
  template <class T, int N> HOST_INLINE vec<T, N> f(vec<T, N> x) {                                  \
    vec<T, N> result;                                                                               \
    for (int i = 0; i < N; i++) result[i] = f((T)x[i]);                                             \
    return result;                                                                                  \
  }
#define HOST_LIBM(name) HOST_UNARY(name, __builtin_##name##f(x))
HOST_LIBM(exp) HOST_LIBM(exp2) HOST_LIBM(log) HOST_LIBM(log2) HOST_LIBM(log10) HOST_LIBM(sqrt)
HOST_LIBM(sin) HOST_LIBM(cos) HOST_LIBM(tan) HOST_LIBM(asin) HOST_LIBM(acos) HOST_LIBM(atan)
HOST_LIBM(sinh) HOST_LIBM(cosh) HOST_LIBM(tanh) HOST_LIBM(asinh) HOST_LIBM(acosh) HOST_LIBM(atanh)
HOST_LIBM(floor) HOST_LIBM(ceil) HOST_LIBM(trunc) HOST_LIBM(round) HOST_LIBM(rint) HOST_LIBM(fabs)
HOST_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))
HOST_UNARY(exp10, __builtin_powf(10.0f, x))
HOST_UNARY(fract, x - __builtin_floorf(x))
HOST_UNARY(saturate, x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x)
HOST_UNARY(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)

// f(x, y) for the three floating types and elementwise for vectors.
#define HOST_BINARY(f, expression)                                                                                   \
  HOST_INLINE float f(float x, float y) { return expression; }                                                       \
  HOST_INLINE half f(half a, half b) { float x = (float)a, y = (float)b; return (half)(expression); }                \
  HOST_INLINE bfloat f(bfloat a, bfloat b) { float x = (float)a, y = (float)b; return (bfloat)(expression); }
#define HOST_ELEMENTWISE_BINARY(f)                                                  \
  template <class T, int N> HOST_INLINE vec<T, N> f(vec<T, N> a, vec<T, N> b) {     \
    vec<T, N> result;                                                               \
    for (int i = 0; i < N; i++) result[i] = f((T)a[i], (T)b[i]);                    \
    return result;                                                                  \
  }
HOST_BINARY(pow, __builtin_powf(x, y))
HOST_BINARY(powr, __builtin_powf(x, y))
HOST_BINARY(fmod, __builtin_fmodf(x, y))
HOST_BINARY(atan2, __builtin_atan2f(x, y))
HOST_BINARY(copysign, __builtin_copysignf(x, y))
HOST_BINARY(divide, x / y)
HOST_BINARY(step, y < x ? 0.0f : 1.0f)
HOST_BINARY(fmin, __builtin_fminf(x, y))
HOST_BINARY(fmax, __builtin_fmaxf(x, y))
HOST_BINARY(min, __builtin_fminf(x, y))
HOST_BINARY(max, __builtin_fmaxf(x, y))
#define HOST_INTEGER_MIN_MAX(T)                          \
  HOST_INLINE T min(T a, T b) { return b < a ? b : a; }  \
  HOST_INLINE T max(T a, T b) { return a < b ? b : a; }
HOST_INTEGERS(HOST_INTEGER_MIN_MAX)
HOST_ELEMENTWISE_BINARY(pow) HOST_ELEMENTWISE_BINARY(powr) HOST_ELEMENTWISE_BINARY(fmod)
HOST_ELEMENTWISE_BINARY(atan2) HOST_ELEMENTWISE_BINARY(copysign) HOST_ELEMENTWISE_BINARY(step)
HOST_ELEMENTWISE_BINARY(fmin) HOST_ELEMENTWISE_BINARY(fmax) HOST_ELEMENTWISE_BINARY(min) HOST_ELEMENTWISE_BINARY(max)

#define HOST_CLAMP(T) HOST_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
HOST_INTEGERS(HOST_CLAMP) HOST_FLOATS(HOST_CLAMP)
template <class T, int N> HOST_INLINE vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
  return min(max(x, low), high);
}

// One rounding, in the operands' own type.
HOST_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HOST_INLINE half fma(half a, half b, half c) { return (half)__builtin_fmaf((float)a, (float)b, (float)c); }
HOST_INLINE bfloat fma(bfloat a, bfloat b, bfloat c) { return (bfloat)__builtin_fmaf((float)a, (float)b, (float)c); }
template <class T, int N> HOST_INLINE vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> result;
  for (int i = 0; i < N; i++) result[i] = fma((T)a[i], (T)b[i], (T)c[i]);
  return result;
}

#define HOST_MIX(T) HOST_INLINE T mix(T a, T b, T t) { return a + (b - a) * t; }
HOST_FLOATS(HOST_MIX)
HOST_INLINE float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }

#define HOST_FLOAT_ABS(T) HOST_INLINE T abs(T x) { return fabs(x); }
HOST_FLOATS(HOST_FLOAT_ABS)
#define HOST_SIGNED_ABS(T) HOST_INLINE T abs(T x) { return x < 0 ? (T)-x : x; }
HOST_SIGNED_ABS(int8_t) HOST_SIGNED_ABS(short) HOST_SIGNED_ABS(int) HOST_SIGNED_ABS(long)
#define HOST_UNSIGNED_ABS(T) HOST_INLINE T abs(T x) { return x; }
HOST_UNSIGNED_ABS(uchar) HOST_UNSIGNED_ABS(ushort) HOST_UNSIGNED_ABS(uint) HOST_UNSIGNED_ABS(ulong)
template <class T, int N> HOST_INLINE vec<T, N> abs(vec<T, N> x) {
  vec<T, N> result;
  for (int i = 0; i < N; i++) result[i] = abs((T)x[i]);
  return result;
}

#define HOST_CLASSIFY(T)                                                          \
  HOST_INLINE bool isnan(T x) { return __builtin_isnan((float)x); }               \
  HOST_INLINE bool isinf(T x) { return __builtin_isinf((float)x); }               \
  HOST_INLINE bool isfinite(T x) { return __builtin_isfinite((float)x); }         \
  HOST_INLINE bool signbit(T x) { return __builtin_signbit((float)x); }
HOST_FLOATS(HOST_CLASSIFY)

#define HOST_SELECT(T) HOST_INLINE T select(T a, T b, bool choose_b) { return choose_b ? b : a; }
HOST_INTEGERS(HOST_SELECT) HOST_FLOATS(HOST_SELECT)
template <class T, class M, int N> HOST_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<M, N> choose_b) {
  vec<T, N> result;
  for (int i = 0; i < N; i++) result[i] = choose_b[i] ? b[i] : a[i];
  return result;
}
template <class T, int N> HOST_INLINE bool any(vec<T, N> x) {
  for (int i = 0; i < N; i++) if (x[i]) return true;
  return false;
}
template <class T, int N> HOST_INLINE bool all(vec<T, N> x) {
  for (int i = 0; i < N; i++) if (!x[i]) return false;
  return true;
}

template <class T, int N> HOST_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T sum = (T)0;
  for (int i = 0; i < N; i++) sum = sum + a[i] * b[i];
  return sum;
}
template <class T, int N> HOST_INLINE T length_squared(vec<T, N> x) { return dot(x, x); }
template <class T, int N> HOST_INLINE T length(vec<T, N> x) { return sqrt(dot(x, x)); }

#define HOST_BITS(T, bits)                                                                         \
  HOST_INLINE T popcount(T x) { return (T)__builtin_popcountl((ulong)x & (~0ul >> (64 - bits))); }  \
  HOST_INLINE T clz(T x) {                                                                         \
    ulong field = (ulong)x & (~0ul >> (64 - bits));                                                \
    return (T)(field ? __builtin_clzl(field) - (64 - bits) : bits);                                \
  }                                                                                                \
  HOST_INLINE T ctz(T x) {                                                                         \
    ulong field = (ulong)x & (~0ul >> (64 - bits));                                                \
    return (T)(field ? __builtin_ctzl(field) : bits);                                              \
  }
HOST_BITS(int8_t, 8) HOST_BITS(uchar, 8) HOST_BITS(short, 16) HOST_BITS(ushort, 16)
HOST_BITS(int, 32) HOST_BITS(uint, 32) HOST_BITS(long, 64) HOST_BITS(ulong, 64)

HOST_INLINE uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (bits >= 32 ? ~0u : (1u << bits) - 1);
}
HOST_INLINE uint insert_bits(uint base, uint x, uint offset, uint bits) {
  uint mask = bits == 0 ? 0 : (bits >= 32 ? ~0u : (1u << bits) - 1) << offset;
  return (base & ~mask) | ((x << offset) & mask);
}
HOST_INLINE uint mulhi(uint a, uint b) { return (uint)(((ulong)a * b) >> 32); }
HOST_INLINE int mulhi(int a, int b) { return (int)(((long)a * b) >> 32); }
HOST_INLINE uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }
HOST_INLINE uint rotate(uint x, uint n) {
  n &= 31;
  return n ? (x << n) | (x >> (32 - n)) : x;
}

// The host has one precision; what differs on a GPU is error, which no test here can see.
#define HOST_PRECISION_NAMESPACE(name)                                                                              \
  namespace name {                                                                                                  \
  using metal::exp; using metal::exp2; using metal::exp10; using metal::log; using metal::log2; using metal::log10;  \
  using metal::sqrt; using metal::rsqrt; using metal::sin; using metal::cos; using metal::tan; using metal::asin;    \
  using metal::acos; using metal::atan; using metal::atan2; using metal::sinh; using metal::cosh;                    \
  using metal::tanh; using metal::asinh; using metal::acosh; using metal::atanh; using metal::pow;                   \
  using metal::powr; using metal::fmod; using metal::divide; using metal::floor; using metal::ceil;                  \
  using metal::trunc; using metal::round; using metal::rint; using metal::fract; using metal::fabs;                  \
  using metal::abs; using metal::min; using metal::max; using metal::fmin; using metal::fmax;                        \
  using metal::clamp; using metal::saturate; using metal::sign; using metal::step; using metal::ldexp;               \
  }
HOST_PRECISION_NAMESPACE(precise)
#ifdef HOST_STRICT
HOST_PRECISION_NAMESPACE(fast)
#endif

}  // namespace metal
