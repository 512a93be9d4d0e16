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

template <class T, int Inner, int Outer, int Simdgroups> struct cooperative_tensor {
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

template <class T> struct IsOperand {
  static constexpr HOST_CONSTANT bool value = false;
};
template <class Element, class Extents, class Tag> struct IsOperand<metal::tensor<Element, Extents, Tag>> {
  static constexpr HOST_CONSTANT bool value = true;
};
template <class T, int Inner, int Outer, int Simdgroups>
struct IsOperand<metal::cooperative_tensor<T, Inner, Outer, Simdgroups>> {
  static constexpr HOST_CONSTANT bool value = true;
};
// Without an address space, which decltype of a variable carries.
template <class T> constexpr HOST_CONSTANT bool is_operand =
    IsOperand<metal::remove_cv_t<metal::remove_addrspace_t<T>>>::value;

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
  constexpr operator ulong() const HOST_THREAD {
    return (ulong)m | (ulong)n << 16 | (ulong)(k > 0 ? k : 16) << 32 | (ulong)transpose_left << 62 |
           (ulong)transpose_right << 63;
  }
};

template <ulong Descriptor, class Scope> struct matmul2d {
  static constexpr HOST_CONSTANT int M = Descriptor & 65535, N = (Descriptor >> 16) & 65535,
                                     K = (Descriptor >> 32) & 65535;
  static constexpr HOST_CONSTANT bool TL = (Descriptor >> 62) & 1, TR = Descriptor >> 63;
  template <class T, int Rows, int Columns, bool Transposed> using Share =
      metal::cooperative_tensor<T, Transposed ? Rows : Columns, Transposed ? Columns : Rows, Scope::host_simdgroups>;

  template <class Left, class Right, class D>
  Share<Left, M, K, TL> get_left_input_cooperative_tensor() const HOST_THREAD {
    return {};
  }
  template <class Left, class Right, class D>
  Share<Right, K, N, TR> get_right_input_cooperative_tensor() const HOST_THREAD {
    return {};
  }
  template <class Left, class Right, class T>
  Share<T, M, N, false> get_destination_cooperative_tensor() const HOST_THREAD {
    static_assert(host::is_operand<Left> && host::is_operand<Right>, "the types of the operands are expected here");
    return {};
  }
  template <class Left, class Right, class Destination>
  void run(HOST_THREAD Left& left, HOST_THREAD Right& right, HOST_THREAD Destination& destination) const HOST_THREAD {
    static_assert(host::is_operand<Left> && host::is_operand<Right> && host::is_operand<Destination>,
                  "tensors are expected");
  }
};

}  // namespace tensor_ops
}  // namespace mpp
