#include "layouts.h"

#include <stdlib.h>

#include "findings.h"
#include "interface.h"

namespace host {

static uint32_t layout_seed;
static unsigned char fragment[64];

// SplitMix64: any seed gives a usable sequence.
struct Random {
  uint64_t state;

  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  template <class T> void shuffle(T* items, int count) {
    for (int i = count - 1; i > 0; i--) {
      int j = (int)(next() % (uint64_t)(i + 1));
      T item = items[i];
      items[i] = items[j];
      items[j] = item;
    }
  }
};

// Layout 0 of 8x8 matrices is what public kernels rely on for Apple GPUs: lane l holds two neighbours of a row.
static void choose_fragment() {
  for (int lane = 0; lane < HOST_LANES; lane++) {
    int quad = lane / 4, row = (quad & 4) + lane / 2 % 4, column = (quad & 2) * 2 + lane % 2 * 2;
    for (int slot = 0; slot < 2; slot++) fragment[lane * 2 + slot] = (unsigned char)(row * 8 + column + slot);
  }
  if (layout_seed) Random{layout_seed}.shuffle(fragment, 64);
}

struct CooperativeLayout {
  int role, inner, outer, lanes, capacity;
  int* elements;
};
enum { kMaxLayouts = 64 };
static CooperativeLayout layouts[kMaxLayouts];
static int layout_count;

void choose_layouts(uint32_t seed) {
  layout_seed = seed;
  choose_fragment();
  for (int i = 0; i < layout_count; i++) free(layouts[i].elements);
  layout_count = 0;
}

// Layout 0 of a tensor of 16x16 blocks is that of nax.h: eight elements of each block a lane, four columns in two rows
// that lie eight apart. Other shapes are dealt row by row.
static void deal_in_order(CooperativeLayout& layout) {
  bool blocks = layout.lanes == HOST_LANES && layout.inner % 16 == 0 && layout.outer % 16 == 0;
  for (int slot = 0; slot < layout.lanes * layout.capacity; slot++) {
    int lane = slot / layout.capacity, i = slot % layout.capacity;
    int element = i * layout.lanes + lane;
    if (blocks) {
      int quad = lane / 4, block = i / 8, in_block = i % 8, blocks_in_a_row = layout.inner / 16;
      int row = ((quad & 4) | (lane / 2 & 3)) + in_block / 4 * 8 + block / blocks_in_a_row * 16;
      int column = ((quad & 2) | (lane & 1)) * 4 + in_block % 4 + block % blocks_in_a_row * 16;
      element = row * layout.inner + column;
    }
    layout.elements[slot] = element < layout.inner * layout.outer ? element : -1;
  }
}

static void deal_at_random(CooperativeLayout& layout) {
  int slots = layout.lanes * layout.capacity;
  for (int slot = 0; slot < slots; slot++) {
    layout.elements[slot] = slot < layout.inner * layout.outer ? slot : -1;
  }
  Random random = {((uint64_t)layout_seed << 32) ^
                   (uint64_t)(layout.role * 1000003 + layout.inner * 1009 + layout.outer)};
  random.shuffle(layout.elements, slots);
}

}  // namespace host

using namespace host;

extern "C" {

const unsigned char* host_fragment_layout() { return fragment; }

const int* host_cooperative_layout(int role, int inner, int outer, int lanes, int* capacity) {
  for (int i = 0; i < layout_count; i++) {
    CooperativeLayout& known = layouts[i];
    if (known.role == role && known.inner == inner && known.outer == outer && known.lanes == lanes) {
      *capacity = known.capacity;
      return known.elements;
    }
  }
  if (layout_count == kMaxLayouts) {
    find_and_end("too_many_layouts", 0, "more than %d shapes of cooperative tensors in one kernel", kMaxLayouts);
  }
  CooperativeLayout& layout = layouts[layout_count++];
  int spare = layout_seed ? (int)((layout_seed + role) % (HOST_SPARE_SLOTS + 1)) : 0;
  layout = {role, inner, outer, lanes, (inner * outer + lanes - 1) / lanes + spare, nullptr};
  layout.elements = (int*)malloc(sizeof(int) * lanes * layout.capacity);
  if (layout_seed) {
    deal_at_random(layout);
  } else {
    deal_in_order(layout);
  }
  *capacity = layout.capacity;
  return layout.elements;
}
}
