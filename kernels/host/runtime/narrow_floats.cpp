// Conversions that clang calls where the processor has no instruction for them; compiler-rt is not linked.

#include <stdint.h>
#include <string.h>

extern "C" {

// Round to nearest even; a NaN stays one.
__bf16 __truncsfbf2(float wide) {
  uint32_t bits;
  memcpy(&bits, &wide, 4);
  bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  uint16_t narrow = nan ? (uint16_t)(bits >> 16 | 0x40) : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  __bf16 result;
  memcpy(&result, &narrow, 2);
  return result;
}

#if !defined(__F16C__) && !defined(__aarch64__)

float __extendhfsf2(_Float16 narrow) {
  uint16_t half;
  memcpy(&half, &narrow, 2);
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  float magnitude;
  if (exponent == 0) {
    magnitude = (float)mantissa * 0x1p-24f;
  } else {
    uint32_t bits = (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    memcpy(&magnitude, &bits, 4);
  }
  uint32_t bits;
  memcpy(&bits, &magnitude, 4);
  bits |= sign;
  memcpy(&magnitude, &bits, 4);
  return magnitude;
}

_Float16 __truncsfhf2(float wide) {
  uint32_t bits;
  memcpy(&bits, &wide, 4);
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000), half;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    half = 0x7c00;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the lowest bits
    float value;
    memcpy(&value, &magnitude, 4);
    value += 0.5f;
    memcpy(&magnitude, &value, 4);
    half = (uint16_t)(magnitude - 0x3f000000u);
  } else {
    half = (uint16_t)((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13);
  }
  half |= sign;
  _Float16 result;
  memcpy(&result, &half, 2);
  return result;
}

#endif

}
