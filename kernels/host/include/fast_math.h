// metal::fast, of float only, as in Metal. Its functions assume that no argument and no result is an infinity or a NaN:
// what they give otherwise is not defined. The runtime is told of each that is.
#pragma once

namespace host {

HOST_INLINE float finite(float value, const char* function, bool given, HostSite site) {
  if (!__builtin_isfinite(value)) host_not_finite(function, given, value, site);
  return value;
}
template <int N> HOST_INLINE metal::vec<float, N> finite(metal::vec<float, N> values, const char* function, bool given,
                                                         HostSite site) {
  for (int i = 0; i < N; i++) finite((float)values[i], function, given, site);
  return values;
}

}  // namespace host

namespace metal {
namespace fast {

#define HOST_GIVEN(f, x) host::finite(x, "fast::" #f, true, site)
#define HOST_GIVES(f, x) host::finite(x, "fast::" #f, false, site)
#define HOST_FAST_UNARY(f)                                                                       \
  HOST_INLINE float f(float x, HOST_SITE) { return HOST_GIVES(f, metal::f(HOST_GIVEN(f, x))); }  \
  template <int N> HOST_INLINE vec<float, N> f(vec<float, N> x, HOST_SITE) {                     \
    return HOST_GIVES(f, metal::f(HOST_GIVEN(f, x)));                                            \
  }
HOST_FAST_UNARY(exp) HOST_FAST_UNARY(exp2) HOST_FAST_UNARY(exp10) HOST_FAST_UNARY(log) HOST_FAST_UNARY(log2)
HOST_FAST_UNARY(log10) HOST_FAST_UNARY(sqrt) HOST_FAST_UNARY(rsqrt) HOST_FAST_UNARY(sin) HOST_FAST_UNARY(cos)
HOST_FAST_UNARY(tan) HOST_FAST_UNARY(asin) HOST_FAST_UNARY(acos) HOST_FAST_UNARY(atan) HOST_FAST_UNARY(sinh)
HOST_FAST_UNARY(cosh) HOST_FAST_UNARY(tanh) HOST_FAST_UNARY(asinh) HOST_FAST_UNARY(acosh) HOST_FAST_UNARY(atanh)
HOST_FAST_UNARY(floor) HOST_FAST_UNARY(ceil) HOST_FAST_UNARY(trunc) HOST_FAST_UNARY(round) HOST_FAST_UNARY(rint)
HOST_FAST_UNARY(fract) HOST_FAST_UNARY(fabs) HOST_FAST_UNARY(abs) HOST_FAST_UNARY(saturate) HOST_FAST_UNARY(sign)
#undef HOST_FAST_UNARY

#define HOST_FAST_BINARY(f)                                                                       \
  HOST_INLINE float f(float x, float y, HOST_SITE) {                                              \
    return HOST_GIVES(f, metal::f(HOST_GIVEN(f, x), HOST_GIVEN(f, y)));                           \
  }                                                                                               \
  template <int N> HOST_INLINE vec<float, N> f(vec<float, N> x, vec<float, N> y, HOST_SITE) {     \
    return HOST_GIVES(f, metal::f(HOST_GIVEN(f, x), HOST_GIVEN(f, y)));                           \
  }
HOST_FAST_BINARY(pow) HOST_FAST_BINARY(powr) HOST_FAST_BINARY(fmod) HOST_FAST_BINARY(atan2) HOST_FAST_BINARY(step)
HOST_FAST_BINARY(min) HOST_FAST_BINARY(max) HOST_FAST_BINARY(fmin) HOST_FAST_BINARY(fmax)
#undef HOST_FAST_BINARY

HOST_INLINE float divide(float x, float y, HOST_SITE) {
  return HOST_GIVES(divide, metal::divide(HOST_GIVEN(divide, x), HOST_GIVEN(divide, y)));
}
HOST_INLINE float ldexp(float x, int exponent, HOST_SITE) {
  return HOST_GIVES(ldexp, metal::ldexp(HOST_GIVEN(ldexp, x), exponent));
}
HOST_INLINE float clamp(float x, float low, float high, HOST_SITE) {
  return metal::clamp(HOST_GIVEN(clamp, x), HOST_GIVEN(clamp, low), HOST_GIVEN(clamp, high));
}
template <int N>
HOST_INLINE vec<float, N> clamp(vec<float, N> x, vec<float, N> low, vec<float, N> high, HOST_SITE) {
  return metal::clamp(HOST_GIVEN(clamp, x), HOST_GIVEN(clamp, low), HOST_GIVEN(clamp, high));
}
#undef HOST_GIVEN
#undef HOST_GIVES

}  // namespace fast
}  // namespace metal
