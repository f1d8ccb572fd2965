public import CCoroutine
public import Synchronization

// A generator is a context without a job. A step switches straight into the body, on the consumer's thread and carrier,
// and a yield switches straight back; no queue and no scheduler is involved. This record is what both sides share.
//
// States of the word `claim`
//
//            start               yield (stored by the consumer)
//   FRESH ---------> RUNNING -----------------------------------> PARKED
//     |               |   ^                                         |
//     |               |   +---------- step, throw, close -----------+
//     |               | the body has returned or thrown
//     |               v
//     +----------> FINISHED       close, throw, a release: from FRESH without ever running the body
//
// Invariants
//  1. The thread that moves FRESH or PARKED to RUNNING owns the record and the stack until it stores PARKED or FINISHED
//     (release). It moves the word by compare-and-swap; a deinit, which runs alone, by a store. Every other caller is
//     refused, so two threads never switch into one stack.
//  2. `context` is set exactly in PARKED and RUNNING. Finishing gives the stack back at once.
//  3. A stack with live frames is never freed: close and deinit resume the body with GeneratorClosedError until it has
//     ended.
//  4. Nothing on the body's stack holds a strong reference to the generator's object, so releasing the last reference
//     finds the generator PARKED. From the start on, the body's captures belong to its stack.
//  5. A yielded element is stored on the body's stack until the consumer has moved it out, which happens before the
//     consumer gives up the claim. A step's input is stored on the consumer's stack.
//
// If the body waits (co_await, a channel) while a job steps it, that job parks on the body's stack, and is resumed
// there, perhaps on another thread. The record does not change: it stays RUNNING, and the stepping frame stays alive.
// So nothing thread-local is kept over a switch; the stepping job is the same before and after.
//
// State of the flow of control that must not mix between body and consumer
//   Swift's accesses and task-locals   exchanged by cco_switch; the body begins with no accesses, and with the
//                                      task-locals of the generator's creation
//   CoroutineLocal bindings            exchanged around each switch in `locals`, which begin as those of the creation
//   Swift's current Task, exceptions   kept by the consumer's frame over the switch; the body begins in no Task
//   rounding mode                      the body's own, kept in its saved frame; exception flags are the thread's
//                                      (hazard 1)
//   deadlines, scopes, shields, pins   the consumer's apply to the body, as to any function that it calls. The body
//   and locks                          must leave its own before it yields: they belong to the stepping job, and the
//                                      next step may come from another job or from none. A yield inside them throws
//                                      CoroutineError.yieldInsideScope.
//
// Delegation (`yield.all(of:)`) links records: `active` of the stepped generator leads to the innermost one, which is
// switched into directly; `delegator` leads back out, one at a time, when it ends. Neither time nor stack depends on
// the nesting.
//
// Ownership. All fields but `claim`, `stepper` and `stepperJob` belong to the holder of the claim, and in FINISHED to
// the current user of the generator (one at a time; a generator is not Sendable).

/// A pointer to a generator's record, which is stored in the generator's object.
@usableFromInline typealias GeneratorRef = UnsafeMutablePointer<GeneratorRecord>

@usableFromInline
struct GeneratorRecord: ~Copyable {
  // First cache line: the fields that a step uses.
  @usableFromInline let claim = Atomic<UInt8>(GeneratorState.fresh)
  /// The way in which the body ended.
  @usableFromInline var ending = GeneratorEnding.none
  /// Whether the failure has been observed.
  @usableFromInline var isObserved = false
  /// Whether the body begins with task-locals, which `locals` leads to.
  @usableFromInline let inheritsTaskLocals: Bool
  /// The body's stack.
  @usableFromInline var context: UnsafeMutablePointer<cco_context>?
  /// The innermost generator of a delegation; this generator if there is no delegation.
  ///
  /// Valid in the generator that is stepped.
  @usableFromInline var active: GeneratorRef?
  /// The `owner` of the last consumer; for refusals, and therefore read without the claim.
  @usableFromInline let stepper = Atomic<UInt>(GeneratorStepper.none)
  /// A LocalBinding with its reference, from the creation to the end: the body's while it is parked, the consumer's
  /// while the body runs.
  @usableFromInline var locals: UnsafeMutableRawPointer?

  // The infrequently used fields.
  /// The error that the pending yield throws.
  @usableFromInline var raised: (any Error)?
  /// The body until it starts or is closed; then a body without captures.
  @usableFromInline var body: GeneratorBody
  @usableFromInline let stackBytes: Int
  /// The launch site, and after the start the stack's number, for overflow reports.
  @usableFromInline var label: cco_label
  /// The stepping job's JobRef, or nil for a thread.
  @usableFromInline let stepperJob = Atomic<UnsafeRawPointer?>(nil)
  /// The generator that waits in `yield.all(of:)` for the end of this one, and the one that this one waits for.
  @usableFromInline var delegator: GeneratorRef?
  @usableFromInline var delegate: GeneratorRef?
  /// The number of locks that the body has locked since it was resumed, and the frame that stands for them in the chain
  /// of the consumer's job (Generator+Delegation.swift).
  var locks: UInt = 0
  var lockFrame: UnsafeMutablePointer<CancelFrame>?
  /// The number of times that GeneratorClosedError has been raised.
  @usableFromInline var closings = 0
  @usableFromInline var failure: (any Error)?
  /// The returned value on the heap; nil if there is none, or if its size is zero.
  @usableFromInline var result: UnsafeMutableRawPointer?
  @usableFromInline var freeResult: ((UnsafeMutableRawPointer) -> Void)?

  @inlinable
  init(stackBytes: Int, launchSite: LaunchSite, inheritance: GeneratorInheritance, body: GeneratorBody) {
    self.stackBytes = stackBytes
    label = cco_label(id: 0, name: "generator", launchSite)
    self.body = body
    locals = inheritance.locals
    inheritsTaskLocals = inheritance.hasTaskLocals
  }
}

/// What a body inherits from the creator of its generator.
///
/// Passed in front of the body: the compiler retains and releases a body twice over a call that it cannot see into.
@usableFromInline
struct GeneratorInheritance {
  @usableFromInline let locals: UnsafeMutableRawPointer?
  @usableFromInline let hasTaskLocals: Bool
}

/// The value of `stepper` beside the owners of consumers.
@usableFromInline
enum GeneratorStepper {
  /// No step has been made.
  @inlinable static var none: UInt { .max }
}

@usableFromInline
enum GeneratorState {
  @usableFromInline static var fresh: UInt8 { 0 }
  @usableFromInline static var parked: UInt8 { 1 }
  @usableFromInline static var running: UInt8 { 2 }
  @usableFromInline static var finished: UInt8 { 3 }
}

@usableFromInline
enum GeneratorEnding: UInt8 {
  case none, returned, failed
  /// GeneratorClosedError has passed through the body, or the body never ran.
  case closed
}

/// The message that a switch carries into the body: nil, one of these, or the address of the step's `Input?`.
@usableFromInline
enum GeneratorMessage {
  /// The pending yield throws `raised`.
  @usableFromInline static var raise: UInt { 1 }
  /// The pending yield throws `raised`, and its element has not been taken.
  @usableFromInline static var refuse: UInt { 2 }
}
