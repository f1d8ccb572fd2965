public import CCoroutine
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
    root.pointee.stepper.store(owner, ordering: .relaxed)
  }

  /// Continues after a switch that gave no plain element, until there is an element or `root` has ended.
  ///
  /// It begins and ends delegations, and throws at a yield inside a deadline, scope, shield or lock. It is a loop, so
  /// nested delegations cost no stack.
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

// MARK: - Locks

// What a body locks belongs to the job that makes the step. The next step may be another's, so a body must have
// unlocked it when it yields. A step has no instruction for that: while a body holds locks, a frame of the kind `bound`
// is in the chain of the job, and the comparison that each step ends with (`hasItsFrames`) finds it.
//
// Invariants
//  1. `locks` counts what the body itself has locked in its present step and not unlocked. While it is above zero, and
//     only then, `lockFrame` is in the chain of the job that makes the step.
//  2. The frame is outside of every frame that the body has entered. So a body that locks inside a deadline takes the
//     frame along when it leaves the deadline.
//  3. The body alone changes both, on the carrier of its job, and its end takes out what is left: a body that ends with
//     a lock held leaves it to the coroutine.
//
// A lock that a body of an inner step unlocks for an outer one stays counted there, and the outer one cannot yield any
// more. Outside a coroutine a thread owns what a body locks, and nothing is counted.

extension GeneratorRecord {
  /// Counts a lock that the caller has taken; `job` runs the caller.
  static func noteLocked(_ job: JobRef) {
    guard let body = ofCaller else { return }
    body.pointee.locks += 1
    guard body.pointee.locks == 1, let context = body.pointee.context else { return }
    let stack = UnsafeMutableRawPointer(context.pointee.low)..<UnsafeMutableRawPointer(context)
    // Inside of co_withStack, the body has a further stack.
    let isOnItsOwn = cco_context_here() == UnsafePointer(context)
    var inner: UnsafeMutablePointer<CancelFrame>?
    var outer = job.pointee.frames
    while let frame = outer,
      stack.contains(UnsafeMutableRawPointer(frame)) || !isOnItsOwn && self.body(onWhoseStackIs: frame) == body
    {
      (inner, outer) = (frame, frame.pointee.outer)
    }
    let made = UnsafeMutablePointer<CancelFrame>.allocate(capacity: 1)
    made.initialize(to: CancelFrame(.bound, inside: outer))
    if let inner { inner.pointee.outer = made } else { job.pointee.frames = made }
    body.pointee.lockFrame = made
  }

  /// Counts a lock no more that the caller has unlocked.
  static func noteUnlocked(_ job: JobRef) {
    guard let body = ofCaller, body.pointee.locks > 0 else { return }
    body.pointee.locks -= 1
    if body.pointee.locks == 0 { removeLockFrame(body, job) }
  }

  /// Called at the end of a body that has left something locked.
  static func leaveLocks(_ body: GeneratorRef, _ job: JobRef) {
    body.pointee.locks = 0
    removeLockFrame(body, job)
  }

  private static func removeLockFrame(_ body: GeneratorRef, _ job: JobRef) {
    guard let frame = body.pointee.lockFrame.take() else { return }
    if job.pointee.frames == frame {
      job.pointee.frames = frame.pointee.outer
    } else {
      var inner = job.pointee.frames
      while let current = inner, current.pointee.outer != frame { inner = current.pointee.outer }
      inner?.pointee.outer = frame.pointee.outer
    }
    frame.deinitialize(count: 1)
    frame.deallocate()
  }

  // Only the contexts of generators have an argument, and those of the further stacks of their bodies (co_withStack).

  /// The body on whose stack the caller runs; nil on the stack of a job or a thread.
  private static var ofCaller: GeneratorRef? {
    cco_context_here()?.pointee.argument?.assumingMemoryBound(to: GeneratorRecord.self)
  }

  private static func body(onWhoseStackIs frame: UnsafeMutablePointer<CancelFrame>) -> GeneratorRef? {
    cco_context_at(frame, nil)?.pointee.argument?.assumingMemoryBound(to: GeneratorRecord.self)
  }
}

// MARK: - Misuse

// Misuse. If a caller can be told, the call throws an error. If no caller would get the error, or if the misuse is
// already a data race, the program ends with a message.

extension GeneratorRecord {
  /// Returns the error for a caller that steps a running generator.
  ///
  /// The generator's own body, and another coroutine of the same queue while the body waits, get an error. Two threads
  /// at once are a data race in the program, which ends it.
  static func refusal(of record: GeneratorRef) -> CoroutineError {
    let consumer = GeneratorConsumer()
    // An inner generator of a delegation is stepped through the outer one. All that is known here is that it is in use.
    let stepper = record.pointee.stepper.load(ordering: .relaxed)
    if stepper == GeneratorStepper.none || stepper == consumer.owner { return .alreadyRunning }
    // The stepping job is alive while it steps, unless two threads race here. In that case the result below is right
    // too.
    if let mine = consumer.job, let job = record.pointee.stepperJob.load(ordering: .relaxed),
      UnsafeMutablePointer(mutating: job.assumingMemoryBound(to: JobRecord.self)).scheduler == mine.scheduler
    {
      return .alreadyRunning
    }
    fatalError(
      "a generator was used from two threads at once; hand it over between steps, or put a Channel between the threads"
    )
  }

  /// Reports the misuse of `next` on a running generator: `next` cannot throw.
  @usableFromInline @inline(never)
  static func refuse(_ error: any Error) -> Never { fatalError("next() was called, but \(asLine(error))") }

  /// Reports a switch that the C core refuses: the use of a yielder outside its body.
  @usableFromInline @inline(never)
  static func refuse(_ status: cco_status) -> Never {
    fatalError(
      """
      a generator's yield was called outside of its body; a yielder works only where it was handed in, not after the \
      end, and not inside of co_withStack, where the body is on another stack
      """
    )
  }

  static func refuseClosing() -> Never {
    fatalError("close() of a generator that is running; let its body return or throw, or close it after the step")
  }

  static func refuseSwallowing(_ error: StaticString) -> Never {
    fatalError("a generator's body has swallowed \(error) \(mostClosings) times and yielded again; let it end the body")
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Identifies the serial execution that the job belongs to.
  fileprivate var scheduler: UnsafeMutableRawPointer { pointee.scheduler.load(ordering: .relaxed).toOpaque() }
}
