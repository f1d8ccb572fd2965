internal import CCoroutine
import Synchronization

// The infrequent events of a step: the start, the end, a delegation, a yield where none is allowed. These functions are
// not inlined, and depend on neither the element's nor the input's type, so they are compiled once.

extension GeneratorRecord {
  /// Claims a generator that is not parked, and makes it ready to run.
  ///
  /// Returns false if it has ended. Throws if it is running. The caller performs the step itself: a function that
  /// returned after a switch would cost a mispredicted return.
  @usableFromInline @inline(never)
  static func claimUnparked(_ root: GeneratorRef) throws -> Bool { try claimFresh(root) && start(root) }

  /// Records the consumer that steps the generator from now on, and installs the overflow report on this thread.
  ///
  /// Called at every step of a generator that is tracked.
  @usableFromInline @inline(never)
  static func attach(_ root: GeneratorRef, _ consumer: GeneratorConsumer) {
    var owner = consumer.owner
    if owner & OwnerNumber.mayStep == 0 {
      // A job has a number; a thread may need one.
      owner = (owner == 0 ? OwnerNumber.ofThread : owner) | OwnerNumber.mayStep
      consumer.flow.pointee.owner.store(owner, ordering: .relaxed)
    }
    root.pointee.stepperJob.store(UnsafeRawPointer(consumer.job), ordering: .relaxed)
    cco_guard_thread()
    guard root.pointee.owner != 0 else { return root.pointee.stepper.store(owner, ordering: .relaxed) }
    root.pointee.stepper.store(owner | GeneratorStepper.isTracked, ordering: .relaxed)
    noteStep(root)
  }

  /// Continues after a switch that gave no plain element, until there is an element or `root` has ended.
  ///
  /// It begins and ends delegations, and throws at a yield inside a deadline, scope or shield. It is a loop, so nested
  /// delegations cost no stack.
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
      let isSuspended = cco_state_of(active.pointee.context.unsafelyUnwrapped) == CCO_SUSPENDED
      if !consumer.hasItsFrames, isSuspended {
        refusals += 1
        if refusals > mostClosings { refuseSwallowing("CoroutineError.yieldInsideScope") }
        active.pointee.raised = CoroutineError.yieldInsideScope
        answer = enter(active, message(answer == nil ? GeneratorMessage.raise : GeneratorMessage.refuse), consumer)
      } else if answer != nil {
        return answer
      } else if isSuspended {
        let inner = active.pointee.delegate.take().unsafelyUnwrapped
        inner.pointee.delegator = active
        // The inner generator may itself have stopped within a delegation.
        root.pointee.active = inner.pointee.active
        if inner.pointee.owner != 0 { noteStep(root) }
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

  /// Marks a failure as observed if it is the consumer's own cancellation, which the consumer gets in any case.
  private static func noteCancellation(_ record: GeneratorRef, _ consumer: GeneratorConsumer) {
    guard let failure = record.pointee.failure, let cancellation = consumer.job?.cancellation() else { return }
    if failure is CancellationError || addressOfBox(failure) == addressOfBox(cancellation) {
      record.pointee.isObserved = true
    }
  }

  /// Delegates to `inner` until `inner` has ended, now or before.
  ///
  /// Called by the body of `record`.
  @usableFromInline @inline(never)
  static func delegate(_ record: GeneratorRef, to inner: GeneratorRef) throws {
    guard try claimParked(inner) || claimUnparked(inner) else { return }
    record.pointee.delegate = inner
    var answer: UnsafeMutableRawPointer?
    LockCheck.mayYield()
    let status = record.pointee.context.map { cco_suspend($0, nil, &answer) } ?? CCO_NOT_RUNNING
    guard status == CCO_OK else { refuse(status) }
    guard answer != nil else { return }
    // The error was raised before the inner generator was entered, so the inner generator is unchanged.
    if record.pointee.delegate.take() != nil {
      if let context = inner.pointee.context, cco_state_of(context) == CCO_READY { putBack(inner) } else { park(inner) }
    }
    throw record.pointee.raised.take().unsafelyUnwrapped
  }
}
