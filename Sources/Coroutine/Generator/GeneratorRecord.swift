public import CCoroutine
public import CCoroutineRuntime
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

// MARK: - The switch

// The switch into the body and back. `resume` is inlined into the client down to the jump (hazard 12: a return after a
// switch is mispredicted). The infrequent cases are not inlined: the start and the end of a body, below; a step of a
// generator that is not parked, and delegation, in Generator+Delegation.swift.

/// The consumer of a step.
///
/// All fields belong to the consumer, so they are valid until the step is over, on whatever thread: its job is looked
/// up once.
@usableFromInline
struct GeneratorConsumer {
  @usableFromInline let job: JobRef?
  @usableFromInline let frames: UnsafeMutablePointer<CancelFrame>?

  @inlinable @inline(__always)
  init() {
    job = cco_layer().pointee.carrier?.assumingMemoryBound(to: Carrier.self).pointee.job
    frames = job?.pointee.frames
  }

  /// The consumer's number and the head of its bindings.
  ///
  /// Looked up at each use: outside of a job it is the thread's, whose address no function keeps over a switch (hazard
  /// 4). The consumer could not leave the thread there, so the nine instructions a step, two in a coroutine, buy a
  /// rule without exceptions: scripts/thread-locals finds nothing in the functions that this is inlined into.
  @inlinable var flow: UnsafeMutablePointer<Flow> {
    @inline(__always) get { if let job { job.flow } else { cco_layer().flow } }
  }

  /// Identifies the consumer; 0 for a thread that has no number yet, which has made no step then.
  @inlinable var owner: UInt {
    @inline(__always) get { flow.pointee.owner.load(ordering: .relaxed) }
  }

  /// Whether the body has left the deadlines, scopes and shields that it has entered.
  @inlinable var hasItsFrames: Bool {
    @inline(__always) get { job == nil || job.unsafelyUnwrapped.pointee.frames == frames }
  }
}

extension GeneratorRecord {
  /// Performs one step of `root`.
  ///
  /// Returns the element's address on the body's stack, with the claim held until `park`, or nil if the generator has
  /// ended. Throws only CoroutineError.alreadyRunning.
  @inlinable @inline(__always)
  static func resume(
    _ root: GeneratorRef,
    _ message: UnsafeMutableRawPointer?
  ) throws -> UnsafeMutableRawPointer? {
    // A failed exchange costs as much as one that succeeds, and a generator may be stepped only once.
    let isParked = root.pointee.claim.load(ordering: .relaxed) == GeneratorState.parked && claimParked(root)
    if !isParked, try !claimUnparked(root) { return nil }
    // A generator that starts now has no pending yield that could get the message.
    return drive(root, message)
  }

  /// Performs one step of a parked generator whose claim the caller holds.
  @inlinable @inline(__always)
  static func drive(_ root: GeneratorRef, _ message: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    let consumer = GeneratorConsumer()
    if root.pointee.stepper.load(ordering: .relaxed) != consumer.owner { attach(root, consumer) }
    let answer = enter(root.pointee.active.unsafelyUnwrapped, message, consumer)
    return _fastPath(answer != nil && consumer.hasItsFrames) ? answer : settle(root, answer, consumer)
  }

  /// Switches into one body, and returns what the body yields: an element's address, or nil.
  @inlinable @inline(__always)
  static func enter(
    _ record: GeneratorRef,
    _ message: UnsafeMutableRawPointer?,
    _ consumer: GeneratorConsumer
  ) -> UnsafeMutableRawPointer? {
    exchangeLocals(consumer.flow, record)
    var answer: UnsafeMutableRawPointer?
    let below = LockCheck.beginStep()
    let status = cco_resume(record.pointee.context.unsafelyUnwrapped, message, &answer)
    if status != CCO_OK { refuse(status) }
    LockCheck.endStep(below)
    exchangeLocals(consumer.flow, record)
    return answer
  }

