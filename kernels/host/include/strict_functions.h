// Declarations for the strict pass, which checks types and generates no code: SIMD-group functions, atomics, matrices.
//
// Constructors and references to constants carry no address space, which clang takes as any: it finds no constructor
// that has one in a cast such as T(value), and binds no temporary to a reference that has one.
#pragma once

namespace host {

// Metal Shading Language Specification, 6.9.2: scalars and vectors of integers and floats, without bool and 64 bits.
template <class T> constexpr bool is_simd_value() {
  typedef typename Vector<T>::element element;
  return sizeof(element) <= 4 && !__is_same(element, bool);
}
template <class T> constexpr bool is_simd_mask() {
  return is_simd_value<T>() && __is_integral(typename Vector<T>::element);
}

}  // namespace host

namespace metal {

#define HOST_SIMD_FUNCTION(name, allowed)                                                    \
  template <class T> T name(T value) {                                                       \
    static_assert(host::allowed<T>(), "Metal has no " #name " of values of this type");      \
    return value;                                                                            \
  }
HOST_SIMD_FUNCTION(simd_sum, is_simd_value)
HOST_SIMD_FUNCTION(simd_product, is_simd_value)
HOST_SIMD_FUNCTION(simd_min, is_simd_value)
HOST_SIMD_FUNCTION(simd_max, is_simd_value)
HOST_SIMD_FUNCTION(simd_and, is_simd_mask)
HOST_SIMD_FUNCTION(simd_or, is_simd_mask)
HOST_SIMD_FUNCTION(simd_xor, is_simd_mask)
HOST_SIMD_FUNCTION(simd_prefix_inclusive_sum, is_simd_value)
HOST_SIMD_FUNCTION(simd_prefix_exclusive_sum, is_simd_value)
#undef HOST_SIMD_FUNCTION
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

// The only order of atomic operations; fences, which the host lacks, have others (6.15).
enum memory_order { memory_order_relaxed };

template <class T> struct atomic {
  T value;
};

}  // namespace metal

namespace host {

// 6.15.2: floats are atomic in device memory only, and only their sums; 64 bits have none of these operations.
enum class Atomic { plain, sum, bitwise, extreme };
template <class T> constexpr bool has_atomic(Atomic operation, bool in_device_memory) {
  if (__is_same(T, int) || __is_same(T, uint)) return true;
  if (__is_same(T, bool)) return operation == Atomic::plain;
  return __is_same(T, float) && in_device_memory && (operation == Atomic::plain || operation == Atomic::sum);
}

}  // namespace host

namespace metal {

#define HOST_ATOMIC(SPACE, result, name, operation, parameters, value)                                                \
  template <class T> result name(parameters) {                                                                        \
    static_assert(host::has_atomic<T>(host::Atomic::operation, __is_same(SPACE int, HOST_DEVICE int)),                 \
                  "Metal has no " #name " of this type in this memory");                                              \
    return value;                                                                                                     \
  }
#define HOST_TAKES(...) __VA_ARGS__
#define HOST_ATOMIC_UPDATE(SPACE, name, operation)                                                                    \
  HOST_ATOMIC(SPACE, T, name, operation,                                                                              \
              HOST_TAKES(volatile SPACE atomic<T>* object, remove_cv_t<T> operand, memory_order order), operand)
#define HOST_ATOMICS(SPACE)                                                                                           \
  HOST_ATOMIC(SPACE, T, atomic_load_explicit, plain,                                                                  \
              HOST_TAKES(const volatile SPACE atomic<T>* object, memory_order order), T())                            \
  HOST_ATOMIC(SPACE, void, atomic_store_explicit, plain,                                                              \
              HOST_TAKES(volatile SPACE atomic<T>* object, remove_cv_t<T> desired, memory_order order), )             \
  HOST_ATOMIC(SPACE, bool, atomic_compare_exchange_weak_explicit, plain,                                              \
              HOST_TAKES(volatile SPACE atomic<T>* object, HOST_THREAD T* expected, remove_cv_t<T> desired,           \
                         memory_order success, memory_order failure), true)                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_exchange_explicit, plain)                                                          \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_add_explicit, sum)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_sub_explicit, sum)                                                           \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_and_explicit, bitwise)                                                       \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_or_explicit, bitwise)                                                        \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_xor_explicit, bitwise)                                                       \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_min_explicit, extreme)                                                       \
  HOST_ATOMIC_UPDATE(SPACE, atomic_fetch_max_explicit, extreme)
HOST_ATOMICS(HOST_DEVICE)
HOST_ATOMICS(HOST_THREADGROUP)
#undef HOST_ATOMICS
#undef HOST_ATOMIC_UPDATE
#undef HOST_TAKES
#undef HOST_ATOMIC

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

// Of the types that public kernels multiply: operands of one type, sums of theirs or of float.
template <class D, class A, class B> void simdgroup_multiply(HOST_THREAD simdgroup_matrix<D, 8, 8>& d,
                                                             const simdgroup_matrix<A, 8, 8>& a,
                                                             const simdgroup_matrix<B, 8, 8>& b) {
  static_assert(__is_same(A, B), "both operands of a product of matrices have one type");
  static_assert(__is_same(D, A) || __is_same(D, float), "a product of matrices has the operands' type or float");
}
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(HOST_THREAD simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  static_assert(__is_same(D, C), "sums of matrices keep their type");
  simdgroup_multiply(d, a, b);
}

}  // namespace metal

ushort __metal_get_thread_index_in_simdgroup(ushort);

// OpenCL has types of these names.
#define atomic_int metal::atomic<int>
#define atomic_uint metal::atomic<uint>
#define atomic_bool metal::atomic<bool>
#define atomic_float metal::atomic<float>
#define atomic_ulong metal::atomic<ulong>
