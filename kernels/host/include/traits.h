// <metal_type_traits> and <metal_limits>.
#pragma once

namespace metal {

template <class T, T v> struct integral_constant {
  static constexpr HOST_CONSTANT T value = v;
  typedef T value_type;
  constexpr operator T() const HOST_THREAD { return v; }
};
template <bool b> using bool_constant = integral_constant<bool, b>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool b, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;

template <bool b, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool b, class A, class B> using conditional_t = typename conditional<b, A, B>::type;

template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> using remove_const_t = typename remove_const<T>::type;

template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;

template <class T> struct remove_cv { typedef remove_const_t<remove_volatile_t<T>> type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;

template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;

template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;

template <class T> struct remove_addrspace { typedef T type; };
template <class T> struct remove_addrspace<HOST_DEVICE T> { typedef T type; };
template <class T> struct remove_addrspace<HOST_CONSTANT T> { typedef T type; };
template <class T> struct remove_addrspace<HOST_THREADGROUP T> { typedef T type; };
#ifdef HOST_STRICT
template <class T> struct remove_addrspace<HOST_THREAD T> { typedef T type; };
#endif
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;

template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};
template <class T> struct is_integral : bool_constant<__is_integral(T)> {};
template <class T> struct is_unsigned : bool_constant<__is_unsigned(T)> {};
template <class T> struct is_signed : bool_constant<__is_signed(T)> {};
template <class T> struct is_floating_point : bool_constant<__is_floating_point(T) || __is_same(T, bfloat)> {};
template <class T> struct is_pointer : bool_constant<__is_pointer(T)> {};
template <class T> struct is_const : bool_constant<__is_const(T)> {};
template <class A, class B> constexpr HOST_CONSTANT bool is_same_v = is_same<A, B>::value;
template <class T> constexpr HOST_CONSTANT bool is_integral_v = is_integral<T>::value;
template <class T> constexpr HOST_CONSTANT bool is_unsigned_v = is_unsigned<T>::value;
template <class T> constexpr HOST_CONSTANT bool is_signed_v = is_signed<T>::value;
template <class T> constexpr HOST_CONSTANT bool is_floating_point_v = is_floating_point<T>::value;
template <class T> constexpr HOST_CONSTANT bool is_pointer_v = is_pointer<T>::value;
template <class T> constexpr HOST_CONSTANT bool is_const_v = is_const<T>::value;

template <class T> T declval();

template <class T> struct numeric_limits;

#define HOST_INTEGER_LIMITS(T, least, most)          \
  template <> struct numeric_limits<T> {             \
    static constexpr T min() { return least; }       \
    static constexpr T lowest() { return least; }    \
    static constexpr T max() { return most; }        \
  };
HOST_INTEGER_LIMITS(int8_t, -128, 127)
HOST_INTEGER_LIMITS(uchar, 0, 255)
HOST_INTEGER_LIMITS(short, -32768, 32767)
HOST_INTEGER_LIMITS(ushort, 0, 65535)
HOST_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647)
HOST_INTEGER_LIMITS(uint, 0, 4294967295u)
HOST_INTEGER_LIMITS(long, -9223372036854775807l - 1, 9223372036854775807l)
HOST_INTEGER_LIMITS(ulong, 0, 18446744073709551615ul)
#undef HOST_INTEGER_LIMITS

#define HOST_FLOAT_LIMITS(T, least, most, step)                             \
  template <> struct numeric_limits<T> {                                    \
    static constexpr T min() { return (T)least; }                           \
    static constexpr T lowest() { return (T)(-most); }                      \
    static constexpr T max() { return (T)most; }                            \
    static constexpr T epsilon() { return (T)step; }                        \
    static constexpr T infinity() { return (T)__builtin_inff(); }           \
    static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }        \
  };
HOST_FLOAT_LIMITS(float, 1.17549435e-38f, 3.402823466e38f, 1.1920929e-7f)
HOST_FLOAT_LIMITS(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f)
HOST_FLOAT_LIMITS(bfloat, 1.17549435e-38f, 3.38953139e38f, 7.8125e-3f)
#undef HOST_FLOAT_LIMITS

}  // namespace metal
