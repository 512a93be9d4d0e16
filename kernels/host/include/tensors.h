// <metal_tensor>, <metal_cooperative_tensor> and matmul2d of MetalPerformancePrimitives: the documented part.
//
// How a cooperative tensor's elements are spread over the lanes is implementation defined, some slots may hold none,
// and all threads of the scope must enter run. Layout 0 is the one that MLX's nax.h relies on; every other seed is a
// permutation with spare slots, and a different one for left, right and destination.
#pragma once

namespace metal {

constexpr size_t dynamic_extent = ~size_t(0);
template <class T> constexpr T dynamic_length_v = (T)dynamic_extent;

template <class T, size_t N> struct array {
  T host_items[N];
  constexpr T& operator[](size_t i) { return host_items[i]; }
  constexpr const T& operator[](size_t i) const { return host_items[i]; }
};

template <class Index, size_t... Extents> struct extents {
  typedef Index index_type;
  Index host_sizes[sizeof...(Extents)];

  constexpr extents() : host_sizes{(Extents == dynamic_extent ? Index(0) : Index(Extents))...} {}
  template <class... Sizes> constexpr extents(Sizes... sizes) : host_sizes{Index(sizes)...} {
    static_assert(sizeof...(Sizes) == sizeof...(Extents), "one size for each extent");
  }
  static constexpr size_t rank() { return sizeof...(Extents); }
  constexpr Index extent(size_t i) const { return host_sizes[i]; }
};

}  // namespace metal

namespace host {

template <class Index, int rank> struct DynamicExtents;
template <class Index> struct DynamicExtents<Index, 1> {
  typedef metal::extents<Index, metal::dynamic_extent> type;
};
template <class Index> struct DynamicExtents<Index, 2> {
  typedef metal::extents<Index, metal::dynamic_extent, metal::dynamic_extent> type;
};

}  // namespace host

namespace metal {

template <class Index, int rank> using dextents = typename host::DynamicExtents<Index, rank>::type;

struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};

// A matrix in memory, extents (inner, outer) = (columns, rows). Elements outside the extents read as zero and are not
// stored.
template <class Element, class Extents, class Tag = tensor_handle> struct tensor {
  static_assert(Extents::rank() == 2, "the host knows tensors of rank 2");
  typedef Element element_type;
  typedef remove_cv_t<remove_addrspace_t<Element>> value_type;

  Element* host_data = nullptr;
  int host_extents[2] = {0, 0}, host_strides[2] = {0, 0}, host_origin[2] = {0, 0};

  tensor() = default;
  template <class E> tensor(Element* data, E sizes)
      : host_data(data),
        host_extents{(int)sizes.extent(0), (int)sizes.extent(1)},
        host_strides{1, (int)sizes.extent(0)} {}
  template <class E, class S> tensor(Element* data, E sizes, array<S, 2> strides)
      : host_data(data),
        host_extents{(int)sizes.extent(0), (int)sizes.extent(1)},
        host_strides{(int)strides[0], (int)strides[1]} {}

  tensor slice(int inner, int outer) const {
    tensor part = *this;
    part.host_origin[0] += inner;
    part.host_origin[1] += outer;
    return part;
  }
  template <size_t Inner, size_t Outer> tensor slice(int inner, int outer) const {
    tensor part = slice(inner, outer);
    if (Inner != dynamic_extent) part.host_extents[0] = min(part.host_extents[0], part.host_origin[0] + (int)Inner);
    if (Outer != dynamic_extent) part.host_extents[1] = min(part.host_extents[1], part.host_origin[1] + (int)Outer);
    return part;
  }
  template <size_t Inner, size_t Outer> tensor static_slice(int inner, int outer) const {
    return slice<Inner, Outer>(inner, outer);
  }
  Extents extents() const {
    Extents sizes;
    for (int i = 0; i < 2; i++) sizes.host_sizes[i] = host_extents[i] - host_origin[i];
    return sizes;
  }
  int get_extent(int i) const { return host_extents[i] - host_origin[i]; }

  bool host_contains(int inner, int outer) const {
    inner += host_origin[0];
    outer += host_origin[1];
    return inner >= 0 && outer >= 0 && inner < host_extents[0] && outer < host_extents[1];
  }
  Element& host_at(int inner, int outer) const {
    return host_data[(long)(inner + host_origin[0]) * host_strides[0] +
                     (long)(outer + host_origin[1]) * host_strides[1]];
  }
  float host_get(int inner, int outer) const {
    return host_contains(inner, outer) ? (float)host_at(inner, outer) : 0.0f;
  }
  void host_put(int inner, int outer, float value) const {
    if (host_contains(inner, outer)) host_at(inner, outer) = (value_type)value;
  }
};
template <class Element, class Extents, class S> tensor(Element*, Extents, array<S, 2>)
    -> tensor<Element, Extents, tensor_inline>;
