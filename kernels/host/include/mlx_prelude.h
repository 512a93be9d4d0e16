// Of what MLX puts in front of every custom kernel (mlx/backend/metal/kernels/utils.h) the names that such kernels use.
#pragma once

using namespace metal;

typedef bfloat bfloat16_t;
typedef half float16_t;
// Storage only: it has no arithmetic here.
struct complex64_t {
  float real, imag;
};

// Where element `elem`, counted in row-major order, lies in an array of these strides.
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc(IdxT elem, const constant int* shape, const constant int64_t* strides, int ndim) {
  IdxT location = 0;
  for (int axis = ndim - 1; axis >= 0; axis--) {
    location += elem % shape[axis] * IdxT(strides[axis]);
    elem /= shape[axis];
  }
  return location;
}

template <typename T, typename U> METAL_FUNC T ceildiv(T numerator, U denominator) {
  return (numerator + denominator - 1) / denominator;
}

template <typename T> struct Limits {
  static constexpr constant bool is_float = is_floating_point_v<T>;
  static constexpr constant T finite_max = numeric_limits<T>::max();
  static constexpr constant T finite_min = numeric_limits<T>::lowest();
  static constexpr constant T max = is_float ? T(__builtin_inff()) : finite_max;
  static constexpr constant T min = is_float ? T(-__builtin_inff()) : finite_min;
};
template <> struct Limits<bool> {
  static constexpr constant bool max = true;
  static constexpr constant bool min = false;
};
