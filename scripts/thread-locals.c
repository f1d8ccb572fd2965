// Planted for scripts/thread-locals, which compiles this file at each run: it must find the functions whose names begin
// with found_, and no other. Each keeps the address of a thread-local, or must not be thought to.
#include <errno.h>

extern void planted_wait(void);
extern void planted_wait_with(int *words);
extern int planted_number(void);
extern void (*planted_callback)(void);
extern long planted_offset;
__thread int planted_words[4];

// The same once more as a program: there the linker has replaced the calls of __tls_get_addr by %fs:0.
#ifdef PLANTED_PROGRAM
void (*planted_callback)(void);
long planted_offset;
__attribute__((noinline)) void planted_wait(void) {
  planted_callback();
  __asm__ volatile("");
}
__attribute__((noinline)) void planted_wait_with(int *words) { *(int *volatile *)&words = words; }
__attribute__((noinline)) int planted_number(void) { return (int)*(volatile long *)&planted_offset; }
int main(void) { return 0; }
#define FOREIGN(name) \
  __attribute__((noinline)) void name(void) { \
    planted_callback(); \
    __asm__ volatile(""); \
  }
#else
#define FOREIGN(name) extern void name(void);
#endif

// A loop: the address is computed before it.
int found_loop(int rounds) {
  int sum = 0;
  for (int round = 0; round < rounds; round++) {
    sum += planted_words[1]++;
    planted_wait();
  }
  return sum;
}

// Straight on.
void found_after_wait(void) {
  planted_words[0] = 1;
  planted_wait();
  planted_words[0] = 2;
}

// A call through a pointer may go anywhere.
void found_after_callback(void) {
  planted_words[0] = 1;
  planted_callback();
  planted_words[0] = 2;
}

// Functions of other files whose names begin like those of harmless ones; and two of Swift's runtime, which run a getter
// and a deinit.
#define FOUND_AFTER(name) \
  FOREIGN(name) \
  void found_after_##name(void) { \
    planted_words[0] = 1; \
    name(); \
    planted_words[0] = 2; \
  }
FOUND_AFTER(process_request)
FOUND_AFTER(strand)
FOUND_AFTER(strwait)
FOUND_AFTER(swift_getAtKeyPath)
FOUND_AFTER(swift_task_localValuePop)

// A function of this file that calls one that waits.
static __attribute__((noinline)) void waits_below(void) {
  planted_wait();
  __asm__ volatile("");
}
static __attribute__((noinline)) void waits_two_below(void) {
  waits_below();
  __asm__ volatile("");
}
void found_after_deep_wait(void) {
  planted_words[0] = 1;
  waits_two_below();
  planted_words[0] = 2;
}

// errno is a thread-local behind a function that the compiler believes to be constant.
int found_errno(void) {
  errno = 0;
  planted_wait();
  return errno;
}

// More addresses than registers: some lie in the frame.
int found_in_frame(int a, int b, int c, int d, int e, int f) {
  planted_words[0] = a;
  int g = planted_number(), h = planted_number(), i = planted_number(), j = planted_number();
  int k = planted_number(), l = planted_number(), m = planted_number(), n = planted_number();
  planted_wait();
  planted_words[0] = g;
  return a * b + c * d + e * f + g * h + i * j + k * l + m * n;
}

// On one path only.
int found_on_one_path(int waits) {
  planted_words[0] = waits;
  if (waits > 7) planted_wait();
  return planted_words[0];
}

// Between two cases of a switch, which becomes a jump through a table.
int found_between_cases(const int *codes) {
  int sum = 0;
  for (;;) {
    switch (*codes++) {
      case 0: return sum;
      case 1: sum += planted_words[1]; break;
      case 2: planted_wait(); break;
      case 3: sum ^= planted_number(); break;
      case 4: sum <<= 3; break;
      case 5: sum = ~sum; break;
      case 6: sum -= planted_words[2]; break;
      default: sum++;
    }
  }
}

// Harmless: once for each side of the wait, as cco_thread_pointer does.
static inline __attribute__((always_inline)) char *thread_pointer(void) {
  char *pointer;
  __asm__ volatile("movq %%fs:0, %0" : "=r"(pointer));
  return pointer;
}
void fresh_each_time(void) {
  *(int *)(thread_pointer() + planted_offset) = 1;
  planted_wait();
  *(int *)(thread_pointer() + planted_offset) = 2;
}

// Harmless: the function in between calls nothing.
static __attribute__((noinline)) int computes(int value) {
  __asm__ volatile("");
  return value * 7;
}
int no_wait_between(int value) {
  planted_words[0] = value;
  value = computes(value);
  return planted_words[0] + value;
}

// Harmless: a canary, which the compiler loads through %fs:0x28 before the wait and after it.
int with_canary(void) {
  int words[16];
  planted_wait_with(words);
  planted_wait();
  return words[3];
}
