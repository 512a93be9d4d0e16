// Declarations for the strict pass, which checks types and generates no code: SIMD-group functions, atomics, matrices.
//
// Constructors and references to constants carry no address space, which clang takes as any: it finds no constructor
// that has one in a cast such as T(value), and binds no temporary to a reference that has one.
#pragma once

namespace metal {

template <class T> T simd_sum(T value);
template <class T> T simd_product(T value);
template <class T> T simd_min(T value);
template <class T> T simd_max(T value);
template <class T> T simd_and(T value);
template <class T> T simd_or(T value);
template <class T> T simd_xor(T value);
template <class T> T simd_prefix_inclusive_sum(T value);
template <class T> T simd_prefix_exclusive_sum(T value);
template <class T> T simd_shuffle(T value, ushort lane);
template <class T> T simd_shuffle_xor(T value, ushort mask);
template <class T> T simd_shuffle_up(T value, ushort delta);
template <class T> T simd_shuffle_down(T value, ushort delta);
template <class T> T simd_broadcast(T value, ushort lane);
template <class T> T simd_broadcast_first(T value);
bool simd_is_first();
bool simd_any(bool vote);
bool simd_all(bool vote);

struct simd_vote {
  typedef ulong vote_t;
  explicit simd_vote(vote_t votes = 0);
  explicit operator vote_t() const;
  bool all() const HOST_THREAD;
  bool any() const HOST_THREAD;
};
simd_vote simd_ballot(bool vote);

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};

template <class T> struct atomic {
  T value;
};

#define HOST_ATOMIC_UPDATE(SPACE, name) \
  template <class T> T name(volatile SPACE atomic<T>* object, remove_cv_t<T> operand, memory_order order);
#define HOST_ATOMICS(SPACE)                                                                                      \
  template <class T> T atomic_load_explicit(const volatile SPACE atomic<T>* object, memory_order order);         \
  template <class T>                                                                                             \
  void atomic_store_explicit(volatile SPACE atomic<T>* object, remove_cv_t<T> desired, memory_order order);      \
  template <class T> bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>* object,                \
                                                                HOST_THREAD T* expected, remove_cv_t<T> desired, \
                                                                memory_order success, memory_order failure);     \
  HOST_ATOMIC_UPDATE(SPACE, atomic_exchange_explicit)                                                            \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_add_explicit)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_sub_explicit)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_and_explicit)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_or_explicit)                                                            \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_xor_explicit)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_min_explicit)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_max_explicit)
HOST_ATOMICS(HOST_DEVICE)
HOST_ATOMICS(HOST_THREADGROUP)
#undef HOST_ATOMICS
#undef HOST_ATOMIC_UPDATE

template <class T, int Cols, int Rows> struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "Metal has 8x8 simdgroup matrices only");

  vec<T, 2> host_elements;

  simdgroup_matrix();
  explicit simdgroup_matrix(T value);
  HOST_THREAD vec<T, 2>& thread_elements() HOST_THREAD;
  const HOST_THREAD vec<T, 2>& thread_elements() const HOST_THREAD;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int Cols, int Rows> simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value);

#define HOST_MATRIX_MEMORY(SPACE)                                                                                 \
  template <class T> void simdgroup_load(HOST_THREAD simdgroup_matrix<T, 8, 8>& matrix, const SPACE T* source,    \
                                         ulong elements_per_row = 8, ulong2 origin = 0, bool transposed = false); \
  template <class T> void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, SPACE T* destination,          \
                                          ulong elements_per_row = 8, ulong2 origin = 0, bool transposed = false);
HOST_MATRIX_MEMORY(HOST_DEVICE)
HOST_MATRIX_MEMORY(HOST_THREADGROUP)
#undef HOST_MATRIX_MEMORY

template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(HOST_THREAD simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c);
template <class D, class A, class B> void simdgroup_multiply(HOST_THREAD simdgroup_matrix<D, 8, 8>& d,
                                                             const simdgroup_matrix<A, 8, 8>& a,
                                                             const simdgroup_matrix<B, 8, 8>& b);

}  // namespace metal

ushort __metal_get_thread_index_in_simdgroup(ushort);

// OpenCL has types of these names.
#define atomic_int metal::atomic<int>
#define atomic_uint metal::atomic<uint>
#define atomic_bool metal::atomic<bool>
#define atomic_float metal::atomic<float>
#define atomic_ulong metal::atomic<ulong>
