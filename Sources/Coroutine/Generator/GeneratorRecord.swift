public import CCoroutine
public import Synchronization

// A generator is a context without a job. A step switches straight into the body, on the consumer's stack and turn, and a
// yield switches straight back; no queue and no scheduler is involved. What both sides share is this record.
//
// States, the word `claim`
//
//            start               yield (the stepper's store)
//   FRESH ---------> RUNNING -----------------------------------> PARKED
//     |               |   ^                                         |
//     |               |   +---------- step, throw, close -----------+
//     |               | the body has returned or thrown
//     |               v
//     +----------> FINISHED       close, throw, a drop: from FRESH without ever running the body
//
// Invariants
//  1. Whoever moves FRESH or PARKED to RUNNING, by compare-and-swap (a deinit, which is alone, by a store), owns the record and the stack until it stores PARKED
//     or FINISHED (release). Everybody else is refused: two can never switch into one stack.
//  2. `context` is there exactly in PARKED and RUNNING. Finishing gives the stack back at once.
//  3. A stack with live frames is never freed: close and deinit resume the body with GeneratorClosed until it has ended.
//  4. Nothing on the body's stack refers to the generator's object strongly, so dropping the last reference finds it PARKED.
//     What the body has captured belongs to its stack from the start on.
//  5. The element that a yield gives lies on the body's stack until the consumer has moved it out, which it does before it
//     gives up the claim. A step's input lies on the consumer's stack.
//
// When the body waits (co_await, a channel) while a job steps it, that job parks from the body's stack, and is resumed
// there, perhaps on another thread. To the record nothing happens: it stays RUNNING, the stepping frame lives on. So
// nothing thread-local is kept over a switch; the stepping job is the same before and after.
//
// What belongs to the flow of control and must not mix between body and consumer
//   Swift's accesses and task-locals   exchanged by cco_switch; the body's lists begin empty
//   CoroutineLocal bindings            exchanged around each switch: `locals`, which begin as those of the first step
//   Swift's current Task, exceptions   kept by the consumer's frame over the switch; the body begins in no Task
//   rounding mode              the body's own, kept in its saved frame; exception flags are the thread's (hazard 1)
//   deadlines, scopes, shields         the consumer's hold for the body as for any function it calls. The body's own must be
//                                      left before it yields: their frames, timers and children belong to the job that
//                                      stepped it, and the next step may come from another or from none. A yield inside
//                                      them throws YieldInsideScope.
//
// Delegation (`yield.all(of:)`) links records: `active` of the one that is stepped leads to the innermost, which is switched
// into directly; `delegator` leads back out, one at a time, when it ends. Neither time nor stack depends on the nesting.
//
// Who owns what: all but `claim`, `stepper` and `stepperJob` belongs to the holder of the claim, and in FINISHED to whoever may use the
// generator at all (one at a time; a generator is not Sendable).

/// A pointer to a generator's record, which lies in the generator's object.
@usableFromInline typealias GeneratorRef = UnsafeMutablePointer<GeneratorRecord>

@usableFromInline
struct GeneratorRecord: ~Copyable {
  // First cache line: what a step touches.
  @usableFromInline let claim = Atomic<UInt8>(GeneratorState.fresh)
  /// How it ended.
  @usableFromInline var ending = GeneratorEnding.none
  /// Whether somebody has seen the failure.
  @usableFromInline var isObserved = false
  /// The body's stack.
  @usableFromInline var context: UnsafeMutablePointer<cco_context>?
  /// The innermost generator of a delegation, this one where there is none.
  ///
  /// Meaningful in the one that is stepped.
  @usableFromInline var active: GeneratorRef?
  /// Who stepped it last, by GeneratorConsumer's name; for refusals, so read without the claim.
  @usableFromInline let stepper = Atomic<UnsafeRawPointer?>(nil)
  /// A LocalBinding with its reference: the body's while it is parked, the consumer's while the body runs.
  @usableFromInline var locals: UnsafeMutableRawPointer?

  // The rest.
  /// What the pending yield is to throw.
  @usableFromInline var raised: (any Error)?
  /// Until it starts or is closed; then one that has captured nothing.
  @usableFromInline var body: GeneratorBody
  @usableFromInline let stackBytes: Int
  /// Where it was made, and once it has started its stack's number, for last words.
  @usableFromInline var label: cco_label
  /// The stepper's JobRef; nil: a thread.
  @usableFromInline let stepperJob = Atomic<UnsafeRawPointer?>(nil)
  /// Who waits in `yield.all(of:)` for this one's end, and whom this one waits for.
  @usableFromInline var delegator: GeneratorRef?
  @usableFromInline var delegate: GeneratorRef?
  /// How often GeneratorClosed has been raised.
  @usableFromInline var closings = 0
  @usableFromInline var failure: (any Error)?
  /// The returned value on the heap; nil while there is none, or where it takes no room.
  @usableFromInline var result: UnsafeMutableRawPointer?
  @usableFromInline var freeResult: ((UnsafeMutableRawPointer) -> Void)?

  @inlinable
  init(stackBytes: Int, launchSite: LaunchSite, body: GeneratorBody) {
    self.stackBytes = stackBytes
    label = cco_label(id: 0, name: "generator", launchSite)
    self.body = body
  }
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
  /// GeneratorClosed has gone through the body, or it never ran.
  case closed
}

/// What crosses into the body with a switch: nil, one of these, or the address of the step's `Input?`.
@usableFromInline
enum GeneratorMessage {
  /// The pending yield throws `raised`.
  @usableFromInline static var raise: UInt { 1 }
  /// The same, and its element has not been taken.
  @usableFromInline static var refuse: UInt { 2 }
}
