// Instructions of PTX that kernels have in asm statements: `asm("a.b %0, [%1];" : "=r"(x) : "l"(p))` becomes
// `ptx::a_b(x, p)`. Layouts of fragments are those of the PTX manual, sections "Matrix Fragments" and "ldmatrix".
#pragma once

namespace ptx {

using cuda_host::bits_as;

inline void ex2_approx_ftz_f32(float& to, float exponent) { to = __builtin_exp2f(exponent); }

// table: bit 4 a + 2 b + c is the result for bits a, b, c.
inline void lop3_b32(uint32_t& to, uint32_t a, uint32_t b, uint32_t c, int table) {
  to = 0;
  for (int i = 0; i < 8; i++) {
    if (table >> i & 1) to |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
}

template <class T> inline uint32_t pair_of(float high, float low) {
  return bits_as<uint16_t>((T)low) | (uint32_t)bits_as<uint16_t>((T)high) << 16;
}
inline void cvt_rn_bf16x2_f32(uint32_t& to, float high, float low) { to = pair_of<__nv_bfloat16>(high, low); }
inline void cvt_rn_f16x2_f32(uint32_t& to, float high, float low) { to = pair_of<__half>(high, low); }

// ---------------------------------------------------------------- mma: d = a b + c, 16 x 8 x 16

struct Operands {
  float c[4];
  uint32_t a[4], b[2];
};

template <class T> inline float element(uint32_t pair, int i) {
  return (float)bits_as<T>((uint16_t)(pair >> (16 * i)));
}

template <class T> void multiply(const char* contributions, unsigned, char* results) {
  Operands of[HOST_LANES];
  for (int lane = 0; lane < HOST_LANES; lane++) {
    __builtin_memcpy(&of[lane], contributions + HOST_SLOT_BYTES * lane, sizeof(Operands));
  }
  float a[16][16], b[16][8];
  for (int lane = 0; lane < HOST_LANES; lane++) {
    for (int i = 0; i < 8; i++) {  // rows lane / 4 (+ 8), columns 2 (lane % 4) + {0, 1} (+ 8)
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = element<T>(of[lane].a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; i++) {
      b[lane % 4 * 2 + i % 2 + i / 2 * 8][lane / 4] = element<T>(of[lane].b[i / 2], i % 2);
    }
  }
  for (int lane = 0; lane < HOST_LANES; lane++) {
    float d[4];
    for (int i = 0; i < 4; i++) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = of[lane].c[i];
      for (int k = 0; k < 16; k++) sum += (double)a[row][k] * (double)b[k][column];
      d[i] = (float)sum;
    }
    __builtin_memcpy(results + HOST_SLOT_BYTES * lane, d, sizeof d);
  }
}

template <class T>
inline void multiply(float& d0, float& d1, float& d2, float& d3, const Operands& operands, HostSite site) {
  float d[4];
  cuda_host::together(d, operands, multiply<T>, site);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
    float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1, float c0, float c1, float c2, float c3, HOST_SITE) {
  multiply<__nv_bfloat16>(d0, d1, d2, d3, {{c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}}, site);
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1, float c0, float c1, float c2, float c3, HOST_SITE) {
  multiply<__half>(d0, d1, d2, d3, {{c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}}, site);
}

// ---------------------------------------------------------------- ldmatrix

struct Row {
  uint16_t of[8];
};

template <bool transposed> void matrices(const char* contributions, unsigned, char* results) {
  for (int lane = 0; lane < HOST_LANES; lane++) {
    uint32_t to[4];
    for (int matrix = 0; matrix < 4; matrix++) {
      uint32_t pair = 0;
      for (int i = 0; i < 2; i++) {
        const int row = transposed ? lane % 4 * 2 + i : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + i;
        Row from;
        __builtin_memcpy(&from, contributions + HOST_SLOT_BYTES * (matrix * 8 + row), sizeof from);
        pair |= (uint32_t)from.of[column] << (16 * i);
      }
      to[matrix] = pair;
    }
    __builtin_memcpy(results + HOST_SLOT_BYTES * lane, to, sizeof to);
  }
}

template <bool transposed>
inline void ldmatrix(uint32_t& t0, uint32_t& t1, uint32_t& t2, uint32_t& t3, uint32_t address, HostSite site) {
  Row row;
  const void* from = cuda_host::shared_begin + address;
  if (cuda_host::metered) from = host_load_threadgroup((void*)from, sizeof row, site, sizeof row);
  __builtin_memcpy(&row, from, sizeof row);
  uint32_t to[4];
  cuda_host::together(to, row, matrices<transposed>, site);
  t0 = to[0], t1 = to[1], t2 = to[2], t3 = to[3];
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(
    uint32_t& t0, uint32_t& t1, uint32_t& t2, uint32_t& t3, uint32_t address, HOST_SITE) {
  ldmatrix<false>(t0, t1, t2, t3, address, site);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    uint32_t& t0, uint32_t& t1, uint32_t& t2, uint32_t& t3, uint32_t address, HOST_SITE) {
  ldmatrix<true>(t0, t1, t2, t3, address, site);
}

// ---------------------------------------------------------------- cp.async

// A copy arrives as late as it may: when its group is awaited. Until then its place holds NaN.
struct Copy {
  uint32_t to;
  int bytes, group;
  char of[16];
};
enum { kCopies = 4096 };
struct Copies {
  int count, group;
  Copy of[kCopies];
};
inline Copies copies[1024];

inline void put(uint32_t to, const char* from, int bytes, HostSite site) {
  void* place = cuda_host::shared_begin + to;
  if (cuda_host::metered) place = host_store_threadgroup(place, bytes, site, bytes);
  __builtin_memcpy(place, from, bytes);
}

// there: bytes that are read, with zeros behind them.
inline void copy(uint32_t to, const void* from, int bytes, int there, HostSite site) {
  static const char nan[16] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  Copies& own = copies[threadIdx.x];
  if (own.count == kCopies) __builtin_trap();
  Copy& copy = own.of[own.count++];
  copy = {to, bytes, own.group, {}};
  if (there) {
    if (cuda_host::metered) from = host_load_device((void*)from, there, site, bytes);
    __builtin_memcpy(copy.of, from, there);
  }
  put(to, nan, bytes, site);
}

inline void cp_async_cg_shared_global(uint32_t to, const void* from, int bytes, int there, HOST_SITE) {
  copy(to, from, bytes, there, site);
}
inline void cp_async_cg_shared_global_L2__128B(uint32_t to, const void* from, int bytes, HOST_SITE) {
  copy(to, from, bytes, bytes, site);
}
inline void cp_async_ca_shared_global_L2__128B(uint32_t to, const void* from, int bytes, HOST_SITE) {
  copy(to, from, bytes, bytes, site);
}
inline void cp_async_commit_group() { copies[threadIdx.x].group++; }
inline void cp_async_wait_group(int pending, HOST_SITE) {
  Copies& own = copies[threadIdx.x];
  int kept = 0;
  for (int i = 0; i < own.count; i++) {
    const Copy copy = own.of[i];
    if (copy.group < own.group - pending) {
      put(copy.to, copy.of, copy.bytes, site);
    } else {
      own.of[kept++] = copy;
    }
  }
  own.count = kept;
}
inline void st_shared_u16(uint32_t to, unsigned short value, HOST_SITE) { put(to, (const char*)&value, 2, site); }
inline void forget_copies() { copies[threadIdx.x].count = copies[threadIdx.x].group = 0; }

}  // namespace ptx
