public import CCoroutine
import Synchronization

// Misuse. What can be told to whoever did it is an error; what nobody would hear, or what is a race already, ends the program
// with a sentence.

extension GeneratorRecord {
  /// Why somebody may not step one that is running.
  ///
  /// The body itself, or another coroutine of the same queue while the body waits, gets an error. Two threads at once is a
  /// race in the program, and ends it.
  static func refusal(of record: GeneratorRef) -> CoroutineError {
    let consumer = GeneratorConsumer()
    // An inner generator of a delegation is stepped through the outer one: all that is known here is that it is in use.
    guard let stepper = record.pointee.stepper.load(ordering: .relaxed), stepper != consumer.name else {
      return .alreadyRunning
    }
    // While it runs its stepping job lives, unless two threads race here; then the answer below is the right one as well.
    if let mine = consumer.job, let job = record.pointee.stepperJob.load(ordering: .relaxed),
      UnsafeMutablePointer(mutating: job.assumingMemoryBound(to: JobRecord.self)).scheduler == mine.scheduler
    {
      return .alreadyRunning
    }
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
      """
      a generator's yield was called outside of its body; a yielder works only where it was handed in, and not after \
      the end
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
  /// Names the serial execution that the job belongs to.
  fileprivate var scheduler: UnsafeMutableRawPointer { pointee.scheduler.load(ordering: .relaxed).toOpaque() }
}

/// A generator's body yielded inside a deadline, shield or scope that it had entered itself.
///
/// The deadline, children and cancellation of a co_timeout, co_shield, co_scope or co_supervise belong to the coroutine that
/// made this step, and the next step may come from another.
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
