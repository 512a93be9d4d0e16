// The conversion that clang calls where the processor has no instruction for it; compiler-rt is not linked.

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
}
