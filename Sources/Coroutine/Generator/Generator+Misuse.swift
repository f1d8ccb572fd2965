public import CCoroutine
import Synchronization

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
  /// Identifies the serial execution that the job belongs to.
  fileprivate var scheduler: UnsafeMutableRawPointer { pointee.scheduler.load(ordering: .relaxed).toOpaque() }
}