  @inlinable @inline(__always)
  static func exchangeLocals(_ flow: UnsafeMutablePointer<Flow>, _ record: GeneratorRef) {
    let locals = flow.pointee.locals
    flow.pointee.locals = record.pointee.locals
    record.pointee.locals = locals
  }

  /// Claims a parked generator; returns false if it is in another state.
  @inlinable @inline(__always)
  static func claimParked(_ root: GeneratorRef) -> Bool {
    root.pointee.claim.compareExchange(
      expected: GeneratorState.parked,
      desired: GeneratorState.running,
      ordering: .acquiring
    ).exchanged
  }

  /// Gives up the claim, after the element was taken.
  @inlinable @inline(__always)
  static func park(_ root: GeneratorRef) {
    cco_order_retains()
    root.pointee.claim.store(GeneratorState.parked, ordering: .releasing)
  }
}

// MARK: - The start of a body

// How a body gets its stack and returns it.

extension GeneratorRecord {
  /// Claims a fresh generator.
  ///
  /// Returns false if it has finished, and throws if it is in use.
  static func claimFresh(_ record: GeneratorRef) throws -> Bool {
    let (exchanged, state) = record.pointee.claim.compareExchange(
      expected: GeneratorState.fresh,
      desired: GeneratorState.running,
      ordering: .acquiring
    )
    if exchanged { return true }
    if state == GeneratorState.finished { return false }
    throw refusal(of: record)
  }

  /// Takes a stack for a fresh generator that the caller has claimed.
  ///
  /// Returns false if there was no stack; then the generator has ended with that failure.
  static func start(_ record: GeneratorRef) -> Bool {
    let bytes = record.pointee.stackBytes
    var context: UnsafeMutablePointer<cco_context>?
    let status = makeContext(for: record, bytes, &context)
    guard status == CCO_OK, let context else {
      let sentence = String(cString: cco_status_message(status))
      fail(record, status == CCO_STACK_TOO_LARGE ? CoroutineError.stackTooLarge(bytes) : .outOfStacks(sentence))
      finish(record)
      return false
    }
    record.pointee.label.id = context.pointee.serial
    context.pointee.label = UnsafePointer(withUnsafeMutablePointer(to: &record.pointee.label) { $0 })
    record.pointee.context = context
    record.pointee.active = record
    return true
  }

  @inline(__always)
  private static func makeContext(
    for record: GeneratorRef,
    _ bytes: Int,
    _ context: inout UnsafeMutablePointer<cco_context>?
  ) -> cco_status {
    cco_create(
      bytes,
      { context, _ in
        GeneratorRecord.run(context)
        return nil
      },
      record,
      &context
    )
  }

  /// Runs one body.
  ///
  /// Not inlined into the closure that is passed as a C function: there the switches would be compiled as calls.
  @inline(never)
  private static func run(_ context: UnsafeMutablePointer<cco_context>) {
    context.pointee.base = cco_frame()
    let record = context.pointee.argument.unsafelyUnwrapped.assumingMemoryBound(to: GeneratorRecord.self)
    let hasTaskLocals = record.pointee.inheritsTaskLocals
    if hasTaskLocals { enterTaskLocals() }
    perform(record)
    if hasTaskLocals { cco_leave_task_locals() }
  }

  /// Enters the task-locals of the generator, whose list of locals is the current one while the body runs.
  @inline(never)
  private static func enterTaskLocals() { LocalBinding.current?.enterTaskLocals() }

  /// Returns what the body inherits from the caller.
  @usableFromInline @inline(never)
  static func inherited() -> GeneratorInheritance {
    cco_start_if_needed()
    guard let locals = LocalBinding.inherited() else { return GeneratorInheritance(locals: nil, hasTaskLocals: false) }
    return GeneratorInheritance(
      locals: locals.toOpaque(),
      hasTaskLocals: locals._withUnsafeGuaranteedRef { $0.taskLocals != nil }
    )
  }

  /// Runs the body on its stack.
  ///
  /// Keeps no reference to the body, so that the stack may be given back as it is afterwards.
  @inline(__always)
  private static func perform(_ record: GeneratorRef) {
    do {
      try call(exchange(&record.pointee.body, with: .spent).run, Yielder(record))
      record.pointee.ending = .returned
    } catch {
      fail(record, error)
    }
  }

