internal import CCoroutine
import Synchronization

// What a step meets now and then: the start, the end, delegations, a yield where none may be. Out of line, and knows neither
// element nor input, so that it is compiled once.

extension GeneratorRecord {
  /// Before a step of one that was not parked: gets it ready to run and claims it, or finds that it has ended, or refuses.
  ///
  /// The step itself is the caller's, who switches: a function that returned after a switch would return mispredicted.
  @usableFromInline @inline(never)
  static func claimUnparked(_ root: GeneratorRef) throws -> Bool { try claimFresh(root) && start(root) }

  /// Notes whose steps these are now, and sees to it that an overflow on this thread has last words.
  @usableFromInline @inline(never)
  static func adopt(_ root: GeneratorRef, _ consumer: GeneratorConsumer) {
    root.pointee.stepper.store(consumer.name, ordering: .relaxed)
    root.pointee.stepperJob.store(UnsafeRawPointer(consumer.job), ordering: .relaxed)
    cco_guard_thread()
  }

  /// Goes on, after a switch that gave no plain element, until there is one for the consumer or `root` has ended.
  ///
  /// Begins and ends delegations, and raises at a yield inside a deadline, scope or shield. A loop, so that nesting costs
  /// no stack.
  @usableFromInline @inline(never)
  static func settle(
    _ root: GeneratorRef,
    _ given: UnsafeMutableRawPointer?,
    _ consumer: GeneratorConsumer
  ) -> UnsafeMutableRawPointer? {
    var answer = given
    var refusals = 0
    while true {
      let active = root.pointee.active.unsafelyUnwrapped
      let isSuspended = active.pointee.context.unsafelyUnwrapped.pointee.state == CCO_SUSPENDED
      if !consumer.hasItsFrames, isSuspended {
        refusals += 1
        if refusals > mostClosings { refuseSwallowing("YieldInsideScope") }
        active.pointee.raised = YieldInsideScope()
        answer = enter(active, message(answer == nil ? GeneratorMessage.raise : GeneratorMessage.refuse), consumer)
      } else if answer != nil {
        return answer
      } else if isSuspended {
        let inner = active.pointee.delegate.take().unsafelyUnwrapped
        inner.pointee.delegator = active
        // It may itself have been stopped in the middle of a delegation.
        root.pointee.active = inner.pointee.active
        answer = enter(root.pointee.active.unsafelyUnwrapped, nil, consumer)
      } else {
        let outer = active.pointee.delegator.take()
        let wasClosed = active.pointee.ending == .closed
        if active.pointee.ending == .failed { noteCancellation(active, consumer) }
        finish(active)
        guard let outer else { return nil }
        root.pointee.active = outer
        if wasClosed {
          outer.pointee.closings += 1
          outer.pointee.raised = ClosingError.value
        }
        answer = enter(outer, wasClosed ? message(GeneratorMessage.raise) : nil, consumer)
      }
    }
  }

  static func message(_ word: UInt) -> UnsafeMutableRawPointer? { UnsafeMutableRawPointer(bitPattern: word) }

  /// A body that ended with its consumer's own cancellation has not failed: the consumer meets that by itself.
  private static func noteCancellation(_ record: GeneratorRef, _ consumer: GeneratorConsumer) {
    guard let failure = record.pointee.failure, let cancellation = consumer.job?.cancellation() else { return }
    if addressOfBox(failure) == addressOfBox(cancellation) { record.pointee.isObserved = true }
  }

  /// Called by the body of `record`: hands over to `inner` until that has ended, just now or before.
  @usableFromInline @inline(never)
  static func delegate(_ record: GeneratorRef, to inner: GeneratorRef) throws {
    if !inner.pointee.claim.compareExchange(
      expected: GeneratorState.parked,
      desired: GeneratorState.running,
      ordering: .acquiring
    ).exchanged {
      guard try claimFresh(inner), start(inner) else { return }
    }
    record.pointee.delegate = inner
    var answer: UnsafeMutableRawPointer?
    let status = record.pointee.context.map { cco_suspend($0, nil, &answer) } ?? CCO_NOT_RUNNING
    guard status == CCO_OK else { refuse(status) }
    guard answer != nil else { return }
    // Raised before the inner one was entered: it is as it was.
    if record.pointee.delegate.take() != nil {
      if inner.pointee.context?.pointee.state == CCO_READY { putBack(inner) } else { park(inner) }
    }
    throw record.pointee.raised.take().unsafelyUnwrapped
  }
}
