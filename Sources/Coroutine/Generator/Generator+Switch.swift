public import CCoroutine
public import Synchronization

// The switch into the body and back. `resume` is inlined into the client down to the jump (hazard 12: a return after a
// switch is mispredicted). The infrequent cases are not inlined: a step of a generator that is not parked, and
// delegation, are in Generator+Delegation.swift, the start of a body in Generator+Start.swift, its end in
// Generator+End.swift.

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
    job = cco_thread().pointee.carrier?.assumingMemoryBound(to: Carrier.self).pointee.job
    frames = job?.pointee.frames
  }

  /// The consumer's number and the head of its bindings.
  ///
  /// Looked up at each use: outside of a job it is the thread's, whose address no function keeps over a switch (hazard
  /// 4). The consumer could not leave the thread there, so the nine instructions a step, two in a coroutine, buy a
  /// rule without exceptions: scripts/thread-locals finds nothing in the functions that this is inlined into.
  @inlinable var flow: UnsafeMutablePointer<Flow> {
    @inline(__always) get { if let job { job.flow } else { cco_thread().flow } }
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
