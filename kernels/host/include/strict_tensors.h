// The tensor API for the strict pass. That pass is C++17, where a class cannot be a template argument: the descriptor
// of matmul2d converts to an integer.
#pragma once

namespace metal {

static constexpr HOST_CONSTANT size_t dynamic_extent = ~size_t(0);
template <class T> constexpr HOST_CONSTANT T dynamic_length_v = (T)dynamic_extent;

template <class T, size_t N> struct array {
  T host_items[N];
  constexpr T operator[](size_t i) const HOST_THREAD { return host_items[i]; }
};

template <class Index, size_t A, size_t B> struct extents {
  typedef Index index_type;
  Index host_sizes[2];
  constexpr extents() : host_sizes{0, 0} {}
  constexpr extents(Index inner, Index outer) : host_sizes{inner, outer} {}
  static constexpr size_t rank() { return 2; }
  constexpr Index extent(size_t i) const HOST_THREAD { return host_sizes[i]; }
};
template <class Index, int rank> using dextents = extents<Index, ~size_t(0), ~size_t(0)>;

struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};

template <class Element, class Extents, class Tag = tensor_handle> struct tensor {
  typedef Element element_type;
  Element* host_data;
  template <class E> tensor(Element* data, E sizes) : host_data(data) {}
  template <class E, class S> tensor(Element* data, E sizes, array<S, 2> strides) : host_data(data) {}
  tensor slice(int inner, int outer) const HOST_THREAD { return *this; }
  template <size_t Inner, size_t Outer> tensor slice(int inner, int outer) const HOST_THREAD { return *this; }
  template <size_t Inner, size_t Outer> tensor static_slice(int inner, int outer) const HOST_THREAD { return *this; }
  Extents extents() const HOST_THREAD { return Extents(); }
  int get_extent(int i) const HOST_THREAD { return 0; }
};
template <class Element, class Extents, class S> tensor(Element*, Extents, array<S, 2>)
    -> tensor<Element, Extents, tensor_inline>;
template <class Element, class Extents> tensor(Element*, Extents) -> tensor<Element, Extents, tensor_inline>;

template <size_t N> struct execution_simdgroups {
  static constexpr HOST_CONSTANT int host_simdgroups = N;
};
typedef execution_simdgroups<1> execution_simdgroup;

// One lane's share of an operand: 0, 1, 2 for left, right and destination. It remembers the element types of all three
// operands, which must be those of the run that it takes part in.
template <class T, int Role, int Inner, int Outer, int Simdgroups, class Left, class Right, class Destination>
struct cooperative_tensor {
  typedef T element_type;
  T host_elements[(Inner * Outer + 32 * Simdgroups - 1) / (32 * Simdgroups)];
  ushort get_capacity() const HOST_THREAD { return 1; }
  bool is_valid_element(int slot) const HOST_THREAD { return true; }
  bool get_mask(int slot) const HOST_THREAD { return true; }
  array<int, 2> get_multidimensional_index(int slot) const HOST_THREAD { return {}; }
  HOST_THREAD T& operator[](int slot) HOST_THREAD { return host_elements[slot]; }
  const HOST_THREAD T& operator[](int slot) const HOST_THREAD { return host_elements[slot]; }
  template <class Tensor> void load(const HOST_THREAD Tensor& source) HOST_THREAD {}
  template <class Tensor> void store(const HOST_THREAD Tensor& destination) const HOST_THREAD {}
};

}  // namespace metal

