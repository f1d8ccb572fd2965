import CCoroutine
import CCoroutineRuntime
import Synchronization

// Where virtual threads run jobs. The functions of the C library that the shipped files call have namesakes here: a
// function of the module hides an imported one.

/// What a virtual thread, which lets jobs run, knows of itself.
@usableFromInline
struct Carrier: ~Copyable {
  var driver = cco_saved_context()
  var job: JobRef?
  let scheduler: Unmanaged<Scheduler>?
  let readyQueue: UnsafeMutablePointer<ReadyQueue>?
  var leaving: UInt = 0
  static var leavingArrival: UInt { 2 }
  let now: UInt64

  init(scheduler: Unmanaged<Scheduler>?, readyQueue: UnsafeMutablePointer<ReadyQueue>?, now: UInt64) {
    self.scheduler = scheduler
    self.readyQueue = readyQueue
    self.now = now
  }

  /// The running virtual thread's carrier.
  static var current: UnsafeMutablePointer<Carrier>? {
    cco_layer().pointee.carrier?.assumingMemoryBound(to: Carrier.self)
  }

  /// The carrier and the job of a virtual thread that is a job's stack.
  @usableFromInline
  static func requireJob() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    let carrier = current.unsafelyUnwrapped
    return (carrier, carrier.pointee.job.unsafelyUnwrapped)
  }

  static func finishLeaving(_ carrier: UnsafeMutablePointer<Carrier>) {}

  /// Makes the running virtual thread one that drains `scheduler` while `body` runs.
  static func enter<Result>(_ scheduler: Scheduler, _ body: (UnsafeMutablePointer<Carrier>) -> Result) -> Result {
    var carrier = Carrier(scheduler: .passUnretained(scheduler), readyQueue: scheduler.readyQueue, now: 0)
    return withUnsafeMutablePointer(to: &carrier) {
      cco_layer().pointee.carrier = UnsafeMutableRawPointer($0)
      defer { cco_layer().pointee.carrier = nil }
      return body($0)
    }
  }

  /// As in the library, but never takes a job along to another worker; a job that is a virtual thread is resumed at
  /// once.
  @usableFromInline
  static func makeReady(_ job: JobRef) {
    let object = job.handle.takeUnretainedValue()
    if object.isThread {
      Explorer.current?.require(!object.resumed.isOpen, "a job was resumed twice")
      return object.resumed.open()
    }
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    if let current, current.pointee.scheduler?.toOpaque() == scheduler.toOpaque() {
      return current.pointee.readyQueue.unsafelyUnwrapped.append(job)
    }
    scheduler._withUnsafeGuaranteedRef { $0.push(.job(job)) }
  }

  /// The running virtual thread is the job: it waits until a drain resumes it.
  @usableFromInline
  static func park(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> UInt8 {
    let object = job.handle.takeUnretainedValue()
    object.parked.open()
    sendArrival(carrier)
    object.left()
    object.resumed.pass()
    object.resumed.close()
    object.parked.close()
    return job.endWait()
  }
}

extension Carrier {
  /// The first thing that a carrier does after a switch, if the job has left an arrival.
  private static func sendArrival(_ carrier: UnsafeMutablePointer<Carrier>) {
    let word = carrier.pointee.leaving
    carrier.pointee.leaving = 0
    guard let arrival = UnsafeRawPointer(bitPattern: word & ~leavingArrival) else { return }
    Unmanaged<Arrival>.fromOpaque(arrival).takeUnretainedValue().send()
  }
}

/// The words of the running virtual thread.
func cco_layer() -> UnsafeMutablePointer<cco_layer_words> {
  Explorer.current.unsafelyUnwrapped.runningThread.words
}

func cco_guard_thread() {}

/// Runs a job's first piece up to the place where it parks; then its stack is known to be switched out.
func cco_switch(_ from: UnsafeMutablePointer<cco_saved_context>, _ to: UnsafeMutablePointer<cco_saved_context>) {
  let job = Carrier.current.unsafelyUnwrapped.pointee.job.unsafelyUnwrapped.handle.takeUnretainedValue()
  job.nameContext()
  job.firstPiece()
  job.switchedOut.store(true, ordering: .releasing)
}

func cco_is_parked(_ context: UnsafePointer<cco_saved_context>) -> Bool {
  guard let job = context.pointee.stack else { return false }
  return Unmanaged<AnyJob>.fromOpaque(job).takeUnretainedValue().switchedOut.load(ordering: .acquiring)
}
