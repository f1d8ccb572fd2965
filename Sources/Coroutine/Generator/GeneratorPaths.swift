public import CCoroutine
import Synchronization

// What is rare in a generator's life: starting, ending, delegating, closing, and every refusal. Out of line, and knows
// neither element nor input, so that it is compiled once.

extension GeneratorRecord {
  // MARK: Starting

  /// A step of one that was not parked: starts it, or finds it finished, or refuses.
  @usableFromInline @inline(never)
  static func resumeUnparked(_ root: GeneratorRef) throws -> UnsafeMutableRawPointer? {
    guard try claimFresh(root), start(root) else { return nil }
    return drive(root, nil)
  }

  /// Claims a fresh one; false: it has finished.
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

  /// Gets a stack for a fresh one that the caller has claimed. False: there was none, and it has ended with that failure.
  static func start(_ record: GeneratorRef) -> Bool {
    let bytes = record.pointee.stackBytes
    var context: UnsafeMutablePointer<cco_context>?
    let status = cco_create(bytes, { _, record in GeneratorRecord.run(record) }, record, &context)
    guard status == CCO_OK, let context else {
      fail(
        record,
        status == CCO_STACK_TOO_LARGE
          ? .stackTooLarge(bytes) : .outOfStacks(String(cString: cco_status_message(status)))
      )
      finish(record)
      return false
    }
    context.pointee.label.id = UInt64(bodies.wrappingAdd(1, ordering: .relaxed).newValue)
    context.pointee.label.name = UnsafeRawPointer(generatorLabel.utf8Start).assumingMemoryBound(to: CChar.self)
    context.pointee.label.name_length = generatorLabel.utf8CodeUnitCount
    context.pointee.label.file = UnsafeRawPointer(record.pointee.place.file).assumingMemoryBound(to: CChar.self)
    context.pointee.label.file_length = Int(record.pointee.place.length)
    context.pointee.label.line = record.pointee.place.line
    record.pointee.context = context
    record.pointee.active = record
    record.pointee.locals = LocalBinding.currentRetained()?.toOpaque()
    return true
  }

  private static func fail(_ record: GeneratorRef, _ error: CoroutineError) { fail(record, error as any Error) }

  /// The first frame on the body's stack. Its own function, so that what the body has captured is released before the end.
  private static func run(_ record: UnsafeMutableRawPointer?) {
    let record = record.unsafelyUnwrapped.assumingMemoryBound(to: GeneratorRecord.self)
    record.pointee.main(record)
  }

  /// Whose serial execution it is now: notes it, and sees to it that an overflow on this thread has last words.
  @usableFromInline @inline(never)
  static func adopt(_ root: GeneratorRef, _ consumer: GeneratorConsumer) {
    root.pointee.owner.store(consumer.owner, ordering: .relaxed)
    cco_guard_thread()
  }

  // MARK: After a switch that gave no plain element

  /// Goes on until there is an element for the consumer, or `root` has ended: begins and ends delegations, and raises at a
  /// yield inside a deadline, scope or shield. A loop, so that nesting costs no stack.
  @usableFromInline @inline(never)
  static func settle(
    _ root: GeneratorRef,
    _ given: UnsafeMutableRawPointer?,
    _ consumer: GeneratorConsumer
  ) -> UnsafeMutableRawPointer? {
    var answer = given
    while true {
      let active = root.pointee.active.unsafelyUnwrapped
      if !consumer.hasItsFrames, active.pointee.context.unsafelyUnwrapped.pointee.state == CCO_SUSPENDED {
        active.pointee.raised = YieldInsideScope()
        answer = enter(active, message(answer == nil ? GeneratorMessage.raise : GeneratorMessage.refuse), consumer)
      } else if answer != nil {
        return answer
      } else if active.pointee.context.unsafelyUnwrapped.pointee.state == CCO_SUSPENDED {
        let inner = active.pointee.delegate.take().unsafelyUnwrapped
        inner.pointee.delegator = active
        // It may itself have been stopped in the middle of a delegation.
        root.pointee.active = inner.pointee.active
        answer = enter(root.pointee.active.unsafelyUnwrapped, nil, consumer)
      } else {
        let outer = active.pointee.delegator.take()
        let wasClosed = active.pointee.ending == .closed
        finish(active)
        guard let outer else { return nil }
        root.pointee.active = outer
        if wasClosed {
          outer.pointee.closings += 1
          outer.pointee.raised = generatorClosed
        }
        answer = enter(outer, wasClosed ? message(GeneratorMessage.raise) : nil, consumer)
      }
    }
  }

  static func message(_ word: UInt) -> UnsafeMutableRawPointer? { UnsafeMutableRawPointer(bitPattern: word) }

