// simdgroup_matrix<T, 8, 8>: two elements a lane, in the layout of the run.
//
// The layout is not documented. Layout 0 is the one seen on Apple GPUs, every other seed a permutation of all 64 slots,
// so a kernel that reads meaning into a lane's elements is right under layout 0 only.
#pragma once

namespace host {

struct Fragment {
  uint row, column;

  static Fragment of(uint lane, int slot) {
    uint element = host_fragment_layout()[lane * 2 + slot];
    return {element / 8, element % 8};
  }
  static Fragment mine(int slot) { return of(host_lane(), slot); }
};

}  // namespace host

namespace metal {

template <class T, int Cols, int Rows> struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "Metal has 8x8 simdgroup matrices only");
  static_assert(__is_same(T, float) || __is_same(T, half) || __is_same(T, bfloat), "of float, half or bfloat");

  vec<T, 2> host_elements;

  simdgroup_matrix() { __builtin_memset(&host_elements, 0xff, sizeof host_elements); }
  // A diagonal matrix.
  explicit simdgroup_matrix(T value) {
    for (int slot = 0; slot < 2; slot++) {
      host::Fragment at = host::Fragment::mine(slot);
      host_elements[slot] = at.row == at.column ? value : (T)0;
    }
  }
  vec<T, 2>& thread_elements() { return host_elements; }
  const vec<T, 2>& thread_elements() const { return host_elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Cols, int Rows>
HOST_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> filled;
  filled.host_elements = value;
  return filled;
}

#define HOST_MATRIX_MEMORY(SPACE)                                                                                    \
  template <class T> HOST_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, const SPACE T* source,       \
                                                     ulong elements_per_row = 8, ulong2 origin = 0,                  \
                                                     bool transposed = false, HOST_SITE) {                           \
    host_at(site);                                                                                                   \
    for (int slot = 0; slot < 2; slot++) {                                                                           \
      host::Fragment at = host::Fragment::mine(slot);                                                                \
      ulong row = transposed ? at.column : at.row, column = transposed ? at.row : at.column;                         \
      matrix.host_elements[slot] = source[(origin.y + row) * elements_per_row + origin.x + column];                  \
    }                                                                                                                \
  }                                                                                                                  \
  template <class T> HOST_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, SPACE T* destination, \
                                                      ulong elements_per_row = 8, ulong2 origin = 0,                 \
                                                      bool transposed = false, HOST_SITE) {                          \
    host_at(site);                                                                                                   \
    for (int slot = 0; slot < 2; slot++) {                                                                           \
      host::Fragment at = host::Fragment::mine(slot);                                                                \
      ulong row = transposed ? at.column : at.row, column = transposed ? at.row : at.column;                         \
      destination[(origin.y + row) * elements_per_row + origin.x + column] = matrix.host_elements[slot];             \
    }                                                                                                                \
  }
HOST_MATRIX_MEMORY(HOST_DEVICE)
HOST_MATRIX_MEMORY(HOST_THREADGROUP)
#undef HOST_MATRIX_MEMORY

}  // namespace metal

namespace host {

// D = A B + C, accumulated in float in the order of k; the width of the real accumulator is not documented.
template <class D, class A, class B, class C> struct MatrixProduct {
  metal::vec<A, 2> a;
  metal::vec<B, 2> b;
  metal::vec<C, 2> c;

  static void combine(const char* contributions, uint, char* results) {
    float left[8][8], right[8][8];
    MatrixProduct lanes[HOST_LANES];
    for (uint lane = 0; lane < HOST_LANES; lane++) {
      __builtin_memcpy(&lanes[lane], contributions + HOST_SLOT_BYTES * lane, sizeof(MatrixProduct));
      for (int slot = 0; slot < 2; slot++) {
        Fragment at = Fragment::of(lane, slot);
        left[at.row][at.column] = (float)lanes[lane].a[slot];
        right[at.row][at.column] = (float)lanes[lane].b[slot];
      }
    }
    for (uint lane = 0; lane < HOST_LANES; lane++) {
      metal::vec<D, 2> d;
      for (int slot = 0; slot < 2; slot++) {
        Fragment at = Fragment::of(lane, slot);
        float sum = (float)lanes[lane].c[slot];
        for (int k = 0; k < 8; k++) sum += left[at.row][k] * right[k][at.column];
        d[slot] = (D)sum;
      }
      __builtin_memcpy(results + HOST_SLOT_BYTES * lane, &d, sizeof d);
    }
  }
};

}  // namespace host

namespace metal {

template <class D, class A, class B, class C>
HOST_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                               const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
                                               HOST_SITE) {
  typedef host::MatrixProduct<D, A, B, C> Product;
  static_assert(sizeof(Product) <= HOST_SLOT_BYTES, "fits a slot");
  Product mine = {a.host_elements, b.host_elements, c.host_elements};
  const char* slot = host_scope_collective(&mine, sizeof mine, site, Product::combine, 1);
  __builtin_memcpy(&d.host_elements, slot, sizeof d.host_elements);
}
template <class D, class A, class B>
HOST_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                    const simdgroup_matrix<B, 8, 8>& b, HOST_SITE) {
  simdgroup_matrix<D, 8, 8> zero = make_filled_simdgroup_matrix<D, 8, 8>((D)0);
  simdgroup_multiply_accumulate(d, a, b, zero, site);
}

}  // namespace metal