  /// Calls the body.
  ///
  /// A function, because the compiler would retain a variable for the call.
  @inline(__always)
  private static func call(_ body: (Yielder<Void, Void>) throws -> Void, _ yielder: Yielder<Void, Void>) throws {
    try body(yielder)
  }

  /// Gives everything back.
  ///
  /// Called when the body has ended or will never run.
  static func finish(_ record: GeneratorRef) {
    if record.pointee.locks != 0, let job = Carrier.current?.pointee.job { leaveLocks(record, job) }
    giveStackBack(record)
    // A generator that never started still has its body. The captures are released after the end is published, because
    // their deinits may use the generator.
    let body = exchange(&record.pointee.body, with: .spent)
    let locals = record.pointee.locals
    record.pointee.locals = nil
    cco_order_retains()
    record.pointee.claim.store(GeneratorState.finished, ordering: .releasing)
    if let locals { Unmanaged<LocalBinding>.fromOpaque(locals).release() }
    withExtendedLifetime(body) {}
  }

  /// Makes a generator fresh again that has a stack and has not run.
  ///
  /// The caller holds its claim.
  static func putBack(_ record: GeneratorRef) {
    giveStackBack(record)
    record.pointee.active = nil
    cco_order_retains()
    record.pointee.claim.store(GeneratorState.fresh, ordering: .releasing)
  }

  private static func giveStackBack(_ record: GeneratorRef) {
    if let context = record.pointee.context {
      record.pointee.context = nil
      let status = cco_destroy(context)
      if status != CCO_OK { refuse(status) }
    }
  }
}

/// A body, without the types of its yielder.
@usableFromInline
struct GeneratorBody {
  @usableFromInline let run: (Yielder<Void, Void>) throws -> Void

  /// The body of a generator whose body has been taken.
  static var spent: GeneratorBody { GeneratorBody { (_: Yielder<Void, Void>) in } }

  // Sound because a yielder is two plain words for all types, so all such closures are called alike. The closure is
  // wrapped in a structure, because Swift wraps a bare closure that is passed to generic code, with an allocation.
  @inlinable
  init<Element, Input>(_ body: @escaping (Yielder<Element, Input>) throws -> Void) {
    self = unsafeBitCast(TypedGeneratorBody(run: body), to: GeneratorBody.self)
  }
}

/// A body with the types of its yielder.
@usableFromInline
struct TypedGeneratorBody<Element, Input> {
  @usableFromInline let run: (Yielder<Element, Input>) throws -> Void

  @inlinable
  init(run: @escaping (Yielder<Element, Input>) throws -> Void) { self.run = run }
}

// MARK: - The end of a body

// Raising errors, closing, releasing: the ways to make a body end, and its outcome. Two rules hold.
// - A stack with live frames is never freed. It is resumed with an error first.
// - Nothing waits while a last reference is being released.

extension GeneratorRecord {
  /// The number of times that a body may swallow GeneratorClosedError and yield again.
  ///
  /// One more is a programming error.
  static var mostClosings: Int { 100 }

  /// Stores the error that the body has thrown.
  @usableFromInline
  static func fail(_ record: GeneratorRef, _ error: any Error) {
    let isClosing = record.pointee.closings > 0
    if isClosing && (ClosingError.isSame(as: error) || error is GeneratorClosedError) {
      record.pointee.ending = .closed
    } else {
      record.pointee.ending = .failed
      record.pointee.failure = error
    }
  }

  /// Returns the error that a step throws after an end without a return.
  @usableFromInline @inline(never)
  static func error(of record: GeneratorRef) -> any Error {
    record.pointee.isObserved = true
    return record.pointee.failure ?? GeneratorClosedError()
  }