  /// Called by the body of `record`: hands over to `inner` until that has ended. True: it has, just now or before.
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
    if record.pointee.delegate.take() != nil { park(inner) }
    throw record.pointee.raised.take().unsafelyUnwrapped
  }

  // MARK: Ending

  /// What the body has thrown.
  @usableFromInline
  static func fail(_ record: GeneratorRef, _ error: any Error) {
    let isClosing = record.pointee.closings > 0
    if isClosing && (isSame(error, generatorClosed) || error is GeneratorClosed) {
      record.pointee.ending = .closed
    } else {
      record.pointee.ending = .failed
      record.pointee.failure = error
    }
  }

  /// Errors are boxes: the one that close raises is recognised without a cast, which takes 50 ns.
  private static func isSame(_ one: any Error, _ other: any Error) -> Bool {
    unsafeBitCast(one as any Error, to: UInt.self) == unsafeBitCast(other as any Error, to: UInt.self)
  }

  /// The body has ended, or will never run: gives everything back.
  static func finish(_ record: GeneratorRef) {
    if let context = record.pointee.context {
      record.pointee.context = nil
      context.pointee.label.id = 0
      let status = cco_destroy(context)
      if status != CCO_OK { refuse(status) }
    }
    if let locals = record.pointee.locals {
      record.pointee.locals = nil
      Unmanaged<LocalBinding>.fromOpaque(locals).release()
    }
    record.pointee.claim.store(GeneratorState.finished, ordering: .releasing)
  }

  /// What a step throws of one that has ended otherwise than by returning.
  @usableFromInline @inline(never)
  static func error(of record: GeneratorRef) -> any Error {
    record.pointee.isObserved = true
    return record.pointee.failure ?? GeneratorClosed()
  }

  /// The claim for `throw` and `close`: true where there is a pending yield; a fresh one ends here with `ending`.
  static func claimToEnd(_ root: GeneratorRef, _ error: (any Error)?) throws -> Bool {
    if root.pointee.claim.compareExchange(
      expected: GeneratorState.parked,
      desired: GeneratorState.running,
      ordering: .acquiring
    ).exchanged {
      return true
    }
    if try claimFresh(root) {
      root.pointee.ending = error == nil ? .closed : .failed
      root.pointee.failure = error
      finish(root)
    }
    return false
  }

  /// Raises `error` at the pending yield; the element's address as in `resume`. Off a pending yield `error` is thrown here.
  @usableFromInline @inline(never)
  static func raise(_ root: GeneratorRef, _ error: any Error) throws -> UnsafeMutableRawPointer? {
    guard try claimToEnd(root, error) else {
      root.pointee.isObserved = true
      throw error
    }
    root.pointee.active.unsafelyUnwrapped.pointee.raised = error
    return drive(root, message(GeneratorMessage.raise))
  }

  /// Raises GeneratorClosed until the body has ended.
  @usableFromInline @inline(never)
  static func close(_ root: GeneratorRef) {
    do {
      guard try claimToEnd(root, nil) else { return }
    } catch {
      fatalError("close() of a generator that is running; let its body return or throw, or close it after the step")
    }
    var word = GeneratorMessage.raise
    repeat {
      let active = root.pointee.active.unsafelyUnwrapped
      active.pointee.closings += 1
      guard active.pointee.closings <= mostClosings else {
        fatalError(
          "a generator's body has swallowed GeneratorClosed \(mostClosings) times and yielded again; let it end the body"
        )
      }
      active.pointee.raised = generatorClosed
      // An element that it gives all the same is refused, and so destroyed by the body's side.
      let answer = drive(root, message(word))
      word = GeneratorMessage.refuse
      if answer == nil { return }
    } while true
  }

  /// The last reference is gone. The body's cleanup must not suspend here: a release is no place where a job expects to.
  @usableFromInline @inline(never)
  static func tearDown(_ record: GeneratorRef) {
    if record.pointee.claim.load(ordering: .acquiring) == GeneratorState.parked {
      let turn = Turn.current
      let job = turn?.pointee.job
      turn?.pointee.job = nil
      close(record)
      turn?.pointee.job = job
    }
    if let result = record.pointee.result { record.pointee.freeResult.unsafelyUnwrapped(result) }
    if let failure = record.pointee.failure, !record.pointee.isObserved, !(failure is CancellationError) {
      CoroutineRuntime.onUnhandledError(failure, "a generator made at \(record.pointee.place.description)")
    }
  }

  // MARK: Refusals

  /// Why somebody may not step: the body itself, or another coroutine of the same queue while the body waits, gets an
  /// error. Two threads at once is a race in the program, and ends it.
  static func refusal(of record: GeneratorRef) -> CoroutineError {
    let consumer = GeneratorConsumer()
    // Inside a delegation the outer generator's owner counts, and all that is known here is that it is in use.
    let owner = record.pointee.owner.load(ordering: .relaxed)
    if owner == nil || owner == consumer.owner { return .alreadyRunning }
    fatalError(
      "a generator was used from two threads at once; hand it over between steps, or put a Channel between the threads"
    )
  }

  /// `next` of one that is running: it has no way to throw.
  @usableFromInline @inline(never)
  static func refuse(_ error: any Error) -> Never { fatalError("next() was called, but \(error)") }

  /// A switch that the C core refuses: a yielder outside of its body.
  @usableFromInline @inline(never)
  static func refuse(_ status: cco_status) -> Never {
    fatalError(
      "a generator's yield was called outside of its body; a yielder works only where it was handed in, and not after the end"
    )
  }
}

/// How many bodies have started: a yielder's number is its body's.
private let bodies = Atomic<UInt>(0)

private let generatorLabel: StaticString = "generator"

/// The one that close raises, made once.
private let generatorClosed: any Error = GeneratorClosed()

/// A generator's body yielded inside a co_timeout, co_shield, co_scope or co_supervise that it had entered itself. Their
/// deadline, children and cancellation belong to the coroutine that made this step, and the next step may come from
/// another.
public struct YieldInsideScope: Error, CustomStringConvertible {
  /// Creates the error.
  public init() {}

  /// What to do about it, in one sentence.
  public var description: String {
    """
    a generator yielded inside a co_timeout, co_shield or scope of its own body; put only the wait inside it, and yield \
    after it has returned
    """
  }
}