template <class Element, class Extents> tensor(Element*, Extents) -> tensor<Element, Extents, tensor_inline>;

template <size_t N> struct execution_simdgroups {
  static constexpr int host_simdgroups = N;
};
typedef execution_simdgroups<1> execution_simdgroup;

// One lane's share of a matrix of Inner x Outer elements.
template <class T, int Role, int Inner, int Outer, int Simdgroups> struct cooperative_tensor {
  typedef T element_type;
  static constexpr int host_role = Role, host_inner = Inner, host_outer = Outer, host_lanes = Simdgroups * HOST_LANES;
  static constexpr int host_room = (Inner * Outer + host_lanes - 1) / host_lanes + HOST_SPARE_SLOTS;

  int host_capacity;
  const int* host_layout;
  T host_elements[host_room];

  cooperative_tensor() : host_layout(host_cooperative_layout(Role, Inner, Outer, host_lanes, &host_capacity)) {
    __builtin_memset(host_elements, 0xff, sizeof host_elements);
  }
  // The element that a slot of a lane holds, or -1.
  int host_element(int lane, int slot) const {
    return slot >= 0 && slot < host_capacity ? host_layout[lane * host_capacity + slot] : -1;
  }
  int host_mine(int slot) const {
    return host_element((int)(host_simdgroup() * HOST_LANES + host_lane()) % host_lanes, slot);
  }

  ushort get_capacity() const { return (ushort)host_capacity; }
  bool is_valid_element(int slot) const { return host_mine(slot) >= 0; }
  bool get_mask(int slot) const { return is_valid_element(slot); }
  array<int, 2> get_multidimensional_index(int slot) const {
    int element = host_mine(slot);
    return element < 0 ? array<int, 2>{{0, 0}} : array<int, 2>{{element % Inner, element / Inner}};
  }
  T& operator[](int slot) {
    static T nowhere;
    if (slot >= 0 && slot < host_capacity) return host_elements[slot];
    host_beyond_capacity(slot, host_capacity);
    return nowhere;
  }
  const T& operator[](int slot) const { return const_cast<cooperative_tensor&>(*this)[slot]; }

  template <class Tensor> void load(const Tensor& source, HOST_SITE) {
    host_at(site);
    for (int slot = 0; slot < host_capacity; slot++) {
      int element = host_mine(slot);
      if (element >= 0) host_elements[slot] = (T)source.host_get(element % Inner, element / Inner);
    }
  }
  template <class Tensor> void store(const Tensor& destination, HOST_SITE) const {
    host_at(site);
    for (int slot = 0; slot < host_capacity; slot++) {
      int element = host_mine(slot);
      if (element >= 0) destination.host_put(element % Inner, element / Inner, (float)host_elements[slot]);
    }
  }
};

}  // namespace metal

namespace host {

template <class T> struct IsCooperative {
  static constexpr bool value = false;
};
template <class T, int Role, int Inner, int Outer, int Simdgroups>
struct IsCooperative<metal::cooperative_tensor<T, Role, Inner, Outer, Simdgroups>> {
  static constexpr bool value = true;
};

// A dense matrix of floats, gathered from an operand of all lanes and scattered back.
struct Matrix {
  int inner, outer;
  float* values;

  Matrix(int inner, int outer)
      : inner(inner), outer(outer), values((float*)__builtin_calloc((size_t)inner * outer, sizeof(float))) {}
  ~Matrix() { __builtin_free(values); }
  float& at(int column, int row) const { return values[row * inner + column]; }

