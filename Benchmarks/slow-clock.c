// A clock for programs under callgrind, loaded by LD_PRELOAD: it runs as slowly as they do.
//
// A program executes about fifty times as long there, so a time slice would hold a fiftieth of its operations, and what
// a scheduler does once in a slice would weigh fifty times as much in each of them. With this clock an operation has as
// many instructions as it has at full speed.
//
// Only the program itself sees it, which has the runtime in it. Dispatch and the C library see the real clock. So this
// is not for rows that wait for a time: the runtime would ask the kernel for times that have passed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { SLOWER = 50, CLOCKS = 12 };

static int (*real)(clockid_t, struct timespec *);
static int64_t start[CLOCKS];
static uintptr_t low, high;  // the program's code

static int64_t nanoseconds(const struct timespec *time) { return time->tv_sec * INT64_C(1000000000) + time->tv_nsec; }

// The first object is the program.
static int find_program(struct dl_phdr_info *object, size_t size, void *unused) {
  (void)size, (void)unused;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
    uintptr_t first = object->dlpi_addr + part->p_vaddr;
    if (low == 0 || first < low) low = first;
    if (first + part->p_memsz > high) high = first + part->p_memsz;
  }
  return 1;
}

__attribute__((constructor)) static void prepare(void) {
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  dl_iterate_phdr(find_program, NULL);
  for (clockid_t clock = 0; clock < CLOCKS; clock++) {
    struct timespec now;
    if (real(clock, &now) == 0) start[clock] = nanoseconds(&now);
  }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  uintptr_t caller = (uintptr_t)__builtin_return_address(0);
  if (real == NULL) prepare();
  int status = real(clock, time);
  // Processor time shows how many instructions have run. It is not waited for.
  bool is_slow = clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW;
  if (status != 0 || !is_slow || caller < low || caller >= high) return status;
  int64_t slow = start[clock] + (nanoseconds(time) - start[clock]) / SLOWER;
  *time = (struct timespec){.tv_sec = slow / 1000000000, .tv_nsec = slow % 1000000000};
  return 0;
}
