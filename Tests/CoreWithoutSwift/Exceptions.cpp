// C++ exceptions in contexts: hazard 15, and what the switch must not do to unwinding. The functions that suspend
// inside of a handler are those of Tests/CExceptions.
#include "CExceptions.h"
#include "Harness.h"
#include "Registers.h"

#include <signal.h>
#include <stdexcept>
#include <string>

namespace {

void suspendContext(void *context) { (void)suspend(static_cast<cco_context *>(context), 0); }
void resumeContext(void *context) { (void)resume(static_cast<cco_context *>(context), 0); }

struct Worker {
  cco_context *context;
  int index;
  int wrong;
};
enum { WORKERS = 20, ROUNDS = 30 };

// Resumes all of them in turn until they have ended. Returns what their bodies and the resumer have counted as wrong.
int runInTurn(cco_entry body, void (*check)(int &wrong)) {
  Worker workers[WORKERS];
  int wrong = 0;
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = Worker{nullptr, i, 0};
    workers[i].context = make(64 << 10, body, &workers[i]);
  }
  for (int alive = WORKERS; alive > 0;) {
    alive = 0;
    for (Worker &worker : workers) {
      if (cco_state_of(worker.context) == CCO_FINISHED) continue;
      (void)resume(worker.context, 0);
      check(wrong);
      alive++;
    }
  }
  for (Worker &worker : workers) {
    wrong += worker.wrong;
    destroy(worker.context);
  }
  return wrong;
}

void expectNone(int &wrong) { wrong += cexceptions_is_handling() || cexceptions_uncaught() != 0; }

// ---- without a suspension in a handler

struct CountsItsEnd {
  int &ends;
  ~CountsItsEnd() { ends++; }
};

__attribute__((noinline)) void throwFrom(int depth, int &ends) {
  CountsItsEnd guard{ends};
  if (depth == 0) throw std::runtime_error("deep");
  throwFrom(depth - 1, ends);
}

cco_saved_context *throwAndCatch(cco_context *context, void *argument) {
  Worker *mine = static_cast<Worker *>(argument);
  for (int round = 0; round < ROUNDS; round++) {
    int ends = 0;
    try {
      (void)suspend(context, 0);
      throwFrom(10, ends);
      mine->wrong++;
    } catch (const std::runtime_error &error) {
      mine->wrong += error.what() != std::string("deep") || ends != 11;
    }
  }
  return nullptr;
}

void thrownAndCaught() { expect(runInTurn(throwAndCatch, expectNone) == 0); }

// ---- hazard 15

cco_saved_context *rethrow(cco_context *context, void *argument) {
  Worker *mine = static_cast<Worker *>(argument);
  for (int round = 0; round < ROUNDS; round++) {
    int number = mine->index * ROUNDS + round;
    mine->wrong += cexceptions_rethrown(number, 1 + round % 2, suspendContext, context) != number;
  }
  return nullptr;
}

void rethrown() { expect(runInTurn(rethrow, expectNone) == 0); }

cco_saved_context *unwind(cco_context *context, void *argument) {
  Worker *mine = static_cast<Worker *>(argument);
  for (int round = 0; round < ROUNDS; round++) {
    mine->wrong += cexceptions_miscounted(mine->index % 3, suspendContext, context);
    int outer = mine->index * ROUNDS + round;
    mine->wrong += cexceptions_nested(outer, round, suspendContext, context) != outer + round;
  }
  return nullptr;
}

void unwound() { expect(runInTurn(unwind, expectNone) == 0); }

cco_saved_context *lookForException(cco_context *context, void *argument) {
  for (int i = 0; i < 6; i++) {
    *static_cast<int *>(argument) += cexceptions_is_handling() || cexceptions_uncaught() != 0;
    (void)suspend(context, 0);
  }
  return nullptr;
}

