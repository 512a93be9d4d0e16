// The VALUES values of a row of w from value `first` on, in the lowest bits; 2, 4 or 8 bytes, aligned to their number.
//
// Value i of a row lies in bits [BITS * i, BITS * (i + 1)) of the row's words, as mx.quantize packs it.
template <int VALUES, int BITS>
METAL_FUNC uint2 packed_values(const device uint* row, int first) {
    const device uchar* at = (const device uchar*)row + first * BITS / 8;
    if (VALUES * BITS == 16) return uint2(uint(*(const device ushort*)at), 0u);
    if (VALUES * BITS == 32) return uint2(*(const device uint*)at, 0u);
    return *(const device uint2*)at;
}
