// Registers that a call preserves must be the same before and after a switch.
#ifndef CORE_WITHOUT_SWIFT_REGISTERS_H
#define CORE_WITHOUT_SWIFT_REGISTERS_H

#include "Harness.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOST_REGISTERS = 19 };

// Registers.S
int hold_registers(const uint64_t *patterns, uint64_t *seen, void (*piece)(void *), void *argument);

// Calls `piece` while the registers hold patterns that depend on `seed`. Returns how many of them are wrong afterwards.
int wrong_registers(uint64_t seed, void (*piece)(void *), void *argument);

#ifdef __cplusplus
}
#endif

#endif