void resumerInside() {
  int seen = 0;
  cco_context *context = make(64 << 10, lookForException, &seen);
  expect(cexceptions_rethrown(7, 3, resumeContext, context) == 7);
  expect(cexceptions_miscounted(3, resumeContext, context) == 0);
  expect(seen == 0);
}

// The careful path, on which such a switch goes, is another function.
struct Turn {
  cco_context *context;
  uint64_t seed;
  int wrong;
};

void suspendHolding(void *argument) {
  Turn *turn = static_cast<Turn *>(argument);
  turn->wrong += wrong_registers(turn->seed++, suspendContext, turn->context);
}

cco_saved_context *holdInside(cco_context *context, void *argument) {
  Turn *turn = static_cast<Turn *>(argument);
  turn->context = context;
  if (cexceptions_rethrown(1, 100, suspendHolding, turn) != 1) turn->wrong++;
  return nullptr;
}

void registers() {
  Turn turns[2] = {{nullptr, 1000, 0}, {nullptr, 2000, 0}};
  cco_context *contexts[2];
  for (int i = 0; i < 2; i++) contexts[i] = make(64 << 10, holdInside, &turns[i]);
  int wrong = 0;
  for (uint64_t round = 0; round <= 100; round++)
    for (uint64_t i = 0; i < 2; i++) wrong += wrong_registers(round * 2 + i, resumeContext, contexts[i]);
  expect(wrong + turns[0].wrong + turns[1].wrong == 0);
  expect(turns[0].seed == 1100 && cco_state_of(contexts[1]) == CCO_FINISHED);
}

// ---- on other threads

cco_saved_context *nestAcross(cco_context *context, void *argument) {
  *static_cast<int *>(argument) = cexceptions_nested(1000, 7, suspendContext, context);
  return nullptr;
}

void resumeElsewhere(void *context) {
  resumeContext(context);
  expect(!cexceptions_is_handling());
}

void acrossThreads() {
  int sum = 0;
  cco_context *context = make(64 << 10, nestAcross, &sum);
  int rounds = 0;
  for (; cco_state_of(context) != CCO_FINISHED && rounds < 20; rounds++) on_thread(resumeElsewhere, context);
  expect(sum == 1007 && rounds == 5);
}

// ---- without the mitigation, and without a handler

void resumeTwo(void *argument) {
  Worker *workers = static_cast<Worker *>(argument);
  for (int i = 0; i < 2; i++) workers[i].context = make(64 << 10, rethrow, &workers[i]);
  for (int i = 0; i < 2; i++) (void)resume(workers[i].context, 0);
  expect(cexceptions_is_handling());
}

void without() {
  expect(cco_disable(CCO_MITIGATION_EXCEPTIONS));
  Worker workers[2] = {{nullptr, 0, 0}, {nullptr, 1, 0}};
  on_thread(resumeTwo, workers);
}

cco_saved_context *throwOut(cco_context *, void *) { throw 1; }
void throwOutOfBody(void *) { (void)resume(make(64 << 10, throwOut, nullptr), 0); }

void uncaught() {
  ending end = end_of(throwOutOfBody, nullptr);
  expect(end.signal == SIGABRT && says(&end, "terminate called after throwing an instance of 'int'"));
}

const test tests[] = {
    {"Exceptions are thrown and caught in contexts beside each other, through frames with destructors",
     thrownAndCaught, nullptr},
    {"A catch block that suspends throws its own exception again", rethrown, nullptr},
    {"A destructor that suspends during unwinding counts only its own context's exceptions", unwound, nullptr},
    {"A context starts without the exception that its resumer handles, and the resumer keeps it", resumerInside,
     nullptr},
    {"Registers keep their values over switches inside of a catch block", registers, nullptr},
    {"Nested exceptions move with their context to other threads", acrossThreads, nullptr},
    {"Without the mitigation a thread sees the exception of a context that is parked", without, nullptr},
    {"An exception that leaves a body ends the process with the C++ runtime's sentence", uncaught, nullptr},
};

}  // namespace

extern const suite exception_suite = SUITE("C++ exceptions", tests);