  /// Claims the generator for `throw` or `close`.
  ///
  /// Returns true if there is a pending yield. A fresh generator ends here, with `error`.
  private static func claimToEnd(_ root: GeneratorRef, _ error: (any Error)?) throws -> Bool {
    if claimParked(root) { return true }
    if try claimFresh(root) {
      root.pointee.ending = error == nil ? .closed : .failed
      root.pointee.failure = error
      finish(root)
    }
    return false
  }

  /// Throws `error` at the pending yield, and returns the element's address as `resume` does.
  ///
  /// Without a pending yield, `error` is thrown to the caller.
  @usableFromInline @inline(never)
  static func raise(_ root: GeneratorRef, _ error: any Error) throws -> UnsafeMutableRawPointer? {
    guard try claimToEnd(root, error) else {
      root.pointee.isObserved = true
      throw error
    }
    root.pointee.active.unsafelyUnwrapped.pointee.raised = error
    return drive(root, message(GeneratorMessage.raise))
  }

  /// Ends the generator, whatever state it is in.
  @usableFromInline @inline(never)
  static func close(_ root: GeneratorRef) {
    do {
      guard try claimToEnd(root, nil) else { return }
    } catch {
      refuseClosing()
    }
    unwind(root)
  }

  /// Throws GeneratorClosedError at the pending yield until the body has ended.
  ///
  /// The caller holds the claim of a parked generator.
  private static func unwind(_ root: GeneratorRef) {
    var word = GeneratorMessage.raise
    repeat {
      let active = root.pointee.active.unsafelyUnwrapped
      active.pointee.closings += 1
      if active.pointee.closings > mostClosings { refuseSwallowing("GeneratorClosedError") }
      active.pointee.raised = ClosingError.value
      // If the body yields an element nevertheless, the element is refused, and destroyed on the body's side.
      let answer = drive(root, message(word))
      word = GeneratorMessage.refuse
      if answer == nil { return }
    } while true
  }

  /// Ends the generator when its last reference has been released.
  ///
  /// The body's cleanup must not suspend here: a job does not expect a release to suspend.
  @usableFromInline @inline(never)
  static func tearDown(_ record: GeneratorRef) {
    // No other thread can have the claim any more, so a store is enough.
    if record.pointee.claim.load(ordering: .acquiring) == GeneratorState.parked {
      record.pointee.claim.store(GeneratorState.running, ordering: .relaxed)
      let carrier = Carrier.current
      let job = carrier?.pointee.job
      carrier?.pointee.job = nil
      unwind(record)
      carrier?.pointee.job = job
    }
    // Still there if the body has never run.
    if let locals = record.pointee.locals { Unmanaged<LocalBinding>.fromOpaque(locals).release() }
    if let result = record.pointee.result { record.pointee.freeResult.unsafelyUnwrapped(result) }
    if let failure = record.pointee.failure, !record.pointee.isObserved {
      let launchSite = record.pointee.label.launchSite
      UnhandledErrors.report(.init(failure, in: "a generator made at \(launchSite.description)", at: launchSite))
    }
  }
}

/// Returns the address of an error's box, which distinguishes equal errors.
///
/// The cast prevents generic code from opening the box.
// Sound because an error is one pointer on this platform, and only the pointer's value is used.
func addressOfBox(_ error: any Error) -> UInt { unsafeBitCast(error as any Error, to: UInt.self) }

/// The GeneratorClosedError that close throws: one error for the whole process.
///
/// It is recognised by its address, without a cast, which takes 50 ns. The address is kept in a word, because reading a
/// lazily initialised Swift global takes two calls.
enum ClosingError {
  private static let error: any Error = GeneratorClosedError()
  /// The error's address, or zero until it is first needed.
  private static let word = Atomic<UInt>(0)

  static var value: any Error {
    let known = word.load(ordering: .acquiring)
    // Sound because an error is one pointer, and this error is never released.
    return known != 0 ? unsafeBitCast(known, to: (any Error).self) : make()
  }

  static func isSame(as other: any Error) -> Bool { addressOfBox(other) == word.load(ordering: .relaxed) }

  @inline(never)
  private static func make() -> any Error {
    word.store(addressOfBox(error), ordering: .releasing)
    return error
  }
}
