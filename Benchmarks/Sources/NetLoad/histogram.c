#include "load.h"

// Values below 64 have a bucket each; above, each power of two has 64.
static unsigned bucket(uint64_t value) {
  if (value < 64) return (unsigned)value;
  unsigned shift = 63 - (unsigned)__builtin_clzll(value) - 6;
  return (shift + 1) * 64 + (unsigned)((value >> shift) & 63);
}

void histogram_add(struct histogram *histogram, uint64_t value) {
  histogram->counts[bucket(value)]++;
  histogram->total++;
}

uint64_t histogram_quantile(const struct histogram *histogram, double part) {
  uint64_t rest = (uint64_t)((double)histogram->total * part);
  for (unsigned i = 0; i < sizeof histogram->counts / sizeof *histogram->counts; i++) {
    if (histogram->counts[i] > rest) return i < 64 ? i : (uint64_t)(64 + i % 64) << (i / 64 - 1);
    rest -= histogram->counts[i];
  }
  return 0;
}