namespace host {

// What an operand's type says. Neither a const nor an address space in front of the tensor is taken away: the real
// templates know `tensor<...>` and `cooperative_tensor<...>` only, and decltype of a variable carries `thread`.
template <class T> struct Operand {
  typedef void element;
  static constexpr HOST_CONSTANT bool known = false, cooperative = false, reachable = true, indexed = true;
  template <int Role, class Left, class Right, class Destination> static constexpr bool fits() { return true; }
};
template <class Element, class Index> struct TensorOperand {
  typedef Element element;
  static constexpr HOST_CONSTANT bool known = true, cooperative = false, indexed = __is_same(Index, int);
  template <int Role, class Left, class Right, class Destination> static constexpr bool fits() { return true; }
};
template <class Element, class Extents, class Tag> struct Operand<metal::tensor<Element, Extents, Tag>>
    : TensorOperand<Element, typename Extents::index_type> {
  static constexpr HOST_CONSTANT bool reachable = false;
};
template <class Element, class Extents, class Tag> struct Operand<metal::tensor<HOST_DEVICE Element, Extents, Tag>>
    : TensorOperand<Element, typename Extents::index_type> {
  static constexpr HOST_CONSTANT bool reachable = true;
};
template <class Element, class Extents, class Tag>
struct Operand<metal::tensor<HOST_THREADGROUP Element, Extents, Tag>>
    : TensorOperand<Element, typename Extents::index_type> {
  static constexpr HOST_CONSTANT bool reachable = true;
};
template <class T, int OwnRole, int Inner, int Outer, int Simdgroups, class L, class R, class D>
struct Operand<metal::cooperative_tensor<T, OwnRole, Inner, Outer, Simdgroups, L, R, D>> {
  typedef T element;
  static constexpr HOST_CONSTANT bool known = true, cooperative = true, reachable = true, indexed = true;
  template <int Role, class Left, class Right, class Destination> static constexpr bool fits() {
    return Role == OwnRole && same<Left, L>() && same<Right, R>() && same<Destination, D>();
  }
  // Of an operand whose type is not known, which is complained of elsewhere, nothing is.
  template <class Given, class Own> static constexpr bool same() {
    return __is_same(Given, Own) || __is_same(Given, void) || __is_same(Own, void);
  }
};

// A type of elements as it is written: `half`, not `device half`, `const half` or a reference.
template <class T> constexpr HOST_CONSTANT bool is_plain =
    __is_same(T, metal::remove_cv_t<metal::remove_addrspace_t<metal::remove_reference_t<T>>>);

template <class T, class... Types> constexpr bool is_among() { return (... || __is_same(T, Types)); }

template <class Other, class D> constexpr bool has_product_with_bytes() {
  if (__is_same(D, float)) return is_among<Other, half, bfloat, float>();
  return is_among<Other, half, bfloat>() && __is_same(D, Other);
}

// The combinations of element types in the comment at the head of MPPTensorOpsMatMul2d.h, macOS 26.2 SDK.
template <class L, class R, class D> constexpr bool has_product() {
  if (__is_same(L, half) && __is_same(R, half)) return is_among<D, half, float>();
  if (__is_same(L, bfloat) && __is_same(R, bfloat)) return is_among<D, bfloat, float>();
  if ((__is_same(L, half) && __is_same(R, bfloat)) || (__is_same(L, bfloat) && __is_same(R, half)))
    return is_among<D, half, bfloat, float>();
  if (__is_same(L, int8_t) && __is_same(R, int8_t)) return __is_same(D, int);
  if (__is_same(L, int8_t)) return has_product_with_bytes<R, D>();
  if (__is_same(R, int8_t)) return has_product_with_bytes<L, D>();
  return __is_same(D, float) && is_among<L, half, bfloat, float>() && is_among<R, half, bfloat, float>();
}

}  // namespace host

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right;
  constexpr matmul2d_descriptor(int m, int n, int k = metal::dynamic_length_v<int>, bool transpose_left = false,
                                bool transpose_right = false, bool relaxed_precision = false,
                                mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right) {}
  // A dynamic k is 0.
  constexpr operator ulong() const HOST_THREAD {
    return (ulong)m | (ulong)n << 16 | (ulong)(k > 0 ? k : 0) << 32 | (ulong)transpose_left << 62 |
           (ulong)transpose_right << 63;
  }
};

