// Atomics on device and threadgroup memory. One fiber runs at a time, so the plain operation is atomic; the runtime is
// told of each, to meter it and to check its order.
#pragma once

namespace metal {

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

#define HOST_ATOMICS(SPACE, hook)                                                                                     \
  template <class T>                                                                                                  \
  HOST_INLINE T atomic_load_explicit(const volatile SPACE atomic<T>* object, memory_order, HOST_SITE) {               \
    return *(T*)hook((void*)object, sizeof(T), site, HOST_LOAD);                                                      \
  }                                                                                                                   \
  template <class T> HOST_INLINE void atomic_store_explicit(volatile SPACE atomic<T>* object, remove_cv_t<T> desired, \
                                                            memory_order, HOST_SITE) {                                \
    *(T*)hook((void*)object, sizeof(T), site, HOST_STORE) = desired;                                                  \
  }                                                                                                                   \
  template <class T> HOST_INLINE bool atomic_compare_exchange_weak_explicit(                                          \
      volatile SPACE atomic<T>* object, T* expected, remove_cv_t<T> desired, memory_order, memory_order, HOST_SITE) { \
    T* stored = (T*)hook((void*)object, sizeof(T), site, HOST_UPDATE);                                                \
    if (__builtin_memcmp(stored, expected, sizeof(T)) == 0) {                                                         \
      *stored = desired;                                                                                              \
      return true;                                                                                                    \
    }                                                                                                                 \
    *expected = *stored;                                                                                              \
    return false;                                                                                                     \
  }                                                                                                                   \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_exchange_explicit, operand)                                                  \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_add_explicit, old + operand)                                           \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_sub_explicit, old - operand)                                           \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_and_explicit, old & operand)                                            \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_or_explicit, old | operand)                                            \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_xor_explicit, old ^ operand)                                           \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_min_explicit, operand < old ? operand : old)                           \
  HOST_ATOMIC_UPDATE(SPACE, hook, atomic_fetch_max_explicit, old < operand ? operand : old)
#define HOST_ATOMIC_UPDATE(SPACE, hook, name, expression)                                                 \
  template <class T>                                                                                      \
  HOST_INLINE T name(volatile SPACE atomic<T>* object, remove_cv_t<T> operand, memory_order, HOST_SITE) { \
    T* stored = (T*)hook((void*)object, sizeof(T), site, HOST_UPDATE);                                    \
    T old = *stored;                                                                                      \
    *stored = (T)(expression);                                                                            \
    return old;                                                                                           \
  }
HOST_ATOMICS(HOST_DEVICE, host_atomic_device)
HOST_ATOMICS(HOST_THREADGROUP, host_atomic_threadgroup)
#undef HOST_ATOMICS
#undef HOST_ATOMIC_UPDATE

typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

}  // namespace metal