  template <class Operand> void gather(Operand* const* lanes) const {
    if constexpr (IsCooperative<Operand>::value) {
      for (int lane = 0; lane < Operand::host_lanes; lane++) {
        for (int slot = 0; slot < lanes[lane]->host_capacity; slot++) {
          int element = lanes[lane]->host_element(lane, slot);
          if (element >= 0) values[element] = (float)lanes[lane]->host_elements[slot];
        }
      }
    } else {
      for (int row = 0; row < outer; row++) {
        for (int column = 0; column < inner; column++) at(column, row) = lanes[0]->host_get(column, row);
      }
    }
  }
  template <class Operand> void scatter(Operand* const* lanes) const {
    if constexpr (IsCooperative<Operand>::value) {
      for (int lane = 0; lane < Operand::host_lanes; lane++) {
        for (int slot = 0; slot < lanes[lane]->host_capacity; slot++) {
          int element = lanes[lane]->host_element(lane, slot);
          if (element >= 0) lanes[lane]->host_elements[slot] = (typename Operand::element_type)values[element];
        }
      }
    } else {
      for (int row = 0; row < outer; row++) {
        for (int column = 0; column < inner; column++) lanes[0]->host_put(column, row, at(column, row));
      }
    }
  }
};

}  // namespace host

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  constexpr matmul2d_descriptor(int m, int n, int k = metal::dynamic_length_v<int>, bool transpose_left = false,
                                bool transpose_right = false, bool relaxed_precision = false,
                                mode matmul_mode = mode::multiply)
      : m(m),
        n(n),
        k(k),
        transpose_left(transpose_left),
        transpose_right(transpose_right),
        relaxed_precision(relaxed_precision),
        matmul_mode(matmul_mode) {}
};

template <matmul2d_descriptor Descriptor, class Scope> struct matmul2d {
  static constexpr int host_simdgroups = Scope::host_simdgroups, host_lanes = host_simdgroups * HOST_LANES;
  static constexpr int M = Descriptor.m, N = Descriptor.n, K = Descriptor.k;
  static constexpr bool TL = Descriptor.transpose_left, TR = Descriptor.transpose_right;
  template <class T, int Role, int Rows, int Columns, bool Transposed> using Share =
      metal::cooperative_tensor<T, Role, Transposed ? Rows : Columns, Transposed ? Columns : Rows, host_simdgroups>;

  template <class Left, class Right, class Destination>
  Share<Left, 0, M, K, TL> get_left_input_cooperative_tensor() const {
    static_assert(K > 0, "a cooperative input needs a k in the descriptor");
    return {};
  }
  template <class Left, class Right, class Destination>
  Share<Right, 1, K, N, TR> get_right_input_cooperative_tensor() const {
    static_assert(K > 0, "a cooperative input needs a k in the descriptor");
    return {};
  }
  template <class Left, class Right, class T> Share<T, 2, M, N, false> get_destination_cooperative_tensor() const {
    return {};
  }

  // Accumulates in float in the order of k; relaxed_precision changes nothing here.
  template <class Left, class Right, class Destination>
  void run(Left& left, Right& right, Destination& destination, HOST_SITE) const {
    Operands<Left, Right, Destination> mine = {&left, &right, &destination};
    host_scope_collective(&mine, sizeof mine, site, Operands<Left, Right, Destination>::combine, host_simdgroups);
  }

 private:
  template <class Left, class Right, class Destination> struct Operands {
    Left* left;
    Right* right;
    Destination* destination;

    // With a k in its descriptor, matmul2d takes the tile for whole in k (llama.cpp's pull request 27450 on it).
    template <class Operand> static void check_depth(Operand* operand, int axis) {
      if constexpr (!host::IsCooperative<Operand>::value) {
        if (operand->get_extent(axis) < K) host_short_operand(operand->get_extent(axis), K);
      }
    }

    static void combine(const char* contributions, uint, char*) {
      Left* lefts[host_lanes];
      Right* rights[host_lanes];
      Destination* destinations[host_lanes];
      for (int lane = 0; lane < host_lanes; lane++) {
        Operands operands;
        __builtin_memcpy(&operands, contributions + HOST_SLOT_BYTES * lane, sizeof operands);
        lefts[lane] = operands.left;
        rights[lane] = operands.right;
        destinations[lane] = operands.destination;
      }
      int depth = K;
      if constexpr (K <= 0) depth = lefts[0]->get_extent(TL ? 1 : 0);
      if constexpr (K > 0) {
        check_depth(lefts[0], TL ? 1 : 0);
        check_depth(rights[0], TR ? 0 : 1);
      }

      host::Matrix a(TL ? M : depth, TL ? depth : M), b(TR ? depth : N, TR ? N : depth), c(N, M);
      a.gather(lefts);
      b.gather(rights);
      if (Descriptor.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate) c.gather(destinations);
      for (int row = 0; row < M; row++) {
        for (int k = 0; k < depth; k++) {
          float factor = TL ? a.at(row, k) : a.at(k, row);
          for (int column = 0; column < N; column++)
            c.at(column, row) += factor * (TR ? b.at(k, column) : b.at(column, k));
        }
      }
      c.scatter(destinations);
    }
  };
};

}  // namespace tensor_ops
}  // namespace mpp
