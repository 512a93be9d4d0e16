// Vector types: clang's ext_vector_type has Metal's swizzles, operators and []; construction needs help.
#pragma once

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}

#define HOST_VECTORS(T)                                   \
  typedef T T##2 __attribute__((ext_vector_type(2)));     \
  typedef T T##3 __attribute__((ext_vector_type(3)));     \
  typedef T T##4 __attribute__((ext_vector_type(4)));
HOST_VECTORS(char)
HOST_VECTORS(uchar)
HOST_VECTORS(short)
HOST_VECTORS(ushort)
HOST_VECTORS(int)
HOST_VECTORS(uint)
HOST_VECTORS(long)
HOST_VECTORS(ulong)
HOST_VECTORS(half)
HOST_VECTORS(bfloat)
HOST_VECTORS(float)
#ifndef HOST_STRICT
HOST_VECTORS(bool)
#endif
#undef HOST_VECTORS

namespace host {

template <class T> struct Vector {
  typedef T element;
  static constexpr HOST_CONSTANT int width = 1;
  static constexpr HOST_CONSTANT bool is_vector = false;
};
template <class T, int N> struct Vector<T __attribute__((ext_vector_type(N)))> {
  typedef T element;
  static constexpr HOST_CONSTANT int width = N;
  static constexpr HOST_CONSTANT bool is_vector = true;
};

// float4(x): a splat of a scalar, or the converted elements of a vector of the same width.
template <class V, class A> HOST_INLINE V make(A a) {
  typedef typename Vector<V>::element element;
  V made;
  if constexpr (Vector<A>::is_vector) {
    static_assert((int)Vector<A>::width == (int)Vector<V>::width, "a vector converts only to one of the same width");
    for (int i = 0; i < Vector<V>::width; i++) made[i] = (element)a[i];
  } else {
    for (int i = 0; i < Vector<V>::width; i++) made[i] = (element)a;
  }
  return made;
}

template <class V, class A> HOST_INLINE void append(HOST_THREAD V& made, HOST_THREAD int& filled, A a) {
  typedef typename Vector<V>::element element;
  if constexpr (Vector<A>::is_vector) {
    for (int i = 0; i < Vector<A>::width; i++) made[filled++] = (element)a[i];
  } else {
    made[filled++] = (element)a;
  }
}

// float4(a, b.xy, c): scalars and vectors in a row.
template <class V, class A, class B, class... C> HOST_INLINE V make(A a, B b, C... c) {
  static_assert((int)Vector<A>::width + (int)Vector<B>::width + (0 + ... + (int)Vector<C>::width) ==
                (int)Vector<V>::width, "wrong number of vector elements");
  V made;
  int filled = 0;
  append<V>(made, filled, a);
  append<V>(made, filled, b);
  (append<V>(made, filled, c), ...);
  return made;
}

}  // namespace host

// A function-like macro is expanded only in front of a parenthesis, so float4 stays a type everywhere else.
#define char2(...) host::make<char2>(__VA_ARGS__)
#define char3(...) host::make<char3>(__VA_ARGS__)
#define char4(...) host::make<char4>(__VA_ARGS__)
#define uchar2(...) host::make<uchar2>(__VA_ARGS__)
#define uchar3(...) host::make<uchar3>(__VA_ARGS__)
#define uchar4(...) host::make<uchar4>(__VA_ARGS__)
#define short2(...) host::make<short2>(__VA_ARGS__)
#define short3(...) host::make<short3>(__VA_ARGS__)
#define short4(...) host::make<short4>(__VA_ARGS__)
#define ushort2(...) host::make<ushort2>(__VA_ARGS__)
#define ushort3(...) host::make<ushort3>(__VA_ARGS__)
#define ushort4(...) host::make<ushort4>(__VA_ARGS__)
#define int2(...) host::make<int2>(__VA_ARGS__)
#define int3(...) host::make<int3>(__VA_ARGS__)
#define int4(...) host::make<int4>(__VA_ARGS__)
#define uint2(...) host::make<uint2>(__VA_ARGS__)
#define uint3(...) host::make<uint3>(__VA_ARGS__)
#define uint4(...) host::make<uint4>(__VA_ARGS__)
#define long2(...) host::make<long2>(__VA_ARGS__)
#define long3(...) host::make<long3>(__VA_ARGS__)
#define long4(...) host::make<long4>(__VA_ARGS__)
#define ulong2(...) host::make<ulong2>(__VA_ARGS__)
#define ulong3(...) host::make<ulong3>(__VA_ARGS__)
#define ulong4(...) host::make<ulong4>(__VA_ARGS__)
#define half2(...) host::make<half2>(__VA_ARGS__)
#define half3(...) host::make<half3>(__VA_ARGS__)
#define half4(...) host::make<half4>(__VA_ARGS__)
#define bfloat2(...) host::make<bfloat2>(__VA_ARGS__)
#define bfloat3(...) host::make<bfloat3>(__VA_ARGS__)
#define bfloat4(...) host::make<bfloat4>(__VA_ARGS__)
#define float2(...) host::make<float2>(__VA_ARGS__)
#define float3(...) host::make<float3>(__VA_ARGS__)
#define float4(...) host::make<float4>(__VA_ARGS__)

template <class To, class From> HOST_INLINE To as_type(From bits) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  return __builtin_bit_cast(To, bits);
}