// The assertions of run are those of MPPTensorOpsMatMul2dImpl.h: of the macOS 26.2 SDK, and the multiples of 16 of a
// later one, which llama.cpp's pull request 21048 quotes ("At least one of M or N must be a multiple of 16").
template <ulong Descriptor, class Scope> struct matmul2d {
  static constexpr HOST_CONSTANT int M = Descriptor & 65535, N = (Descriptor >> 16) & 65535,
                                     K = (Descriptor >> 32) & 65535;
  static constexpr HOST_CONSTANT bool TL = (Descriptor >> 62) & 1, TR = Descriptor >> 63;
  template <class T, int Role, int Rows, int Columns, bool Transposed, class L, class R, class D> using Share =
      metal::cooperative_tensor<T, Role, Transposed ? Rows : Columns, Transposed ? Columns : Rows,
                                Scope::host_simdgroups, L, R, D>;

  template <class Left, class Right, class D>
  Share<Left, 0, M, K ? K : 16, TL, Left, Right, D> get_left_input_cooperative_tensor() const HOST_THREAD {
    check_elements<Left, Right, D>();
    return {};
  }
  template <class Left, class Right, class D>
  Share<Right, 1, K ? K : 16, N, TR, Left, Right, D> get_right_input_cooperative_tensor() const HOST_THREAD {
    check_elements<Left, Right, D>();
    return {};
  }
  template <class Left, class Right, class T>
  Share<T, 2, M, N, false, typename host::Operand<Left>::element, typename host::Operand<Right>::element, T>
  get_destination_cooperative_tensor() const HOST_THREAD {
    static_assert(host::Operand<Left>::known && host::Operand<Right>::known,
                  "types of tensors are expected here: write metal::remove_addrspace_t<decltype(x)> for that of x");
    static_assert(host::is_plain<T>, "the element type has an address space, a const or a reference");
    return {};
  }

  template <class Left, class Right, class Destination>
  void run(HOST_THREAD Left& left, HOST_THREAD Right& right, HOST_THREAD Destination& destination) const HOST_THREAD {
    typedef host::Operand<Left> A;
    typedef host::Operand<Right> B;
    typedef host::Operand<Destination> C;
    typedef typename A::element L;
    typedef typename B::element R;
    typedef typename C::element D;
    static_assert(A::known && B::known && C::known, "tensors are expected, and not const ones");
    static_assert(A::reachable && B::reachable && C::reachable, "operands lie in device or threadgroup memory");
    static_assert(A::indexed && B::indexed && C::indexed, "the index type of the extents must be int");
    static_assert(!__is_const(L) && !__is_const(R) && !__is_const(D),
                  "an operand's elements are const, which Metal finds no product for: cast the const away");
    static_assert(host::has_product<metal::remove_const_t<L>, metal::remove_const_t<R>, metal::remove_const_t<D>>(),
                  "matmul2d has no product of these element types");
    static_assert(A::template fits<0, L, R, D>() && B::template fits<1, L, R, D>() && C::template fits<2, L, R, D>(),
                  "a cooperative tensor was made for another operand or for other element types");
    static_assert(M % 16 == 0 || N % 16 == 0, "at least one of m and n must be a multiple of 16");
    static_assert(K % 16 == 0, "k must be dynamic or a multiple of 16");
    static_assert(!(A::cooperative || B::cooperative) || Scope::host_simdgroups == 1,
                  "cooperative inputs need a single simdgroup");
    static_assert(!(A::cooperative || B::cooperative) || K > 0, "cooperative inputs need a k in the descriptor");
    static_assert(!(A::cooperative && B::cooperative) || (is_16_or_32(M) && is_16_or_32(N) && is_16_or_32(K)),
                  "m, n and k must be 16 or 32 if both inputs are cooperative");
    static_assert(!(A::cooperative && B::cooperative) || M == 32 || N == 32 || K == 32,
                  "one of m, n and k must be 32 if both inputs are cooperative");
  }

 private:
  static constexpr bool is_16_or_32(int extent) { return extent == 16 || extent == 32; }
  template <class Left, class Right, class D> static void check_elements() {
    static_assert(host::is_plain<Left> && host::is_plain<Right> && host::is_plain<D>,
                  "types of elements are expected here: write metal::remove_addrspace_t<decltype(x)> for that of x");
  }
};

}  // namespace tensor_ops
}  // namespace mpp
